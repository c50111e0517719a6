"""Text of this machine whose documents are as long as the web's, for benchmarks/learning.py.

    python benchmarks/web_like.py FOLDER --tokens 66e6

Documents come from ../shared/corpus where it is there, from documentation and manual pages, and
from Python code: a file is one document, or each of its top-level functions and classes is one.
The machine's own mix is too short and too long. So lengths are drawn like FineWeb-Edu's
(packing.py), and a document is taken while documents of its length are still wanted. Prose comes
first, and code fills what prose leaves. A text that was taken before, but for white space, is left
out. The documents are shuffled, and FOLDER/text is prepared with a vocabulary that is trained on
them; 4% of the documents validate. Text that is in FOLDER/text already is not chosen again.
"""

import argparse
import ast
import collections
import gzip
import hashlib
import json
import random
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from packing import fineweb_edu_lengths

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "corpus"
SYSTEM = (Path("/usr/share/doc"), Path("/usr/share/man"), Path("/usr/lib/python3"))
PROSE = (".md", ".rst", ".txt", ".gz")
BYTES_PER_TOKEN = 3.5  # of this text, with a vocabulary of 16,384 trained on it
SHORTEST = 100  # bytes
FILES = 8  # of text
Text = tuple[str, str]  # what kind it is, and the text


def articles() -> Iterator[Text]:
    """The texts of ../shared/corpus: documentation, articles, books."""
    import pyarrow.parquet as pq

    for path in sorted(CORPUS.glob("*.parquet")):
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist():
            yield "article", text


def pages(paths: list[Path]) -> Iterator[Text]:
    """Documentation and manual pages."""
    for path in paths:
        if path.suffix not in PROSE:
            continue
        content = path.read_bytes()
        try:
            text = gzip.decompress(content) if path.suffix == ".gz" else content
            kind = "manual page" if "/man/" in str(path) else "documentation"
            yield kind, text.decode()
        except (OSError, EOFError, UnicodeDecodeError):
            continue


def code(paths: list[Path]) -> Iterator[Text]:
    """A quarter of the Python files, and the top-level functions and classes of the others."""
    for path in paths:
        if path.suffix != ".py":
            continue
        try:
            text = path.read_bytes().decode()
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError, ValueError, RecursionError):
            continue
        if _hash(str(path))[0] < 64:
            yield "file of code", text
            continue
        lines = text.splitlines()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield "definition", "\n".join(lines[node.lineno - 1 : node.end_lineno])


def choose(texts: Iterator[Text], num_documents: int) -> list[Text]:
    """Texts whose lengths are like the web's, until `num_documents` are there or none is left."""
    lengths = fineweb_edu_lengths(num_documents) * BYTES_PER_TOKEN
    wanted = collections.Counter(map(_bucket, lengths.tolist()))
    seen = set()
    chosen = []
    for kind, text in texts:
        size = len(text.encode(errors="replace"))
        bucket = _bucket(size)
        if size < SHORTEST or not wanted[bucket]:
            continue
        digest = _hash(" ".join(text.split()))
        if digest in seen:
            continue
        seen.add(digest)
        wanted[bucket] -= 1
        chosen.append((kind, text))
        if len(chosen) == num_documents:
            break
    return chosen


def write(folder: Path, texts: list[Text]) -> None:
    """Writes shuffled texts as jsonl files of about one size."""
    random.Random(0).shuffle(texts)
    folder.mkdir(parents=True)
    for number in range(FILES):
        with open(folder / f"text_{number}.jsonl", "w") as file:
            for kind, text in texts[number::FILES]:
                file.write(json.dumps({"kind": kind, "text": text}) + "\n")


def make(folder: Path, tokens: float, vocab_size: int) -> Path:
    """Makes and prepares the text: the token set's folder."""
    source = folder / "text"
    if not source.exists():
        paths = _files()
        num_documents = round(tokens / fineweb_edu_lengths().mean())
        sources = [articles(), pages(paths), code(paths)]
        texts = choose((text for texts in sources for text in texts), num_documents)
        if len(texts) < num_documents:
            print(f"{len(texts):,} of {num_documents:,} documents: this machine has no more")
        print(_described(texts))
        write(source, texts)
    flags = ["--source", str(source), "--val-fraction", "0.04", "--name", "web-like"]
    flags += ["--tokenizer", f"train:{vocab_size}"]
    command = [sys.executable, str(ROOT / "prepare_data.py"), *flags]
    prepared = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return folder / prepared.stdout.splitlines()[-1]


def _files() -> list[Path]:
    """The files of this machine that may have text, in random order."""
    roots = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")}
    paths = set()
    for root in (*roots, *SYSTEM):
        paths.update(path for path in root.rglob("*") if path.suffix in (*PROSE, ".py"))
    files = sorted(path for path in paths if path.is_file())
    random.Random(0).shuffle(files)
    return files


def _bucket(size: float) -> int:
    """Which half octave a length is in."""
    return int(2 * np.log2(max(size, 1)))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()


def _described(texts: list[Text]) -> str:
    """How many documents and bytes of each kind, and how long they are."""
    sizes = collections.Counter()
    counts = collections.Counter()
    for kind, text in texts:
        sizes[kind] += len(text)
        counts[kind] += 1
    lines = [f"{counts[kind]:,} of {kind}: {sizes[kind] / 1e6:.1f} MB" for kind in counts]
    lengths = np.array([len(text) for _, text in texts]) / BYTES_PER_TOKEN
    middle = np.median(lengths)
    long = (lengths > 2048).mean()
    lines.append(
        f"about {lengths.mean():,.0f} tokens in the mean, {middle:,.0f} in the median, "
        f"{long:.0%} over 2,048"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where text and token set are written")
    parser.add_argument("--tokens", type=float, default=66e6, help="about how many [%(default)g]")
    parser.add_argument("--vocab-size", type=int, default=16_384, help="[%(default)s]")
    arguments = parser.parse_args()
    print(make(arguments.folder.resolve(), arguments.tokens, arguments.vocab_size))
