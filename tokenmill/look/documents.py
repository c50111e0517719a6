"""Documents: the documents of a split as a sequence, to look at your data from Python.

    documents = Documents("data/tokens/NAME", "train")
    len(documents), documents[7], documents[-100:], documents.sample(5)
    for document in documents: ...
    document.tokens, document.text, document.source, document.metadata

They have the numbers that `tokenmill show --document N` takes. SourceLocator finds where each is in
its source file.
"""

import copy
import operator
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from tokenmill.batches.batch_pieces import KeptColumn
from tokenmill.checks import whole_number
from tokenmill.messages import counted
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import META
from tokenmill.store.shards import ShardEntry, Split, sources_of
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import format_of
from tokenmill.tokenize.tokenizer import Tokenizer

if TYPE_CHECKING:
    import pyarrow as pa


ID = "id"  # the column by which documents are named, if it was kept


class SourceLocator:
    """Locates the documents of a token set in their source files.

    Each shard's record is read once.
    """

    def __init__(self, token_set: TokenSet):
        self._token_set = token_set
        self._record = lru_cache(None)(token_set.record)
        self._metadata = lru_cache(4)(self._read_metadata)
        self._ids = KeptColumn(token_set, ID)

    def find(self, entry: ShardEntry, document: int) -> str:
        """The source file of a shard's document, and its row there.

        Rows count from 0, lines of a jsonl file from 1. If rows of the file are not in the split,
        or were left out, it is the number among those that were kept.
        """
        for source in sources_of(self._record(entry)):
            if document < source.get("documents", entry.documents):
                return self._place(source, entry, document)
            document -= source["documents"]
        raise ValueError(
            f"{entry.name}: the shard is damaged: its record has fewer documents than the shard"
        )

    def _place(self, source: dict[str, Any], entry: ShardEntry, document: int) -> str:
        """Where the document with this number among those of a source of a shard is in its file."""
        file = source["file"]
        before, is_whole = self._before(file, entry)
        number = before + document
        kind = format_of(file)
        is_in_one_split = source.get("validates", 0.0) in (0.0, 1.0)
        if kind is not None and is_whole and is_in_one_split:
            row = number + kind.first
            return f"{file} {kind.document} {row:,}"
        if "row_groups" not in source:
            return f"{file}, document {number:,} in {entry.split}, not counting those left out"
        ends = np.cumsum(source["row_group_documents"])
        index = int(np.searchsorted(ends, document, side="right"))
        in_group = document - (int(ends[index - 1]) if index else 0)
        group = source["row_groups"][index]
        return (
            f"{file} row group {group}, document {in_group:,} in {entry.split}, not counting those "
            "left out"
        )

    def _before(self, file: str, entry: ShardEntry) -> tuple[int, bool]:
        """How many documents of a file are in earlier shards of the split, and whether all are
        kept.
        """
        entries = [shard for shard in self._token_set.entries if file in shard.sources]
        if len(entries) < 2:
            entries = [entry]
        place = self._token_set.entries.index(entry)
        before = 0
        is_whole = True
        for shard in entries:
            sources = {part["file"]: part for part in sources_of(self._record(shard))}
            source = sources[file]
            if source.get("left_out"):
                is_whole = False
            is_earlier = self._token_set.entries.index(shard) < place
            if is_earlier and shard.split == entry.split:
                before += source.get("documents", shard.documents)
        return before, is_whole

    def metadata(self, entry: ShardEntry, document: int) -> dict[str, Any]:
        """What the publisher says of a shard's document, as far as it was kept: by column."""
        table = self._metadata(entry)
        if table is None:
            return {}
        return {name: table.column(name)[document].as_py() for name in table.column_names}

    def kept_id(self, entry: ShardEntry, document: int) -> Any:
        """What the kept column `id` says of a shard's document; None if there is no such column."""
        ids = self._ids.of(entry)
        return None if ids is None else ids[document].as_py()

    def _read_metadata(self, entry: ShardEntry) -> "pa.Table | None":
        """The metadata of a shard's documents, a row each; None if none was kept."""
        if META.suffix not in self._record(entry):
            return None
        from tokenmill.store.tables import metadata_of  # and pyarrow

        return metadata_of(self._token_set, entry)


SHOWN = 60  # characters of text in a repr


class _Split:
    """The shards of a split, opened one by one."""

    def __init__(self, token_set: TokenSet, split: str):
        self.token_set = token_set
        self.split = split
        self.entries = token_set.split(split)
        self.ends = list(accumulate(entry.documents for entry in self.entries))
        self.locator = SourceLocator(token_set)
        self.open = lru_cache(4)(token_set.open)
        self.tokenizer = lru_cache(None)(partial(Tokenizer.of_set, token_set))

    def find(self, number: int) -> tuple[ShardEntry, int]:
        """The shard of a document, and the document's number there."""
        index = bisect_right(self.ends, number)
        entry = self.entries[index]
        first = self.ends[index] - entry.documents
        return entry, number - first


@dataclass(frozen=True, eq=False)
class Document:
    """A document of a token set. Its text and what is known of it are read when you ask for them.

    `number` is its number in the split, from 0. `shard` and `index` say where its tokens are.
    """

    number: int
    split: str
    shard: str
    index: int
    _of: _Split = field(repr=False)
    _entry: ShardEntry = field(repr=False)

    @property
    def tokens(self) -> np.ndarray:
        """Its token ids, the first of which is BOS: (length,) of uint16 or uint32.

        They are mapped from the file, and read-only.
        """
        shard = self._of.open(self._entry)
        tokens = shard.read(*shard.bounds(self.index))
        tokens.flags.writeable = False
        return tokens

    def __len__(self) -> int:
        """The number of its tokens, BOS included."""
        begin, end = self._of.open(self._entry).bounds(self.index)
        return end - begin

    def __bool__(self) -> bool:
        return True  # otherwise Python would call __len__

    @property
    def text(self) -> str:
        """Its text, decoded from the tokens without BOS. A conversation has its special tokens.

        Raises ValueError if the set has another tokenizer's file, ImportError if the tokenizer's
        library is missing.
        """
        tokens = self.tokens
        if tokens[0] == self._of.token_set.bos_id:
            tokens = tokens[1:]
        return self._of.tokenizer().decode(tokens)

    @property
    def source(self) -> str:
        """Its source file, and its row there, as `tokenmill show` prints it."""
        return self._of.locator.find(self._entry, self.index)

    @property
    def metadata(self) -> dict[str, Any]:
        """The columns that were kept with --keep-columns, by name; {} if none were."""
        return self._of.locator.metadata(self._entry, self.index)

    def __repr__(self) -> str:
        text = self.text
        if len(text) > SHOWN:
            text = text[:SHOWN] + "..."
        tokens = counted(len(self), "token")
        return f"Document {self.number:,} of {self.split}, {tokens}, {self.source}: {text!r}"


class Documents(Sequence[Document]):
    """The documents of a split of a token set, or some of them.

    Nothing is read before you ask a document for its tokens, text or source. A slice or a sample is
    another such sequence.

    `tokens` is a folder, a name or an address, as for RowLoader.
    """

    def __init__(self, tokens: str | os.PathLike[str] | TokenSet, split: Split = "train"):
        token_set = tokens if isinstance(tokens, TokenSet) else open_set(tokens)
        self._of = _Split(token_set, split)
        total = sum(entry.documents for entry in self._of.entries)
        self._numbers: Sequence[int] = range(total)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Document: ...

    @overload
    def __getitem__(self, index: slice) -> "Documents": ...

    def __getitem__(self, index: int | slice) -> "Document | Documents":
        if isinstance(index, slice):
            return self._with_numbers(self._numbers[index])
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            last = len(self) - 1
            raise IndexError(
                f"{self._of.token_set.display_name}: expected a document from 0 to {last:,}, "
                f"found {place:,}"
            )
        number = self._numbers[place]
        entry, document = self._of.find(number)
        return Document(number, self._of.split, entry.name, document, self._of, entry)

    def __iter__(self) -> Iterator[Document]:
        return (self[index] for index in range(len(self)))

    def sample(self, count: int, seed: int = 0) -> "Documents":
        """`count` different documents at random, in order; the same ones for the same seed."""
        count = min(whole_number("count", count, 0), len(self))
        chosen = np.random.default_rng(seed).choice(len(self), count, replace=False)
        return self._with_numbers([self._numbers[index] for index in sorted(chosen.tolist())])

    def _with_numbers(self, numbers: Sequence[int]) -> "Documents":
        documents = copy.copy(self)
        documents._numbers = numbers
        return documents

    def __repr__(self) -> str:
        split = f"the {self._of.split} split of {self._of.token_set.display_name}"
        return f"<{counted(len(self), 'document')} of {split}>"
