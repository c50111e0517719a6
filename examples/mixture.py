"""Three token sets of what this machine's Python has, and a mixture of them in stages: `python examples/mixture.py`

    modules     the standard library's single modules
    packages    its packages
    docs        what the packages that are installed say of themselves, and their texts

Each is prepared with one tokenizer, trained on the modules; mixture.toml then says how much of each a run gets, when.
Run again, it makes only what is missing.
"""

import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a clone's tokenmill, where none is installed

from tokenmill import PrepareConfig, prepare

FILES = 4  # of each source; the last validates
MIXTURE = """# {about}

{sources}
[[stages]]           # at first, mostly code
begin = 0
weights = {{ modules = 5, packages = 4, docs = 1 }}

[[stages]]           # then more prose
begin = "3M"
weights = {{ modules = 2, packages = 2, docs = 1 }}

[[stages]]           # at the end, what you think is best
begin = "5M"
weights = {{ modules = 3, docs = 1 }}
"""


ABOUT = "made by examples/mixture.py"


@dataclass(frozen=True)
class Sets:
    """Prepares three token sets of this machine's Python, and writes a mixture of them."""

    out: Path = Path("mixture.toml")  # the mixture
    vocab: int = 8192  # tokens of the tokenizer


def texts() -> dict[str, list[Path]]:
    """The files of each source, in an order that depends on their names alone."""
    library, installed = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    python = [path for path in library.rglob("*.py") if "site-packages" not in path.parts]
    found = {
        "modules": [path for path in python if path.parent == library],
        "packages": [path for path in python if path.parent != library],
        "docs": [
            path
            for suffix in ("METADATA", "*.md", "*.rst", "*.txt")
            for path in installed.rglob(suffix)
        ],
    }
    drawn = lambda path: hashlib.sha256(str(path).encode()).digest()  # noqa: E731
    return {name: sorted(paths, key=drawn) for name, paths in found.items()}


def documents(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            yield json.dumps({"text": text}) + "\n"


def write_source(folder: Path, paths: list[Path]) -> None:
    """Some jsonl files of a source, unless they are there."""
    if folder.exists():
        return
    unfinished = folder.with_name(f".{folder.name}")
    unfinished.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        with open(unfinished / f"{number}.jsonl", "w") as file:
            file.writelines(documents(paths[number::FILES]))
    unfinished.rename(folder)


def main(config: Sets) -> None:
    if config.out.exists() and ABOUT not in config.out.read_text(errors="replace"):
        raise SystemExit(
            f"{config.out}: is there already, and not made by this script; name another file with --out"
        )
    tokenizer, sources = f"train:{config.vocab}", []
    for name, paths in texts().items():
        write_source(Path("data/raw") / name, paths)
        folder = prepare(
            PrepareConfig(source=f"data/raw/{name}", tokenizer=tokenizer, name=name)
        ).folder
        tokenizer = str(folder / "tokenizer.json")  # the first one's, for all
        cap = "max_epochs = 3\n" if name == "modules" else ""
        sources.append(f'[sources.{name}]\npath = "{folder}"\n{cap}')
    config.out.write_text(MIXTURE.format(about=ABOUT, sources="\n".join(sources)))
    print(config.out)


if __name__ == "__main__":
    main(tyro.cli(Sets))
