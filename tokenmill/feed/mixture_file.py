"""Reads a mixture's TOML file, the form that teams keep in git:

    [sources.web]
    path = "data/tokens/web-gpt2-1bd489c3"
    max_epochs = 4                    # after these it retires, and the others continue
    view = "good"                     # of the token set (docs/views.md); by default all documents

    [[stages]]
    begin = 0
    weights = { web = 85, math = 15 }
    [[stages]]
    begin = "900B"                    # tokens of the run
    weights = { web = 1, math = 1 }
One stage may be [weights] alone. `removed` lists sources that you took out.
"""

import os
from pathlib import Path
from typing import Any

from tokenmill.addresses import is_address
from tokenmill.store.set_names import set_folder


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of the file. FileNotFoundError if there is none, ValueError if it is not TOML."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: expected a mixture's TOML file, found none")
    import tomllib  # 3 ms, which only readers of such files wait for

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a mixture as TOML, found {error}") from error


def arguments_of(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The arguments of Mixture from the content of a file in `folder`.

    ValueError with the key that is invalid.
    """
    _table("", content, "sources", "weights", "stages", "removed")
    if ("weights" in content) == ("stages" in content):
        raise ValueError("expected either weights or stages")
    stages = content.get("stages", [{"begin": 0, "weights": content.get("weights")}])
    if not isinstance(stages, list):
        raise ValueError("stages must be tables, each under [[stages]]")
    sources: dict[str, str | Path] = {}
    settings: dict[str, dict[str, Any]] = {"max_epochs": {}, "view": {}}
    listed = _table("sources", content.get("sources", {}))
    for name, source in listed.items():
        _table(f"sources.{name}", source, "path", *settings)
        if "path" in source:
            path = source["path"]
            if not isinstance(path, str) or not path:
                raise ValueError(
                    f"sources.{name}.path must be a string that is not empty, not {path!r}"
                )
            sources[name] = _located(path, folder)
        for key, values in settings.items():
            if key in source:
                values[name] = source[key]
    pairs = []
    for number, stage in enumerate(stages):
        begin, weights = _read_stage(number, stage)
        pairs.append((begin, weights))
        for name in weights:
            if name not in sources:
                sources[name] = _located(name, folder)
    return {
        "sources": sources,
        "max_epochs": settings["max_epochs"],
        "views": settings["view"],
        "weights": pairs,
        "removed": content.get("removed", ()),
    }


def _read_stage(number: int, stage: Any) -> tuple[Any, dict[str, Any]]:
    """Where a stage begins, and its weights."""
    _table(f"stages[{number}]", stage, "begin", "weights")
    missing = sorted({"begin", "weights"} - stage.keys())
    if missing:
        raise ValueError(f"stages[{number}] has no {' and no '.join(missing)}")
    return stage["begin"], _table(f"the weights of stages[{number}]", stage["weights"])


def _located(path: str, folder: Path) -> str:
    """A path or name, seen from the file's folder.

    An address, or the name of a set that is not there, as it is.
    """
    located = folder_of(path, folder)
    is_name = Path(path).name == path
    is_elsewhere = is_name and not Path(located, "manifest.json").exists()
    return path if is_address(path) or is_elsewhere else os.fspath(located)


def folder_of(source: str | os.PathLike[str], here: Path) -> str | Path:
    """The absolute folder of a path or of a bare name, which may be under data/tokens.

    An address as it is.
    """
    folder = set_folder(source, here)
    return folder if isinstance(folder, str) else Path(os.path.abspath(here / folder))


def _table(name: str, value: Any, *known: str) -> dict[str, Any]:
    """The table. ValueError if it is none, or has other keys than the known ones, if any are."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table, not {value!r}")
    for key in value:
        if known and key not in known:
            path = f"{name}.{key}" if name else key
            raise ValueError(f"unknown key {path}; the keys are {', '.join(known)}")
    return value
