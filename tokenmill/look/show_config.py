"""The command line of `tokenmill show`, and places as users write them."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from tokenmill.feed.loader_config import LoaderConfig, Packing
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.packings import find_packing
from tokenmill.store.shards import Split

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
    checkpoint: str | None = None  # a checkpoint of the run, which says all settings: its file, or DCP's folder
    batch_size: int | None = None  # as in training: rows of a rank at each call; a checkpoint says it
    world_size: int | None = None  # as in training: the number of ranks; a checkpoint says it
    global_batch_size: int | None = None  # rows of all ranks in a step, if a step is several calls (accumulation)
    rank: int | None = None  # the rank whose batch to show; by default the only one
    since: tuple[int, str] | None = None  # a step, and its place or checkpoint, to count later steps from
    until: str | None = None  # with --document: search up to this place or checkpoint; by default epoch 0 of its source
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
        if self.checkpoint is not None and (self.since is not None or self.until is not None):
            raise ValueError("--checkpoint says all that --since and --until say; leave them out")
        if self.global_batch_size is not None and (flag != "step" or self.since is not None):
            raise ValueError("--global-batch-size is for --step, counted from the beginning of the run")
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise ValueError(f"--global-batch-size must be at least 1, found {self.global_batch_size}")

    def _asked(self) -> list[str]:
        return [name for name in ("row", "document", "batch", "step") if getattr(self, name) is not None]

    def require_settings(self) -> None:
        """ValueError if the rows that are asked for depend on a setting that neither a flag nor a checkpoint gave."""
        flag = self._asked()[0]
        row_of_rank = flag == "row" and find_packing(self.packing).per_rank
        asked = "until" if flag == "document" else flag
        if row_of_rank:
            self._require(["world_size"], f"--row with packing {self.packing}")
        elif flag in ("batch", "step") and self.global_batch_size is None:
            self._require(["batch_size", "world_size"], f"--{flag}")
        if (flag == "batch" or row_of_rank) and self.rank is None and (self.world_size or 1) > 1:
            raise ValueError(f"--{flag} needs --rank: each of {self.world_size:,} ranks got other rows")
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
        if self.checkpoint is not None and not find_packing(self.packing).per_rank:
            settings["rank"] = 0  # the run may have had more ranks at another time
        for name, value in (("batch_size", 1), ("seq_len", 2048), ("rank", 0), ("world_size", 1)):
            settings[name] = value if settings[name] is None else settings[name]
        return LoaderConfig(**settings)


def settings_of(state: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that its position says."""
    return {key: state[key] for key in STATED if key in state}


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
