"""RowTable: where the tokens of rows are, and reading them into arrays.

With every packing, a row is a few stretches of the shards' token streams. If a piece begins inside a document, a BOS is
inserted before it: the stretch starts one token earlier, and that token is overwritten. For example, a piece of 2
tokens that starts at token 3 of document 1, with offsets 0 4 9 in shard 2, is this many bytes of uint16:

    shard 2, bytes 12 to 18; its first token becomes BOS

At training time, stretches only have to be joined. `bytearray.join` of memoryview slices takes two thirds of the time
of copying each stretch into an array. Stretches are stored in arrays, 18 bytes each, and become Python numbers one
batch at a time.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tokenmill.cached import cached_property
from tokenmill.feed.loss_mask import LossMask
from tokenmill.feed.remote_rows import BlockGuard
from tokenmill.remote.cache import Cache
from tokenmill.store.shards import Shard


class RowTable:
    """Rows of `row_len` tokens: row r consists of the stretches offsets[r] to offsets[r + 1].

    A stretch is `size` bytes of the shard `source` from byte `begin`. If `bos` is set, its first token becomes BOS. Row
    r has pieces[r] stretches that are no filler, and filler[r] tokens that are; targets[r] of its targets bear loss.
    The first `quiet` tokens of a stretch bear none. `loss` says which tokens of text do (loss_mask.py).
    """

    def __init__(
        self,
        shards: list[Shard],
        row_len: int,
        bos_id: int,
        begins_with_bos: bool,
        *,
        offsets: np.ndarray,
        source: np.ndarray,
        begin: np.ndarray,
        size: np.ndarray,
        bos: np.ndarray,
        pieces: np.ndarray,
        filler: np.ndarray,
        targets: np.ndarray,
        quiet: np.ndarray,
        loss: str,
    ):
        self.shards, self.row_len, self.bos_id, self.begins_with_bos = shards, row_len, bos_id, begins_with_bos
        self.offsets, self.source, self.begin, self.size, self.bos = offsets, source, begin, size, bos
        self.pieces, self.filler, self.targets = pieces, filler, targets  # each (num_rows,) int32
        self.quiet, self.loss = quiet, loss
        self.dtype = shards[0].tokens.dtype
        self._guard = BlockGuard.of(shards)
        self._bytes = [shard.token_bytes for shard in shards]
        self._marks_pieces = begins_with_bos or bool(bos.any())
        self._has_quiet = bool(quiet.any())

    def read(self, numbers: range) -> np.ndarray:
        """The rows with these numbers: (len(numbers), row_len) in the tokens' dtype.

        Raises ValueError if a piece that must begin with BOS does not.
        """
        stretches, shards = slice(self.offsets[numbers.start], self.offsets[numbers.stop]), self._bytes
        source, begins, size = self.source[stretches], self.begin[stretches], self.size[stretches]
        ends = begins + size

        def join() -> bytearray:
            parts = zip(source.tolist(), begins.tolist(), ends.tolist(), strict=True)
            return bytearray().join([shards[shard][begin:end] for shard, begin, end in parts])

        joined = join() if self._guard is None else self._join_remote(source, begins, ends, join)
        tokens = np.frombuffer(joined, self.dtype)
        if self._guard is None and not self._marks_pieces:
            return tokens.reshape(len(numbers), self.row_len)
        firsts = (np.cumsum(size) - size) // self.dtype.itemsize  # the first token of each stretch
        if self._guard is not None:
            known = self.bos[stretches] | (self.begins_with_bos and not self.bos_id)  # becomes BOS, or is BOS
            self._guard.replace_holes(tokens, firsts, source, begins, ends, known)
        if self._marks_pieces:
            tokens[firsts[self.bos[stretches]]] = self.bos_id
            if self.begins_with_bos:
                self._require_bos(tokens[firsts], source)
        return tokens.reshape(len(numbers), self.row_len)

    @cached_property
    def _loss_mask(self) -> LossMask:
        return LossMask(self.shards, self.loss, self.row_len, self.bos_id)

    def loss_mask(self, numbers: range, rows: np.ndarray) -> np.ndarray:
        """Which tokens of these rows, as `read` returned them, bear loss: (len(numbers), row_len) bool."""
        stretches, size = slice(self.offsets[numbers.start], self.offsets[numbers.stop]), self.dtype.itemsize
        begin, length = self.begin[stretches] // size, self.size[stretches] // size
        quiet = self.quiet[stretches] if self._has_quiet else None
        return self._loss_mask.of_rows(rows, self.source[stretches], begin, length, quiet)

    def _join_remote(
        self, source: np.ndarray, begins: np.ndarray, ends: np.ndarray, join: Callable[[], bytearray]
    ) -> bytearray:
        assert self._guard is not None, "at least one shard is remote"
        if (joined := self._guard.join_if_all_present(join)) is not None:
            return joined
        joined = self._guard.join(source, begins, ends, join)
        self._guard.check_all_present(self.blocks)
        return joined

    @cached_property
    def blocks(self) -> list[tuple[Cache, np.ndarray]]:
        """The blocks of remote shards that the rows need, in the order of the rows."""
        return [] if self._guard is None else self._guard.blocks(self.source, self.begin, self.begin + self.size)

    def _require_bos(self, found: np.ndarray, source: np.ndarray) -> None:
        """Raises ValueError if a stretch does not begin with BOS: then the offsets do not match the tokens."""
        if (wrong := found != self.bos_id).any():
            first = int(np.argmax(wrong))
            raise not_bos(int(found[first]), self.bos_id, self.shards[source[first]])


def gather(parts: Sequence[tuple[RowTable, np.ndarray, np.ndarray]]) -> RowTable:
    """Makes one table from rows of several: (table, numbers of its rows, their numbers in the result).

    (A, [7, 8], [0, 2]) and (B, [3], [1]) make the rows A 7, B 3, A 8.
    """
    shards: list[Shard] = []
    base: dict[int, int] = {}  # index of the first shard of each table
    for table, _, _ in parts:
        if id(table) not in base:
            base[id(table)] = len(shards)
            shards += table.shards
    counts = np.zeros(sum(len(numbers) for _, numbers, _ in parts), np.int64)
    for table, numbers, rows in parts:
        counts[rows] = table.offsets[numbers + 1] - table.offsets[numbers]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    source, size = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int32)
    begin, bos = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], bool)
    quiet = np.empty(offsets[-1], np.int32)
    for table, numbers, rows in parts:
        count = counts[rows]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)  # 0, 1 ... in each row
        old, new = np.repeat(table.offsets[numbers], count) + within, np.repeat(offsets[rows], count) + within
        source[new] = table.source[old] + base[id(table)]
        begin[new], size[new], bos[new] = table.begin[old], table.size[old], table.bos[old]
        quiet[new] = table.quiet[old]
    (one, _, _), *_ = parts
    columns = {"offsets": offsets, "source": source, "begin": begin, "size": size, "bos": bos, "quiet": quiet}
    for name in ("pieces", "filler", "targets"):
        columns[name] = np.empty(len(counts), np.int32)
        for table, numbers, rows in parts:
            columns[name][rows] = getattr(table, name)[numbers]
    return RowTable(shards, one.row_len, one.bos_id, one.begins_with_bos, loss=one.loss, **columns)


def not_bos(found: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with the token `found` instead of BOS."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {found}: "
        "the offsets do not match the tokens; delete the shard's .json record and prepare again"
    )
