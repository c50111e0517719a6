"""Reads a mixture's TOML file, the form that teams keep in git:

    [sources.web]
    path = "data/tokens/web-gpt2-1bd489c3"
    [sources.math]
    path = "data/tokens/math-gpt2-1bd489c3"
    max_epochs = 4                    # after these it retires, and the others continue
    view = "good"                     # of the token set (docs/views.md); by default all documents, once

    [[stages]]
    begin = 0
    weights = { web = 85, math = 15 }
    [[stages]]
    begin = "900B"                    # tokens of the run
    weights = { web = 1, math = 1 }

Relative folders are relative to the file. One stage may be [weights] alone. `removed` lists sources that you took out.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.addresses import is_address
from tokenmill.store.set_names import set_folder


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of the file. FileNotFoundError if there is none, ValueError if it is not TOML."""
    if not Path(path).is_file():
        found = "a folder" if Path(path).is_dir() else "no such file"
        raise FileNotFoundError(f"{path}: expected a mixture's TOML file, found {found}")
    import tomllib  # 3 ms, which only readers of such files wait for

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a mixture as TOML, found {error}") from error


def arguments_of(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The arguments of Mixture from the content of a file in `folder`. ValueError with the key that is invalid."""
    _require_known(content, ("sources", "weights", "stages", "removed"), "")
    stages = _stages(content)
    sources: dict[str, str | Path] = {}
    settings: dict[str, dict[str, Any]] = {"max_epochs": {}, "view": {}}
    for name, source in _table("sources", content.get("sources", {})).items():
        _require_known(_table(f"sources.{name}", source), ("path", "max_epochs", "view"), f"sources.{name}.")
        if "path" in source:
            sources[name] = _located(_string(f"sources.{name}.path", source["path"]), folder)
        for key, values in settings.items():
            if key in source:
                values[name] = source[key]
    for name in [name for _, weights in stages for name in weights if name not in sources]:
        sources[name] = folder_of(name, folder)  # a bare name
    more = {"removed": content["removed"]} if "removed" in content else {}
    caps, views = settings["max_epochs"], {n: _string(f"sources.{n}.view", v) for n, v in settings["view"].items()}
    if unweighted := sorted((caps.keys() | views.keys()) - sources.keys()):
        raise ValueError(f"source {unweighted[0]!r} has no weight in any stage")
    return more | {"weights": stages, "sources": sources, "max_epochs": caps, "views": views}


def _located(path: str, folder: Path) -> str:
    """A path relative to the file's folder; an address, or the name of a set under data/tokens, as it is."""
    is_name = Path(path).name == path and not (folder / path).exists()
    return path if is_address(path) or is_name else os.path.join(folder, path)


def _stages(content: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    if ("weights" in content) == ("stages" in content):
        raise ValueError("expected either weights or stages")
    stages = content.get("stages", [{"begin": 0, "weights": content.get("weights")}])
    if not isinstance(stages, list):
        raise ValueError("stages must be tables, each under [[stages]]")
    for number, stage in enumerate(stages):
        _require_known(_table(f"stages[{number}]", stage), ("begin", "weights"), f"stages[{number}].")
        if missing := {"begin", "weights"} - stage.keys():
            raise ValueError(f"stages[{number}] has no {' and no '.join(sorted(missing))}")
        _table(f"the weights of stages[{number}]", stage["weights"])
    return [(stage["begin"], stage["weights"]) for stage in stages]


def folder_of(source: str | os.PathLike[str], here: Path) -> str | Path:
    """The absolute folder of a path or of a bare name, which may be under data/tokens; or an address."""
    where = set_folder(source, here)
    return where if isinstance(where, str) else Path(os.path.abspath(here / where))


def _require_known(table: Mapping[str, Any], known: Sequence[str], prefix: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {prefix}{key}; the keys are {', '.join(known)}")


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table, not {value!r}")
    return value


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a string that is not empty, not {value!r}")
    return value
