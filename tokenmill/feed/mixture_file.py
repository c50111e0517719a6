"""Reads a mixture's TOML file, the form that teams keep in git:

    [sources.web]
    path = "data/tokens/web-gpt2-1bd489c3"
    max_epochs = 4                    # after these it retires, and the others continue
    view = "good"                     # of the token set (docs/views.md); by default all documents, once

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
    """The arguments of Mixture from the content of a file in `folder`. ValueError with the key that is invalid."""
    _table("", content, "sources", "weights", "stages", "removed")
    if ("weights" in content) == ("stages" in content):
        raise ValueError("expected either weights or stages")
    stages = content.get("stages", [{"begin": 0, "weights": content.get("weights")}])
    if not isinstance(stages, list):
        raise ValueError("stages must be tables, each under [[stages]]")
    found: dict[str, Any] = {"sources": {}, "max_epochs": {}, "views": {}, "weights": []}
    for name, source in _table("sources", content.get("sources", {})).items():
        _table(f"sources.{name}", source, "path", "max_epochs", "view")
        for key, argument in (("path", "sources"), ("max_epochs", "max_epochs"), ("view", "views")):
            if key in source:
                found[argument][name] = (
                    _located(name, source[key], folder) if key == "path" else source[key]
                )
    for number, stage in enumerate(stages):
        _table(f"stages[{number}]", stage, "begin", "weights")
        if missing := {"begin", "weights"} - stage.keys():
            raise ValueError(f"stages[{number}] has no {' and no '.join(sorted(missing))}")
        found["weights"].append(
            (
                stage["begin"],
                weights := _table(f"the weights of stages[{number}]", stage["weights"]),
            )
        )
        bare = {name: folder_of(name, folder) for name in weights if name not in found["sources"]}
        for name, path in bare.items():
            is_named = name in content.get("sources", (name,))
            if not is_named and isinstance(path, Path) and not path.exists():
                raise ValueError(
                    f"source {name!r} has a weight, but no [sources.{name}] and no folder {path}"
                )
        found["sources"] |= bare
    return found | {"removed": content.get("removed", ())}


def _located(name: str, path: Any, folder: Path) -> str:
    """A path or name, seen from the file's folder; an address, or the name of a set that is not there, as it is."""
    if not isinstance(path, str) or not path:
        raise ValueError(f"sources.{name}.path must be a string that is not empty, not {path!r}")
    where, is_name = folder_of(path, folder), Path(path).name == path
    is_elsewhere = is_name and not Path(where, "manifest.json").exists()
    return path if is_address(path) or is_elsewhere else os.fspath(where)


def folder_of(source: str | os.PathLike[str], here: Path) -> str | Path:
    """The absolute folder of a path or of a bare name, which may be under data/tokens; or an address."""
    where = set_folder(source, here)
    return where if isinstance(where, str) else Path(os.path.abspath(here / where))


def _table(where: str, value: Any, *known: str) -> dict[str, Any]:
    """The table. ValueError if it is none, or has other keys than the known ones, if there are any."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table, not {value!r}")
    if known and (unknown := [key for key in value if key not in known]):
        raise ValueError(
            f"unknown key {where}{'.' * bool(where)}{unknown[0]}; the keys are {', '.join(known)}"
        )
    return value
