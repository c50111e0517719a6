"""Makes old_sets.json: what commit 41c3cfa, from before the table of columns, wrote for a corpus that is made here.

    cd CLONE_OF_41c3cfa; PYTHONPATH=. python .../tests/old_sets.py

It has a tokenizer, and of each set the digest and the SHA-256 of every file. tests/store/test_columns.py prepares the
same corpus and compares.
"""

import hashlib
import json
import random
import tempfile
from pathlib import Path

from tokenmill import PrepareConfig, TokenSet, prepare

OLD = Path(__file__).with_name("old_sets.json")
SETS = {"plain": {}}
WORDS = ["mill", "grain", "flour", "water", "wheel", "stone", "sack", "loaf", "naïve", "水車", "1984", "don't"]


def write_corpus(folder: Path) -> Path:
    """Three jsonl files of 60 documents. One id is a number, some texts are empty."""
    folder.mkdir()
    rng = random.Random(0)
    for number in range(3):
        rows = [
            {"text": " ".join(rng.choices(WORDS, k=rng.randrange(90))), "id": f"urn:{number}:{row}" if row else row}
            for row in range(60)
        ]
        (folder / f"part_{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def as_before(path: Path) -> bytes:
    """A file's bytes; of a shard's record or a manifest without what 0.4.0 added."""
    if path.suffix != ".json" or path.parent.name not in ("shards", "manifests") and path.name != "manifest.json":
        return path.read_bytes()
    content = json.loads(path.read_text())
    assert content.pop("shard_text_bytes", None) in (None, 9000)
    content.pop("files", None)
    content.pop("records", None)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def prepared(folder: Path, tokenizer: dict) -> dict[str, dict]:
    """{name: {"digest", "files"}} of the sets, prepared below a folder."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    source, found = write_corpus(folder / "corpus"), {}
    for name, more in SETS.items():
        settings = {"tokens_root": folder / "sets", "raw_dir": folder / "raw", "workers": 1, "shard_text_bytes": 9000}
        config = PrepareConfig(source, tokenizer=str(folder / "tokenizer.json"), name=name, **settings, **more)
        made = Path(prepare(config).folder)
        files = {str(path.relative_to(made)): path for path in sorted(made.rglob("*")) if path.is_file()}
        hashes = {file: hashlib.sha256(as_before(path)).hexdigest() for file, path in files.items()}
        found[name] = {"digest": TokenSet(made).digest, "files": hashes}
    return found


if __name__ == "__main__":
    from tokenmill.tokenize.tokenizer import train_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer([" ".join(WORDS)], 275, "old").save(Path(folder) / "old.json")
        tokenizer = json.loads((Path(folder) / "old.json").read_text())
        OLD.write_text(json.dumps({"tokenizer": tokenizer, "sets": prepared(Path(folder), tokenizer)}, indent=1) + "\n")
