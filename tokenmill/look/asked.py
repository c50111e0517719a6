"""What `tokenmill show` is asked for: its settings, and places as they are written."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tokenmill.batches.config import LoaderConfig, Packing
from tokenmill.rows.packing import LongDocuments
from tokenmill.store.files import LARGEST, read_bounded
from tokenmill.store.shards import Split

STATED = ("split", "seq_len", "packing", "long_documents", "shuffle", "seed")  # of the settings, in a loader's state


@dataclass(frozen=True)
class Show:
    """Shows what the model saw: a row, a batch, a training step or a document, decoded."""

    # the token set's folder or address, or a mixture's TOML file
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    row: str | None = None  # a row of the global order, from 0; or its place, epoch:window:row, source/... of a mixture
    document: str | None = None  # a document of the split, from 0, source/... of a mixture; and when it was seen
    batch: int | None = None  # what one rank got at this call, the first being 0
    step: int | None = None  # what all ranks got at this call, the first being 0
    batch_size: int = 8  # rows of a rank at each call (of a step: times the passes that are accumulated)
    world_size: int = 1  # ranks
    rank: int = 0  # whose batch
    since: tuple[int, str] | None = None  # a checkpoint's step, and its place or state file, to count batches from
    until: str | None = None  # of a document: a place or state file to look up to; by default its source's epoch 0
    split: Split = "train"  # of which split
    seq_len: int = 2048  # tokens of an input
    packing: Packing = LoaderConfig.packing  # as in the training
    long_documents: LongDocuments = LoaderConfig.long_documents  # as in the training
    shuffle: bool = LoaderConfig.shuffle  # as in the training
    seed: int = LoaderConfig.seed  # as in the training
    skip_rows: tuple[str, ...] = ()  # as in the training, from its beginning on
    manifest: str | None = None  # the set as it was when training began its epoch, of a set that has grown since
    cache_dir: str | None = None  # where blocks of a set at an address are kept; by default as TOKENMILL_CACHE says
    ids: bool = False  # token ids too
    full: bool = False  # whole texts, also where there are many rows

    def __post_init__(self) -> None:
        asked = [name for name in ("row", "document", "batch", "step") if getattr(self, name) is not None]
        if not asked:
            raise ValueError("expected one of --row, --document, --batch and --step, found none; --row 0 is the first")
        if len(asked) > 1:
            flags = ", ".join(f"--{name}" for name in asked)
            raise ValueError(f"expected one of --row, --document, --batch and --step, found {flags}")
        if asked[0] in ("batch", "step") and getattr(self, asked[0]) < 0:
            raise ValueError(f"--{asked[0]} counts from 0, found {getattr(self, asked[0])}")
        if asked == ["document"] and not str(self.document).rpartition("/")[2].isdecimal():
            raise ValueError(f"--document must be a number from 0 on, of a mixture web/7, not {self.document!r}")
        if self.since is not None and (asked[0] not in ("batch", "step") or getattr(self, asked[0]) < self.since[0]):
            raise ValueError(f"--since {self.since[0]} is for a --step or --batch from {self.since[0]} on")
        if self.since is not None and self.packing == "nanochat":
            raise ValueError("--since needs places, which nanochat's rows have none of; leave it out")
        if self.until is not None and asked != ["document"]:
            raise ValueError("--until is for a --document")

    @property
    def loader(self) -> LoaderConfig:
        """The settings of the training, checked as the loader does."""
        names = ["batch_size", "seq_len", "split", "packing", "long_documents", "shuffle", "seed", "skip_rows"]
        names += ["rank", "world_size", "tokens", "cache_dir"]
        return LoaderConfig(**{name: getattr(self, name) for name in names})


def read_state(flag: str, told: str, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A loader's state from a file, and the settings that it has. ValueError where it is none."""
    path = Path(told)
    if not path.exists():
        raise FileNotFoundError(f"{flag} {told}: expected {what}, found no such file")
    try:
        state: dict[str, Any] = json.loads(read_bounded(path, LARGEST, "a loader's state_dict() as JSON"))
        return state, {name: state[name] for name in STATED}
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{flag} {told}: expected a loader's state_dict() as JSON, found {error!r}") from error


def require_as_stated(config: Show, flag: str, of_state: dict[str, Any]) -> None:
    """ValueError where a setting was given, and the state has another."""
    for name, value in of_state.items():
        given = getattr(config, name)
        if given not in (value, getattr(Show, name)):
            asked = f"--{name.replace('_', '-')}"
            raise ValueError(f"{asked} {given}, but the state of {flag} is of {value}; leave {asked} out")


def numbers_of(flag: str, row: str, lengths: tuple[int, ...]) -> list[int]:
    """A row's number, alone, or its epoch, window and row; of these the `lengths` that make sense."""
    parts = row.replace(",", "").split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) not in lengths:
        what = {1: "a number", 3: "a place as 0:12:100 (epoch:window:row)"}
        raise ValueError(f"{flag} must be {', or '.join(what[length] for length in lengths)}, not {row!r}")
    return [int(part) for part in parts]
