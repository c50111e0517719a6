"""Position: what a checkpoint stores about the data: the next row, and what must match for it to have a meaning.

    version 3, fingerprint 1bd4..., split train, packing best_fit, long_documents split, shuffle true, seed 1337
    order_version 2                               1 if the run began with tokenmill 0.3.0, and with nanochat
    seq_len 2048, tokens_seen 25165824            of all ranks, since training began
    turns 12288, asked 83ab...                    of the current segment: its turns, and a hash of its weights' inputs
    segments {tokens, seq_len, weights, places}   one list each, an item for every segment since training began; seq_len
                has the log of the run in the segment too (run_log.py)
    sources  {name, manifest, seq_len, epoch, window, row, ...}      one list each, an item for every source

One token set is one source, named "". The columns of a source:

    manifest, seq_len, epoch, window, row         its cursor; with nanochat, row counts the rows of each rank
                manifest is a digest; with views, [[0, digest, the view's digest], [4, digest, another's]] if the
                epoch went on with another view at its window 4
    pasts       [[0, 3, [4096, 200]]] if the row length changed within window 3 of epoch 0 (packers.py), else []
    began       2048; 4096 if an epoch of concat began with rows of that length
    skip_rows   ["0:4:100-163"], or []
    tokens_seen, rows, segment_tokens             how much of it was used, in all and in the current segment
    drawn_from  the name that its random orders depend on

The keys are the same for every loader, and tables are stored by column. torch.distributed.checkpoint needs that: it
loads exactly the keys that a new loader's position has, and it loads a list as one value, whatever its length.

`upgrade` converts positions of tokenmill 0.3.0, which had two formats, to this one.
"""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tokenmill.checks import LARGEST, LONGEST_ROW, whole_number
from tokenmill.rows.order import ORDER_VERSION
from tokenmill.rows.packers import Past
from tokenmill.rows.skip_rows import Skipped, format_ranges, format_skipped, parse_ranges, parse_skipped

VERSION = 3
ALWAYS = ("version", "fingerprint", "split", "packing")
OF_RUN = ("order_version", "seq_len", "tokens_seen", "turns", "asked", "segments", "sources")
# only in the positions of some loaders
IDENTITIES = ("long_documents", "shuffle", "seed", "world_size", "rows_a_call", "worker", "workers", "window_tokens")
# of each source: its cursor, and how much of it was used
OF_SPLIT = ("manifest", "seq_len", "epoch", "window", "row", "began", "pasts", "skip_rows", "tokens_seen")
OF_SOURCE = ("name", *OF_SPLIT, "drawn_from", "rows", "segment_tokens")

Pasts = Mapping[tuple[int, int], Sequence[Past]]  # by (epoch, window)


class Documents(NamedTuple):
    """What an epoch goes over from its window `begin` on: the digests of a manifest and of a view, "" for none."""

    begin: int
    manifest: str
    view: str = ""


def identity_of(fingerprint: str, split: str, packing: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """What must match for a position of planned rows to mean the same row."""
    return {"version": VERSION, "fingerprint": fingerprint, "split": split, "packing": packing, **order}


def columns(names: Iterable[str], lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A table stored by column, from lines that have these names as keys."""
    lines = list(lines)
    return {name: [line[name] for line in lines] for name in names}


def order_version_of(state: Mapping[str, Any]) -> int:
    """The order of rows that a position is of: a run that began with tokenmill 0.3.0 continues in its order."""
    found = state.get("order_version", ORDER_VERSION)  # a position without one is refused later
    return whole_number("order_version of the position", found, 1, ORDER_VERSION)


def upgrade(state: Any) -> dict[str, Any]:
    """Converts a position of any version to the current format. Raises ValueError if it is not a position.

    A position of an unknown version, or of one with another order of rows, is returned unchanged: `require_identity`
    then rejects it.
    """
    if not isinstance(state, dict):
        raise ValueError(f"expected a position, the dict that state_dict made, found {state!r}")
    position: dict[str, Any] = state
    if position.get("version") != 2:
        return position
    position = position | {"version": 3, "order_version": 1}
    if "sources" in position:
        return position
    if missing := {"manifest", "seq_len", "tokens_seen"} - position.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing from the position; state_dict did not make it")
    per_rank = "rows" in position
    seq_len = whole_number("seq_len of the position", position["seq_len"], 1, LONGEST_ROW)
    tokens = whole_number("tokens_seen of the position", position["tokens_seen"], 0)
    cursor = {"epoch": 0, "window": 0, "row": position["rows"]} if per_rank else {}
    line = {key: position[key] for key in OF_SPLIT if key in position} | cursor
    if missing := set(OF_SPLIT) - line.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing from the position; state_dict did not make it")
    line |= {"name": "", "drawn_from": "", "rows": tokens // seq_len, "segment_tokens": 0}
    strict = {"mixture": position["manifest"]} if per_rank or "workers" in position else {}
    own = {key: value for key, value in position.items() if key not in (*OF_SPLIT, "rows")}
    run = {"seq_len": seq_len, "tokens_seen": tokens, "turns": 0, "asked": "", "segments": {}}
    return own | strict | run | {"sources": columns(OF_SOURCE, [line])}


@dataclass(frozen=True)
class Position:
    """The position of one source, without its identity. Windows are (epoch, window of the epoch)."""

    documents: tuple[Documents, ...]  # that the epoch of `place` goes over, in the order of their windows
    seq_len: int
    place: dict[str, int]  # epoch, window, row
    tokens_seen: int
    skipped: Skipped
    pasts: Pasts
    began: int | None = None  # the seq_len that an epoch of `concat` began with, if it was another

    @property
    def window(self) -> tuple[int, int]:
        return self.place["epoch"], self.place["window"]

    @property
    def begins_epoch(self) -> bool:
        """Whether no row of the current epoch was used."""
        used = any(past.used for past in self.pasts.get(self.window, ()))
        return not (self.place["window"] or self.place["row"] or used)

    def as_dict(self) -> dict[str, Any]:
        """The columns OF_SPLIT, as plain numbers and strings."""
        cursor = {"manifest": _format_documents(self.documents), "seq_len": self.seq_len} | self.place
        began = self.seq_len if self.began is None else self.began
        changes = {"began": began, "pasts": _format_pasts(self.pasts), "skip_rows": format_skipped(self.skipped)}
        return cursor | changes | {"tokens_seen": self.tokens_seen}

    def skipping(self, skipped: Skipped) -> "Position":
        """The same place, but skipping these rows from here on. A window that was packed again keeps its past."""
        here = self.pasts.get(self.window, ())
        pasts = {self.window: here} if any(past.used for past in here) else {}
        return replace(self, skipped=skipped, pasts=pasts)

    def at_length(self, seq_len: int, cut: bool) -> "Position":
        """The same place with rows of `seq_len` + 1 from here on: what is left of the window is packed again.

        Rows to skip were named at the old length, so their windows get a past with that length too. Rows that are `cut`
        (concat) continue past the ends of slices, so all windows of an epoch are first cut as the first one was.
        """
        if seq_len == self.seq_len:
            return self
        pasts, row = {window: list(past) for window, past in self.pasts.items()}, self.place["row"]
        skipped = {window: ranges for window, ranges in self.skipped.items() if window >= self.window}
        for window in skipped.keys() | ({self.window} if row else set()):
            used = row if window == self.window else 0
            first = [] if self.began is None or window[0] != self.place["epoch"] else [Past(self.began + 1, 0)]
            pasts.setdefault(window, first).append(Past(self.seq_len + 1, used, tuple(skipped.get(window, ()))))
        place = self.place | {"row": 0}
        begun = not self.begins_epoch or any(window[0] == place["epoch"] for window in skipped)
        began = (self.began or self.seq_len) if cut and begun else None
        began = None if began == seq_len else began
        return replace(self, seq_len=seq_len, place=place, skipped={}, pasts=pasts, began=began)

    def without_done_windows(self) -> "Position":
        """The same position without the pasts of windows that are done."""
        return replace(self, pasts={window: past for window, past in self.pasts.items() if window >= self.window})


def cut_by(epoch: int, began: tuple[int, int] | None, pasts: Pasts) -> int | None:
    """The row length that first cuts all windows of an epoch of `concat`; None if it is that of the current rows."""
    if began is not None and began[0] == epoch:
        return began[1]
    return next((past[0].row_len for window, past in sorted(pasts.items()) if window[0] == epoch and past), None)


def pasts_after_restart(pasts: Pasts, epoch: int) -> Pasts:
    """The pasts that remain if an epoch is begun from its first row: only rows to skip, as they were first named."""
    remaining = {window: past for window, past in pasts.items() if window[0] > epoch}
    for window, (first, *_) in pasts.items():
        if window[0] == epoch and first.skipped:
            remaining[window] = [Past(first.row_len, 0, first.skipped)]
    return remaining


def read_position(part: Mapping[str, Any]) -> Position:
    """The position of a source from its columns. Raises ValueError if `as_dict` did not make them."""
    if missing := set(OF_SPLIT) - part.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing from the position; state_dict did not make it")
    if not all(isinstance(part[key], list | tuple) for key in ("pasts", "skip_rows")):
        raise ValueError("pasts and skip_rows of the position must be lists; state_dict did not make it")
    seq_len = whole_number("seq_len of the position", part["seq_len"], 1, LONGEST_ROW)
    began = whole_number("began of the position", part["began"], 1, LONGEST_ROW)
    return Position(
        documents_of(part["manifest"]),
        seq_len,
        {key: whole_number(f"{key} of the position", part[key], 0) for key in ("epoch", "window", "row")},
        whole_number("tokens_seen of the position", part["tokens_seen"], 0),
        parse_skipped(part["skip_rows"]),
        _parse_pasts(part["pasts"]),
        None if began == seq_len else began,
    )


def documents_of(manifest: Any) -> tuple[Documents, ...]:
    """What the epoch of a source goes over, from the column `manifest`. ValueError if `as_dict` did not make it."""
    if isinstance(manifest, str):
        return (Documents(0, manifest),)
    try:
        parts = [Documents(whole_number("a window", begin, 0), *map(_digest, rest)) for begin, *rest in manifest]
        in_order = [part.begin for part in parts] == sorted({part.begin for part in parts})
        if not (parts and parts[0].begin == 0 and in_order):
            raise ValueError("expected windows that ascend from 0")
        return tuple(parts)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "manifest of the position must be a digest, or [[window, digest of a manifest, digest of a view], ...] as "
            f"state_dict makes it, found {reprlib.repr(manifest)}: {error}"
        ) from error


def _digest(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a digest, found {value!r}")
    return value


def _format_documents(documents: Sequence[Documents]) -> str | list[list[Any]]:
    plain = len(documents) == 1 and not documents[0].view
    return documents[0].manifest if plain else [list(part) for part in documents]


def require_identity(state: dict[str, Any], identity: dict[str, Any], where: object) -> None:
    """Raises ValueError, with both values, if a position does not have the identity of a loader of `where`."""
    if "loaders" in state:
        raise ValueError(
            "this is the state of get_batch's loaders, for tokenmill.load_state_dict; "
            'the position of one of them is json.loads(state["loaders"][0])'
        )
    needed = (*ALWAYS, *OF_RUN) if state.get("version") == VERSION else ALWAYS
    if missing := [key for key in needed if key not in state]:
        raise ValueError(
            f"{', '.join(missing)} is missing from the position; state_dict of this kind of loader did not make it"
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
            return "a newer tokenmill made it, so load it with that version"
        return "its rows came in another order (shard by shard): continue with tokenmill 0.2.0, or start again"
    if key == "window_tokens":
        return "its windows have another size: pass a cache_bytes that holds two of them (docs/remote.md)"
    return "load it with the settings and token set that it was saved with"


def _format_pasts(pasts: Pasts) -> list[list[Any]]:
    return [
        [*window, *([past.row_len - 1, past.used, *format_ranges(past.skipped)] for past in many)]
        for window, many in sorted(pasts.items())
    ]


def _parse_pasts(pasts: list[list[Any]]) -> Pasts:
    def number(value: Any, smallest: int = 0, largest: int = LARGEST) -> int:
        return whole_number("a number in the pasts of the position", value, smallest, largest)

    def past(seq_len: Any, used: Any, *texts: Any) -> Past:
        return Past(number(seq_len, 1, LONGEST_ROW) + 1, number(used), tuple(parse_ranges(texts)))

    try:
        return {(number(epoch), number(window)): [past(*one) for one in many] for epoch, window, *many in pasts}
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"pasts of the position must be as state_dict makes them, [[epoch, window, [seq_len, used, rows ...]]]: "
            f"{error}"
        ) from error
