"""Where the tokens of rows lie: from a plan's pieces to arrays.

Whatever the packing, a row is a few stretches of shards' token streams. One that begins inside a document has a BOS
inserted before it: the token before it is taken along, and written over. Document 1 of offsets 0 4 9 in shard 2, cut at
its token 3, in bytes of uint16:

    shard 2, bytes 12 to 18, and a BOS for the first token

Joining them is all that is left to do at training time. `bytearray.join` of memoryview slices does it in two thirds of
the time that copying each into an array takes. The stretches stay in arrays, 18 bytes each, and become Python numbers a
batch at a time.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tokenmill.batches.elsewhere import Watched
from tokenmill.once import once
from tokenmill.remote.cache import Cache
from tokenmill.store.shards import Shard


class Table:
    """Rows of `row_len` tokens: row r has the stretches offsets[r] to offsets[r + 1].

    A stretch is `size` bytes of the shard `source` from byte `begin` on; with `bos`, its first token becomes one.
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
    ):
        self.shards, self.row_len, self.bos_id, self.begins_with_bos = shards, row_len, bos_id, begins_with_bos
        self.offsets, self.source, self.begin, self.size, self.bos = offsets, source, begin, size, bos
        self.dtype = shards[0].tokens.dtype
        self._watched = Watched.of(shards)
        self._bytes = [shard.tokens.data.cast("B") for shard in shards]
        taken = size // self.dtype.itemsize
        self._inserted = (np.cumsum(taken) - taken)[bos]  # of the tokens of all rows, those that become BOS
        before = np.concatenate([[0], np.cumsum(bos)]).astype(np.int32)
        self._inserted_before = before[offsets] if self._inserted.size else None  # how many before each row

    def read(self, numbers: range) -> np.ndarray:
        """The rows of these numbers: (len(numbers), row_len) of the tokens' dtype.

        ValueError where a packed row does not begin with BOS.
        """
        first, last = numbers.start, numbers.stop
        some, sources = slice(self.offsets[first], self.offsets[last]), self._bytes
        source, begins = self.source[some], self.begin[some]
        ends = begins + self.size[some]

        def join() -> bytearray:
            stretches = zip(source.tolist(), begins.tolist(), ends.tolist(), strict=True)
            return bytearray().join([sources[source][begin:end] for source, begin, end in stretches])

        joined = join() if self._watched is None else self._join_what_lies_elsewhere(source, begins, ends, join)
        tokens = np.frombuffer(joined, self.dtype)
        if self._inserted_before is not None:
            inserted = self._inserted[self._inserted_before[first] : self._inserted_before[last]]
            tokens[inserted - first * self.row_len] = self.bos_id
        rows = tokens.reshape(len(numbers), self.row_len)
        if self.begins_with_bos and (rows[:, 0] != self.bos_id).any():
            self._raise_not_bos(rows, numbers)
        return rows

    def _join_what_lies_elsewhere(
        self, source: np.ndarray, begins: np.ndarray, ends: np.ndarray, join: Callable[[], bytearray]
    ) -> bytearray:
        assert self._watched is not None, "some shard lies elsewhere"
        if (joined := self._watched.join_if_all_are_there(join)) is not None:
            return joined
        joined = self._watched.join(source, begins, ends, join)
        self._watched.look_whether_all_are_there(self.blocks)
        return joined

    @once
    def blocks(self) -> list[tuple[Cache, np.ndarray]]:
        """Of shards that lie elsewhere the blocks that rows need, in the order of the rows."""
        return [] if self._watched is None else self._watched.under(self.source, self.begin, self.begin + self.size)

    def _raise_not_bos(self, rows: np.ndarray, numbers: range) -> None:
        row = int(np.flatnonzero(rows[:, 0] != self.bos_id)[0])
        shard = self.shards[self.source[self.offsets[numbers[row]]]]
        raise not_bos(int(rows[row, 0]), self.bos_id, shard)


def gather(parts: Sequence[tuple[Table, np.ndarray, np.ndarray]]) -> Table:
    """One table of rows of several: (table, numbers of its rows, what numbers they get).

    Of the tables A and B, (A, [7, 8], [0, 2]) and (B, [3], [1]) make one of the rows A 7, B 3, A 8.
    """
    shards: list[Shard] = []
    base: dict[int, int] = {}  # of each table, where its shards begin
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
    for table, numbers, rows in parts:
        many = counts[rows]
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)  # 0, 1 ... in each row
        there, here = np.repeat(table.offsets[numbers], many) + within, np.repeat(offsets[rows], many) + within
        source[here] = table.source[there] + base[id(table)]
        begin[here], size[here], bos[here] = table.begin[there], table.size[there], table.bos[there]
    (one, _, _), *_ = parts
    columns = {"offsets": offsets, "source": source, "begin": begin, "size": size, "bos": bos}
    return Table(shards, one.row_len, one.bos_id, one.begins_with_bos, **columns)


def not_bos(found: int, bos_id: int, shard: Shard) -> ValueError:
    """The error for a document of a shard that begins with `found`."""
    return ValueError(
        f"{shard.path}: expected a document to begin with BOS ({bos_id}), found {found}: "
        "the offsets do not match the tokens; delete its .json record and prepare again"
    )
