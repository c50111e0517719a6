"""Finds the positions in a checkpoint, by their shape, wherever your training loop put them.

    positions_in("state.json")      a loader's state_dict() as JSON, or JSON that contains one
    positions_in("ckpt.pt")         what torch.save or pickle.dump wrote: nanoGPT's, Lightning's
    positions_in("step_500/")       a folder of torch.distributed.checkpoint

Pickles are read without importing or calling anything that they name: objects of unknown classes
become `Unknown`, and tensors are not read. So a checkpoint can run no code here, needs no class of
yours, and reading it takes little memory.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tokenmill.addresses import path_of
from tokenmill.messages import counted
from tokenmill.rows.position import read_position
from tokenmill.store.files import read_bounded

LARGEST = 1 << 30  # bytes of a file, or of a checkpoint's entries without its tensors
PICKLE = b"\x80"  # the first byte of a pickle
DEEPEST = 32  # levels of dicts and lists in which positions are searched


class SavedPosition(NamedTuple):
    """A position in a checkpoint."""

    where: str  # as data.get_batch[0]
    position: dict[str, Any]
    purpose: str = ""  # for which get_batch was called

    @property
    def split(self) -> Any:
        """The split that the position is of. ValueError if it is no position."""
        _, identity = read_position(self.position)
        return identity.get("split")


class Unknown(dict[Any, Any]):
    """An object of a class that is not imported.

    It has its arguments, its items and, in `state`, its attributes.
    """

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


def positions_in(path: Path) -> list[SavedPosition]:
    """All different positions in a checkpoint. Those of get_batch's loaders are listed one by one.

    Raises ValueError if the file is of another kind, or cannot be read.
    """
    positions: list[dict[str, Any]] = []
    different = []
    for saved in _search(_read(path), "", DEEPEST, {}):
        if saved.position not in positions:
            positions.append(saved.position)
            different.append(saved)
    return different


def position_of(flag: str, path: Path, split: str | None, expected: str) -> dict[str, Any]:
    """The position of a split; without a split, the only position, or that of training."""
    path = path_of(path)
    if not path.exists():
        raise FileNotFoundError(f"{flag} {path}: expected {expected}, found no such file")
    positions = positions_in(path)
    wanted = split or "train"
    fitting = [saved for saved in positions if saved.split == wanted]
    if wanted == "train":  # get_batch may also evaluate on the training split
        of_training = [saved for saved in fitting if saved.purpose != "eval"]
        fitting = of_training or fitting
    if len(fitting) == 1:
        return fitting[0].position
    if split is None and len(positions) == 1:
        return positions[0].position
    if not positions:
        raise ValueError(f"{flag} {path}: expected {expected}, found none in it")
    count = counted(len(fitting), "position")
    listed = []
    for saved in positions:
        where = saved.where or "the whole file"
        listed.append(f"{where} of split {saved.split}")
    names = ", ".join(listed)
    raise ValueError(
        f"{flag} {path}: expected one position of split {wanted}, found {count} of it among "
        f"{names}; save the one that you mean as JSON in a file of its own"
    )


def _search(
    value: Any, where: str, levels: int, seen: dict[int, Any], purpose: str = ""
) -> Iterator[SavedPosition]:
    """The positions in a value of any kind.

    `seen` has what was searched, by id: objects may contain each other.
    """
    if not isinstance(value, Mapping | list | tuple) or not levels or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Unknown):
        yield from _search(value.state, where, levels - 1, seen)
    if not isinstance(value, Mapping):
        items = list(enumerate(value))
    elif _is_position(value):
        yield SavedPosition(where, {"tokenmill": value["tokenmill"]}, purpose)
        return
    elif isinstance(value.get("get_batch"), str):
        yield from _search_loaders(value["get_batch"], where or "get_batch", seen)
        return
    else:
        items = list(value.items())
    for key, inner in items:
        place = f"{where}.{key}" if where else str(key)
        yield from _search(inner, place, levels - 1, seen)


def _is_position(value: Mapping[Any, Any]) -> bool:
    """Whether it is what a loader's state_dict() gives: JSON under one key."""
    text = value.get("tokenmill")
    return isinstance(text, str) and text.startswith("{")


def _search_loaders(text: str, where: str, seen: dict[int, Any]) -> Iterator[SavedPosition]:
    """The positions of get_batch's loaders: pairs of the arguments of a call, and a position."""
    for number, pair in enumerate(_parse(text)):
        if not isinstance(pair, list) or len(pair) != 2:
            continue
        arguments, position = pair
        if isinstance(arguments, dict):
            purpose = str(arguments.get("purpose"))
            yield from _search(position, f"{where}[{number}]", 2, seen, purpose)


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
        if data.startswith(PICKLE):
            return _Unpickler(io.BytesIO(data)).load()
        return json.loads(data)
    except Exception as error:
        _refuse(path, error)


def _read_zip(file: Any, path: Path) -> Any:
    """The content of torch.save's file without its tensors."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith("data.pkl")]
        if not names or archive.getinfo(names[0]).file_size > LARGEST:
            raise ValueError(f"{path} is an archive, but not torch.save's")
        return _Unpickler(io.BytesIO(archive.read(names[0]))).load()


def _read_folder(path: Path) -> dict[tuple[Any, ...], Any]:
    """What torch.distributed.checkpoint saved besides tensors, as nested dicts."""
    if not (path / ".metadata").is_file():
        raise ValueError(
            f"{path}: expected a file, or a folder of torch.distributed.checkpoint with a file "
            ".metadata; pass the file that your loop saved the position in"
        )
    try:
        data = read_bounded(path / ".metadata", LARGEST, "DCP's metadata")
        metadata = _Unpickler(io.BytesIO(data)).load().state
        paths = metadata.get("planner_data") or {}
        nested: dict[Any, Any] = {}
        for index, place in metadata["storage_data"].items():
            name = index.state["fqn"]
            kind = metadata["state_dict_metadata"][name]
            is_tensor = "size" in (kind.state or {})
            if is_tensor:
                continue
            *outer, last = paths.get(name, (name,))
            parent = nested
            for key in outer:
                parent = parent.setdefault(key, {})
            parent[last] = _read_entry(path / place.state["relative_path"], place.state)
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
        f"{path}: expected a loader's state_dict() as JSON, a file of torch.save or pickle.dump, "
        f"or a folder of torch.distributed.checkpoint, found {type(error).__name__}: {error}"
    ) from error
