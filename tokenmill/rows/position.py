"""What a checkpoint knows of the data: the next row, and what must match for that to mean anything.

identity    version 2, fingerprint 1bd4..., split train, packing best_fit, long_documents split, shuffle true, seed 1337
place       manifest 57ab..., seq_len 2048, epoch 0, window 3, row 512
pasts       [[0, 3, [4096, 200]]] where the length of rows changed within window 3 of epoch 0 (repack.py), else []
began       2048; 4096 where an epoch of concat began with rows of that length
skip_rows   ["0:4:100-163"], or []
tokens_seen 25165824, of all ranks, since training began

All keys are always there, and no value is a dict: torch.distributed.checkpoint loads the keys that a fresh loader's
position has, and no others, and a list as one value, however long.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.checks import LARGEST, LONGEST_ROW, whole_number
from tokenmill.rows.repack import Past
from tokenmill.rows.skipped import Skipped, format_ranges, format_skipped, parse_ranges, parse_skipped

VERSION = 2
ALWAYS = ("version", "fingerprint", "split", "packing")
# of some loaders
IDENTITIES = ("long_documents", "shuffle", "seed", "world_size", "rows_a_call", "worker", "workers", "window_tokens")

Pasts = Mapping[tuple[int, int], Sequence[Past]]  # of (epoch, window)


def identity_of(fingerprint: str, split: str, packing: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """What must match for a position of planned rows to mean the same row."""
    return {"version": VERSION, "fingerprint": fingerprint, "split": split, "packing": packing, **order}


@dataclass(frozen=True)
class Position:
    """A position without its identity. Windows are (epoch, window of the epoch)."""

    manifest: str
    seq_len: int
    place: dict[str, int]  # epoch, window, row; with nanochat rows
    tokens_seen: int
    skipped: Skipped
    pasts: Pasts
    began: int | None = None  # the seq_len that the epoch began with, where it is another, and rows are cut by it

    @property
    def window(self) -> tuple[int, int]:
        return self.place["epoch"], self.place["window"]

    @property
    def begins_epoch(self) -> bool:
        """Whether no row of its epoch was dealt."""
        gone = any(past.dealt for past in self.pasts.get(self.window, ()))
        return not (self.place["window"] or self.place["row"] or gone)

    def as_dict(self, identity: dict[str, Any]) -> dict[str, Any]:
        """A position, of plain numbers and texts."""
        told = identity | {"manifest": self.manifest, "seq_len": self.seq_len} | self.place
        began = self.seq_len if self.began is None else self.began
        left = {"began": began, "pasts": _format_pasts(self.pasts), "skip_rows": format_skipped(self.skipped)}
        return told | left | {"tokens_seen": self.tokens_seen}

    def skipping(self, skipped: Skipped) -> "Position":
        """The same place, with other rows left out from here on; in a window that was packed anew, besides."""
        here = self.pasts.get(self.window, ())
        pasts = {self.window: here} if any(past.dealt for past in here) else {}
        return replace(self, skipped=skipped, pasts=pasts)

    def at_length(self, seq_len: int, cut: bool) -> "Position":
        """The same place where rows are `seq_len` + 1 from here on: what is left of the window is packed anew.

        Rows that are to be skipped were named at the old length, so their windows have a past of it too. Rows that
        are `cut` (concat) go over the ends of slices, so all windows of an epoch are first cut as its first one was.
        """
        if seq_len == self.seq_len:
            return self
        pasts, row = {window: list(past) for window, past in self.pasts.items()}, self.place["row"]
        gone = {window: ranges for window, ranges in self.skipped.items() if window >= self.window}
        for window in gone.keys() | ({self.window} if row else set()):
            dealt = row if window == self.window else 0
            first = [] if self.began is None or window[0] != self.place["epoch"] else [Past(self.began + 1, 0)]
            pasts.setdefault(window, first).append(Past(self.seq_len + 1, dealt, tuple(gone.get(window, ()))))
        place = self.place | {"row": 0}
        begun = not self.begins_epoch or any(window[0] == place["epoch"] for window in gone)
        began = (self.began or self.seq_len) if cut and begun else None
        began = None if began == seq_len else began
        return replace(self, seq_len=seq_len, place=place, skipped={}, pasts=pasts, began=began)

    def still_to_come(self) -> "Position":
        """Without the pasts of windows that are done."""
        return replace(self, pasts={window: past for window, past in self.pasts.items() if window >= self.window})


def cut_by(epoch: int, began: tuple[int, int] | None, pasts: Pasts) -> int | None:
    """The row length by which all windows of an epoch of cut rows are cut first; None for that of its rows."""
    if began is not None and began[0] == epoch:
        return began[1]
    return next((past[0].row_len for window, past in sorted(pasts.items()) if window[0] == epoch and past), None)


def begun_anew(pasts: Pasts, epoch: int) -> Pasts:
    """What stays where an epoch is begun from its first row: rows to be skipped, as they were named first."""
    stay = {window: past for window, past in pasts.items() if window[0] > epoch}
    for window, (first, *_) in pasts.items():
        if window[0] == epoch and first.skipped:
            stay[window] = [Past(first.row_len, 0, first.skipped)]
    return stay


def read_position(state: dict[str, Any], identity: dict[str, Any], keys: Sequence[str], where: object) -> Position:
    """A position that `as_dict` made, with a place of these keys.

    ValueError, naming both values, where it is of another identity than that of a loader of `where`.
    """
    require_identity(state, identity, where)
    if missing := {"manifest", "seq_len", "tokens_seen", "began", "pasts", "skip_rows", *keys} - state.keys():
        raise ValueError(
            f"{', '.join(sorted(missing))} is missing from the position; it is not one that state_dict made"
        )
    if not all(isinstance(state[key], list | tuple) for key in ("pasts", "skip_rows")):
        raise ValueError("pasts and skip_rows of the position must be lists; it is not one that state_dict made")
    seq_len = whole_number("seq_len of the position", state["seq_len"], 1, LONGEST_ROW)
    began = whole_number("began of the position", state["began"], 1, LONGEST_ROW)
    return Position(
        str(state["manifest"]),
        seq_len,
        {key: whole_number(f"{key} of the position", state[key], 0) for key in keys},
        whole_number("tokens_seen of the position", state["tokens_seen"], 0),
        parse_skipped(state["skip_rows"]),
        _parse_pasts(state["pasts"]),
        None if began == seq_len else began,
    )


def require_identity(state: dict[str, Any], identity: dict[str, Any], where: object) -> None:
    """ValueError, naming both values, where a position is of another identity than that of a loader of `where`."""
    if "loaders" in state:
        raise ValueError(
            "this is the state of get_batch's loaders, for tokenmill.load_state_dict; "
            'the position of one of them is json.loads(state["loaders"][0])'
        )
    if missing := [key for key in ALWAYS if key in identity and key not in state]:
        raise ValueError(
            f"{', '.join(missing)} is missing from the position; it is not one that state_dict of such a loader made"
        )
    for key in [*identity, *(key for key in IDENTITIES if key in state and key not in identity)]:
        if state.get(key) != identity.get(key):
            raise ValueError(
                f"this position does not fit the loader: {key} is {reprlib.repr(state.get(key))} in the position, "
                f"{identity.get(key)!r} here ({where}); {_advice(key, state.get(key))}"
            )


def _advice(key: str, found: Any) -> str:
    if key == "version" and isinstance(found, int):
        if found > VERSION:
            return "it was made by a newer tokenmill, so load it with that"
        return "its rows came in another order (shard by shard): go on with tokenmill 0.2.0, or begin anew"
    if key == "window_tokens":
        return "its windows are of another size: give a cache_bytes that holds two of them (docs/remote.md)"
    return "load it with the settings and token set that it was saved with"


def _format_pasts(pasts: Pasts) -> list[list[Any]]:
    return [
        [*window, *([past.row_len - 1, past.dealt, *format_ranges(past.skipped)] for past in many)]
        for window, many in sorted(pasts.items())
    ]


def _parse_pasts(told: list[list[Any]]) -> Pasts:
    def number(value: Any, smallest: int = 0, largest: int = LARGEST) -> int:
        return whole_number("a number in the pasts of the position", value, smallest, largest)

    def past(seq_len: Any, dealt: Any, *texts: Any) -> Past:
        return Past(number(seq_len, 1, LONGEST_ROW) + 1, number(dealt), tuple(parse_ranges(texts)))

    try:
        return {(number(epoch), number(window)): [past(*one) for one in many] for epoch, window, *many in told}
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"pasts of the position must be as state_dict makes them, [[epoch, window, [seq_len, dealt, rows ...]]]: "
            f"{error}"
        ) from error
