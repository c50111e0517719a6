"""A mixture's TOML file. What teams keep in git:

    tokens = "1T"                     # of the whole run
    on_cap = "spread"

    [sources.web]
    path = "data/tokens/web-gpt2-1bd489c3"
    [sources.math]
    path = "data/tokens/math-gpt2-1bd489c3"
    max_epochs = 4

    [[stages]]
    begin = 0
    weights = { web = 85, math = 15 }
    [[stages]]
    begin = "900B"
    weights = { web = 1, math = 1 }

Folders are relative to the file's own. One stage alone is [weights].
"""

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.remote.addresses import is_address, named

KNOWN_FOLDER = Path("data/tokens")  # where a bare name is looked for


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file says. FileNotFoundError where there is none, ValueError where it is no TOML."""
    if not Path(path).is_file():
        found = "a folder" if Path(path).is_dir() else "no such file"
        raise FileNotFoundError(f"{path}: expected a mixture's TOML file, found {found}")
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a mixture as TOML, found {error}") from error


def arguments_of(told: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The arguments of Mixture that a file in a folder says. ValueError with the key that makes no sense."""
    _require_known(told, ("tokens", "on_cap", "removed", "sources", "weights", "stages"), "")
    sources, caps = _sources(told, folder)
    stages = _stages(told)
    for name in [name for _, weights in stages for name in weights if name not in sources]:
        sources[name] = str(folder_of(name, folder))  # a bare name
        near = difflib.get_close_matches(name, told.get("sources", {}), 1)
        if near and not Path(sources[name]).exists():
            raise ValueError(f"{name!r} has a weight and is not under sources; did you mean {near[0]!r}?")
    if unweighted := sorted(caps.keys() - sources.keys()):
        raise ValueError(f"source {unweighted[0]!r} has no weight in any stage")
    more = {key: value for key, value in told.items() if key in ("tokens", "on_cap", "removed")}
    return more | {"weights": stages, "sources": sources, "max_epochs": caps}


def _sources(told: dict[str, Any], folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The folders and the caps of those that are told."""
    sources: dict[str, str] = {}
    caps: dict[str, Any] = {}
    for name, source in _table("sources", told.get("sources", {})).items():
        _require_known(_table(f"sources.{name}", source), ("path", "max_epochs"), f"sources.{name}.")
        if "path" in source:
            path = _text(f"sources.{name}.path", source["path"])
            sources[name] = path if is_address(path) else os.path.join(folder, path)
        if "max_epochs" in source:
            caps[name] = source["max_epochs"]
    return sources, caps


def _stages(told: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    if ("weights" in told) == ("stages" in told):
        raise ValueError("expected either weights or stages")
    stages = told.get("stages", [{"begin": 0, "weights": told.get("weights")}])
    if not isinstance(stages, list):
        raise ValueError("stages must be tables, each under [[stages]]")
    for number, stage in enumerate(stages):
        _require_known(_table(f"stages[{number}]", stage), ("begin", "weights"), f"stages[{number}].")
        if missing := {"begin", "weights"} - stage.keys():
            raise ValueError(f"stages[{number}] has no {' and no '.join(sorted(missing))}")
        _table(f"the weights of stages[{number}]", stage["weights"])
    return [(stage["begin"], stage["weights"]) for stage in stages]


def folder_of(source: str, here: Path) -> str | Path:
    """The folder of a path, or of a bare name, which may be under data/tokens; absolute. Or an address."""
    if is_address(source):
        return named(source)
    path = here / source
    if not path.exists() and Path(source).name == source and (here / KNOWN_FOLDER / source).exists():
        path = here / KNOWN_FOLDER / source
    return Path(os.path.abspath(path))


def _require_known(told: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in told:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ValueError(f"unknown key {where}{key}{hint}")


def _table(name: str, told: Any) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise ValueError(f"{name} must be a table, not {told!r}")
    return told


def _text(name: str, told: Any) -> str:
    if not isinstance(told, str) or not told:
        raise ValueError(f"{name} must be a text, not {told!r}")
    return told
