"""The command line of `tokenmill show`, and places as users write them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tokenmill.feed.loader_config import LoaderConfig, Packing
from tokenmill.humanize import counted
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.packings import find_packing
from tokenmill.store.files import LARGEST, read_bounded
from tokenmill.store.shards import Split

REQUIRED = ("split", "seq_len", "packing")
STATED = ("split", "seq_len", "packing", "long_documents", "shuffle", "seed")  # the settings in a loader's state


@dataclass(frozen=True)
class Show:
    """Show what the model saw: a row, a batch, a training step or a document, decoded."""

    # the token set's folder or address, or a mixture's TOML file
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    row: str | None = None  # a row of the global order, from 0; or a place epoch:window:row, source/... in a mixture
    document: str | None = None  # a document of the split, from 0 (source/... in a mixture), and when it was seen
    batch: int | None = None  # what one rank got at this call, from 0
    step: int | None = None  # what all ranks got at this call, from 0
    batch_size: int | None = None  # as in training: rows of a rank at each call; for a step, times accumulation passes
    world_size: int | None = None  # as in training: the number of ranks
    rank: int | None = None  # the rank whose batch to show; by default the only one
    since: tuple[int, str] | None = None  # a checkpoint's step, and its place or state file, to count batches from
    until: str | None = None  # with --document: search up to this place or state file; by default epoch 0 of its source
    split: Split = "train"  # which split
    view: str | None = None  # as in training: the name of a view of the set; by default that of the state file
    columns: str | None = None  # also print a table of these columns of the rows' documents, as score,language; or all
    seq_len: int | None = None  # as in training: tokens of an input; by default that of the state file
    packing: Packing | str = "best_fit"  # as in training
    long_documents: LongDocuments = LoaderConfig.long_documents  # as in training
    shuffle: bool = LoaderConfig.shuffle  # as in training
    seed: int = LoaderConfig.seed  # as in training
    skip_rows: tuple[str, ...] = ()  # as in training, from its beginning
    manifest: str | None = None  # if the set has grown: its manifest when training began the epoch
    cache_dir: str | None = None  # where to cache blocks of a remote set; by default TOKENMILL_CACHE
    ids: bool = False  # also print token ids
    full: bool = False  # print whole texts, even for many rows

    def __post_init__(self) -> None:
        given = self._asked()
        if not given:
            raise ValueError("expected one of --row, --document, --batch and --step, found none; --row 0 is the first")
        if len(given) > 1:
            flags = ", ".join(f"--{name}" for name in given)
            raise ValueError(f"expected one of --row, --document, --batch and --step, found {flags}")
        flag, value = given[0], getattr(self, given[0])
        if flag in ("batch", "step") and value < 0:
            raise ValueError(f"--{flag} counts from 0, found {value}")
        if flag == "document" and not str(value).rpartition("/")[2].isdecimal():
            raise ValueError(f"--document must be a number from 0, or web/7 in a mixture, not {value!r}")
        if self.since is not None and (flag not in ("batch", "step") or value < self.since[0]):
            raise ValueError(f"--since {self.since[0]} needs a --step or --batch of at least {self.since[0]}")
        if self.since is not None and find_packing(self.packing).per_rank:
            raise ValueError(f"--since needs places, which rows of {self.packing} do not have; leave it out")
        if self.until is not None and flag != "document":
            raise ValueError("--until needs a --document")
        row_of_rank = flag == "row" and find_packing(self.packing).per_rank
        if flag in ("batch", "step"):
            self._require(["batch_size", "world_size"], f"--{flag}")
        elif row_of_rank:
            self._require(["world_size"], f"--row with packing {self.packing}")
        if (flag == "batch" or row_of_rank) and self.rank is None and (self.world_size or 1) > 1:
            raise ValueError(f"--{flag} needs --rank: each of {self.world_size:,} ranks got other rows")

    def _asked(self) -> list[str]:
        return [name for name in ("row", "document", "batch", "step") if getattr(self, name) is not None]

    def require_seq_len(self) -> None:
        """ValueError if the rows that are asked for depend on a seq_len that was not given."""
        asked = "until" if self.document is not None else self._asked()[0]
        if getattr(self, asked) is not None:
            self._require(["seq_len"], f"--{asked}")

    def _require(self, names: list[str], needed_by: str) -> None:
        if missing := [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is None]:
            raise ValueError(
                f"{needed_by} needs {' and '.join(missing)}, as in training: which rows these are depends on "
                f"{'it' if len(missing) == 1 else 'them'}"
            )

    @property
    def loader(self) -> LoaderConfig:
        """The settings of the training run, checked as a loader checks them.

        Those that were not given are not needed for what is asked for: their values here decide nothing that is shown.
        """
        names = ["batch_size", "seq_len", "split", "view", "packing", "long_documents", "shuffle", "seed", "skip_rows"]
        names += ["rank", "world_size", "tokens", "cache_dir"]
        settings = {name: getattr(self, name) for name in names}
        for name, value in (("batch_size", 1), ("seq_len", 2048), ("rank", 0), ("world_size", 1)):
            settings[name] = value if settings[name] is None else settings[name]
        return LoaderConfig(**settings)


def read_state(flag: str, name: str, expected: str, split: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A loader's state from a file, and the settings in it; of get_batch's loaders, that of this split.

    Raises ValueError if it is not a loader's state.
    """
    path = Path(name)
    if not path.exists():
        raise FileNotFoundError(f"{flag} {name}: expected {expected}, found no such file")
    try:
        state: dict[str, Any] = json.loads(read_bounded(path, LARGEST, "a loader's state_dict() as JSON"))
        if "loaders" in state:
            state = _of_one_loader(flag, name, [json.loads(text) for text in state["loaders"]], split)
        return state, {key: state[key] for key in STATED if key in state or key in REQUIRED}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{flag} {name}: expected a loader's state_dict() as JSON, found {error!r}") from error


def _of_one_loader(flag: str, name: str, states: list[dict[str, Any]], split: str) -> dict[str, Any]:
    """The state of the loader of a split, of those that get_batch keeps. ValueError unless there is exactly one."""
    found = [state for state in states if state["split"] == split]
    if len(found) != 1:
        raise ValueError(
            f"{flag} {name}: get_batch had {counted(len(found), 'loader')} of split {split}; save the position of the "
            'one that you mean, json.loads(state["loaders"][i]), in a file of its own'
        )
    return found[0]


def require_as_stated(config: Show, flag: str, settings: dict[str, Any]) -> None:
    """Raises ValueError if an option was given and the state of `flag` has another value."""
    for name, value in settings.items():
        given = getattr(config, name)
        if given not in (value, getattr(Show, name)):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} {given}, but the state of {flag} has {value}; leave {option} out")


def numbers_of(flag: str, row: str, lengths: tuple[int, ...]) -> list[int]:
    """Parses a row's number, or its epoch, window and row. `lengths` are the allowed numbers of parts."""
    parts = row.replace(",", "").split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) not in lengths:
        forms = {1: "a number", 3: "a place as 0:12:100 (epoch:window:row)"}
        raise ValueError(f"{flag} must be {', or '.join(forms[length] for length in lengths)}, not {row!r}")
    return [int(part) for part in parts]
