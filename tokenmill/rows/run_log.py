"""The log of a run: its settings when it began, and each time that it was resumed with others.

    LogEntry(0, 32, 8, 0, [...])                  from the first token on, 32 rows on each of 8 ranks at a call
    LogEntry(16_777_216, 32, 4, 0)                from 16,777,216 tokens on, 4 ranks; the rest as before

With its log, a position says which rows each call before it had, and which rank got them: `tokenmill show --checkpoint`
reads it. A position stores the log in the column `seq_len` of its segments, beside the length of rows: 2048, or
[2048, [0, 32, 8, 0, [...]], [16777216, 32, 4, 0]] with the entries that begin in that segment. No new key is needed for
it, so torch.distributed.checkpoint loads the positions of older versions too.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenmill.checks import whole_number
from tokenmill.rows.position import OF_SPLIT

KEPT = 256  # entries; a position stays small, however often a run is resumed
OF_SOURCE = ("name", "drawn_from", "set_manifest", "set_view", *(key for key in OF_SPLIT if key != "tokens_seen"))
DECIDES_ROWS = ("name", "set_manifest", "set_view", "seq_len", "skip_rows")  # besides what follows from the place


class LogEntry(NamedTuple):
    """From a number of tokens on, calls of `batch_size` rows on each of `world_size` ranks.

    `batch_size` is 0 if the loader gives single rows, which a DataLoader makes batches of. `epochs` is the loader's, 0
    if it is endless. `sources` has the columns OF_SOURCE of each source at this moment: its cursor, the manifest and
    the view of its set. It is empty if only the other settings have changed.
    """

    tokens: int
    batch_size: int
    world_size: int
    epochs: int = 0
    sources: Sequence[Sequence[Any]] = ()

    @property
    def rows(self) -> int:
        """The rows that all ranks take at a call."""
        return self.batch_size * self.world_size

    def parts(self) -> dict[str, dict[str, Any]]:
        """The columns of each source, by name."""
        return {source[0]: dict(zip(OF_SOURCE, source, strict=True)) for source in self.sources}


def continued(log: Sequence[LogEntry], now: LogEntry) -> tuple[LogEntry, ...]:
    """The log of a run that continues as `now`.

    An entry is added if anything changed, or if the last call before took fewer rows than a whole one.
    """
    before = tuple(entry for entry in log if entry.tokens < now.tokens)
    stated = next((entry for entry in reversed(before) if entry.sources), None)
    same_rows = stated is not None and _decides_rows(stated) == _decides_rows(now)
    if before and same_rows and before[-1][1:4] == now[1:4] and not _is_short(before[-1], stated, now):
        return before
    return (*before, now._replace(sources=()) if same_rows else now)[-KEPT:]


def _decides_rows(entry: LogEntry) -> list[list[Any]]:
    return sorted([part[key] for key in DECIDES_ROWS] for part in entry.parts().values())


def _is_short(last: LogEntry, stated: LogEntry | None, now: LogEntry) -> bool:
    """Whether the last call before `now` took fewer rows than others."""
    seq_len = next((part["seq_len"] for part in stated.parts().values()), 0) if stated is not None else 0
    return bool(last.rows * seq_len) and (now.tokens - last.tokens) % (last.rows * seq_len) != 0


def with_log(position: dict[str, Any], log: Sequence[LogEntry]) -> dict[str, Any]:
    """The position with this log; unchanged if it has no segments, as before its first row."""
    segments = position["segments"]
    if not segments.get("tokens"):
        return position
    column: list[list[Any]] = [[seq_len] for seq_len in segments["seq_len"]]
    for entry in log:
        if entry.tokens == position["tokens_seen"]:
            continue  # no batch was returned with these settings yet, and perhaps none will be
        plain = [*entry[:4], *([[list(source) for source in entry.sources]] if entry.sources else [])]
        column[max(0, bisect_right(segments["tokens"], entry.tokens) - 1)].append(plain)
    items = [item if len(item) > 1 else item[0] for item in column]
    return position | {"segments": segments | {"seq_len": items}}


def split_seq_len(item: Any) -> tuple[Any, list[LogEntry]]:
    """The length of rows and the entries in an item of the column `seq_len`. ValueError if `with_log` did not make
    it.
    """
    if not isinstance(item, list | tuple):
        return item, []
    try:
        seq_len, *entries = item
        return seq_len, [_read(*entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise ValueError(
            "seq_len of a segment of the position must be a length, or [length, [tokens, batch_size, world_size, "
            f"epochs, sources], ...] as state_dict makes it, found {item!r:.200}: {error}"
        ) from error


def _read(tokens: Any, batch_size: Any, world_size: Any, epochs: Any, sources: Any = ()) -> LogEntry:
    if not all(isinstance(source, list | tuple) and len(source) == len(OF_SOURCE) for source in sources):
        raise ValueError(f"expected sources of {len(OF_SOURCE)} columns")
    numbers = (
        ("tokens", tokens, 0),
        ("batch_size", batch_size, 0),
        ("world_size", world_size, 1),
        ("epochs", epochs, 0),
    )
    tokens, batch_size, world_size, epochs = (whole_number(*number) for number in numbers)
    return LogEntry(tokens, batch_size, world_size, epochs, sources)


def log_of(position: Mapping[str, Any], name: str = "") -> tuple[LogEntry, ...]:
    """The log of a position of any version; () if it has none. `name` is what its only source is called now."""
    items = position.get("segments", {}).get("seq_len", [])
    found = [entry for item in items for entry in split_seq_len(item)[1]]
    if [entry.tokens for entry in found] != sorted({entry.tokens for entry in found}):
        raise ValueError(f"the log of the position must ascend by tokens, found {[entry.tokens for entry in found]}")
    if name:
        found = [
            entry._replace(sources=[[source[0] or name, *source[1:]] for source in entry.sources]) for entry in found
        ]
    return tuple(found)
