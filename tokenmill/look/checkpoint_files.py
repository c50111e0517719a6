"""Finds the positions in a checkpoint, by their shape, wherever your training loop put them.

    positions_in("state.json")      a loader's state_dict() as JSON, or JSON that contains one
    positions_in("ckpt.pt")         what torch.save or pickle.dump wrote: nanoGPT's, Lightning's, your own
    positions_in("step_500/")       a folder of torch.distributed.checkpoint

Pickles are read without importing or calling anything that they name: objects of unknown classes become `Unknown`, and
tensors are not read. So a checkpoint can run no code here, needs no class of yours, and reading it takes little memory.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tokenmill.messages import counted
from tokenmill.rows.position import read_position
from tokenmill.store.files import read_bounded

LARGEST = 1 << 30  # bytes of a file, or of a checkpoint's entries without its tensors
DEEPEST = 32  # levels of dicts and lists in which positions are searched


class Found(NamedTuple):
    """A position, where in the checkpoint it is: data.get_batch[0], and for what purpose get_batch was called."""

    where: str
    position: dict[str, Any]
    purpose: str = ""

    @property
    def split(self) -> Any:
        """The split that the position is of. ValueError if it is no position."""
        return read_position(self.position)[1].get("split")


class Unknown(dict[Any, Any]):
    """An object of a class that is not imported: its arguments, its items and, in `state`, its attributes."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # it may be the key of a dict
    state: Any = None

    def __new__(cls, *arguments: Any, **_: Any) -> "Unknown":
        self = dict.__new__(cls)
        dict.update(self, enumerate(arguments))
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        """Keeps what __new__ was given."""

    def __call__(self, *arguments: Any, **_: Any) -> "Unknown":
        return Unknown(*arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self[len(self)] = item

    def extend(self, items: Any) -> None:
        for item in items:
            self.append(item)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return Unknown

    def persistent_load(self, _: Any) -> Unknown:
        return Unknown()  # a tensor's storage


def positions_in(path: Path) -> list[Found]:
    """All different positions in a checkpoint. Those of get_batch's loaders are listed one by one.

    Raises ValueError if the file is of another kind, or cannot be read.
    """
    found: list[Found] = []
    for one in _search(_read(path), "", DEEPEST, {}):
        if one.position not in [other.position for other in found]:
            found.append(one)
    return found


def position_of(flag: str, path: Path, wanted: str | None, expected: str) -> dict[str, Any]:
    """The position of a split in a checkpoint; if none is wanted, the only one, or that of training."""
    if not path.exists():
        raise FileNotFoundError(f"{flag} {path}: expected {expected}, found no such file")
    found, split = positions_in(path), wanted or "train"
    fitting = [one for one in found if one.split == split]
    if split == "train" and (trained := [one for one in fitting if one.purpose != "eval"]):
        fitting = trained  # get_batch may also evaluate on the training split
    if len(fitting) == 1 or (wanted is None and len(found) == 1):
        return (fitting or found)[0].position
    if not found:
        raise ValueError(f"{flag} {path}: expected {expected}, found none in it")
    listed = ", ".join(f"{one.where or 'the whole file'} of split {one.split}" for one in found)
    raise ValueError(
        f"{flag} {path}: expected one position of split {split}, found {counted(len(fitting), 'position')} of it among "
        f"{listed}; save the one that you mean as JSON in a file of its own"
    )


def _search(
    value: Any, where: str, levels: int, seen: dict[int, Any], purpose: str = ""
) -> Iterator[Found]:
    """The positions in a value of any kind. `seen` has what was searched, by id: objects may contain each other."""
    if not isinstance(value, Mapping | list | tuple) or not levels or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Unknown):
        yield from _search(value.state, where, levels - 1, seen)
    if isinstance(value, Mapping) and repr(value.get("tokenmill")).startswith("'{"):
        yield Found(where, {"tokenmill": value["tokenmill"]}, purpose)
    elif isinstance(value, Mapping) and isinstance(value.get("get_batch"), str):
        for number, saved in enumerate(_parse(value["get_batch"])):
            if isinstance(saved, list) and len(saved) == 2 and isinstance(saved[0], dict):
                yield from _search(
                    saved[1],
                    f"{where or 'get_batch'}[{number}]",
                    2,
                    seen,
                    str(saved[0].get("purpose")),
                )
    else:
        for key, inner in list(value.items() if isinstance(value, Mapping) else enumerate(value)):
            yield from _search(inner, f"{where}.{key}" if where else str(key), levels - 1, seen)


def _parse(text: str) -> list[Any]:
    try:
        return list(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"expected the positions of get_batch's loaders as JSON, found {text[:60]!r}"
        ) from error


def _read(path: Path) -> Any:
    if path.is_dir():
        return _read_folder(path)
    try:
        if zipfile.is_zipfile(path):
            return _read_zip(path, path)
        data = read_bounded(path, LARGEST, "a checkpoint, or a loader's state_dict() as JSON")
        return _Unpickler(io.BytesIO(data)).load() if data[:1] == b"\x80" else json.loads(data)
    except Exception as error:
        _refuse(path, error)


def _read_zip(file: Any, path: Path) -> Any:
    """The content of torch.save's file without its tensors."""
    with zipfile.ZipFile(file) as archive:
        name = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
        if name is None or archive.getinfo(name).file_size > LARGEST:
            raise ValueError(f"{path} is an archive, but not torch.save's")
        return _Unpickler(io.BytesIO(archive.read(name))).load()


def _read_folder(path: Path) -> dict[tuple[Any, ...], Any]:
    """What torch.distributed.checkpoint saved besides tensors, as nested dicts."""
    if not (path / ".metadata").is_file():
        raise ValueError(
            f"{path}: expected a file, or a folder of torch.distributed.checkpoint with a file .metadata; pass the "
            "file that your loop saved the position in"
        )
    try:
        metadata = (
            _Unpickler(io.BytesIO(read_bounded(path / ".metadata", LARGEST, "DCP's metadata")))
            .load()
            .state
        )
        paths = metadata.get("planner_data") or {}
        nested: dict[Any, Any] = {}
        for index, place in metadata["storage_data"].items():
            kind = metadata["state_dict_metadata"][index.state["fqn"]]
            if "size" in (kind.state or {}):
                continue  # a tensor
            into = nested
            *outer, last = paths.get(index.state["fqn"], (index.state["fqn"],))
            for key in outer:
                into = into.setdefault(key, {})
            into[last] = _read_entry(path / place.state["relative_path"], place.state)
        return nested
    except Exception as error:
        _refuse(path, error)


def _read_entry(path: Path, place: Mapping[str, Any]) -> Any:
    """A value that torch.distributed.checkpoint saved at a place of a file."""
    if place.get("transform_descriptors"):
        raise ValueError(f"{path} is compressed or encrypted; save the position as JSON")
    if place["length"] > LARGEST:
        raise ValueError(f"an entry of {path} has {place['length']:,} bytes")
    with path.open("rb") as file:
        file.seek(place["offset"])
        return _read_zip(io.BytesIO(file.read(place["length"])), path)


def _refuse(path: Path, error: Exception) -> NoReturn:
    raise ValueError(
        f"{path}: expected a loader's state_dict() as JSON, a file of torch.save or pickle.dump, or a folder of "
        f"torch.distributed.checkpoint, found {type(error).__name__}: {error}"
    ) from error
