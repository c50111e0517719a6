"""One unit of work -> its shards, in a worker process.

    a.000          the documents of the unit that train: its first shard, whose record is last
    a.000-val      those that validate, if there are any
    a.001 ...      further shards of a unit with much more text than planned, as a compressed file
                   may have

The text is read once, whichever split a document is in.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from tokenmill.prepare.column_types import ColumnTypes
from tokenmill.prepare.encode import batch_encoder, encoder_of, is_loaded
from tokenmill.prepare.failures import ForAllError
from tokenmill.prepare.fetching import fetch_files
from tokenmill.prepare.made import Record, Work, facts_of
from tokenmill.prepare.unit_shard import UnitShard
from tokenmill.store.columns import MASK, META, TARGETS
from tokenmill.store.schema import LEFT_OUT_COUNTS, dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import SPLITS, Split
from tokenmill.store.tables import text_of_schema
from tokenmill.text.documents import LEFT_OUT, DocumentBatch, read_unit
from tokenmill.text.formats import BATCH_BYTES
from tokenmill.text.kept_columns import as_table
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import changed
from tokenmill.tokenize.encoder import Encoder

# a shard takes up to this many times the text that was planned, from the sizes of files
ROOM = 2
MOST_LOST = 0.001  # of a unit's characters, for which the tokenizer may have no token
GATHERED_BYTES = BATCH_BYTES // 2
# a text; or four numbers: documents, tokens, bytes of text, bytes of the unit's files
Report = Callable[..., None]


def begin_workers(work: Work) -> None:
    """Makes what all workers share, in the process that they are forked from."""
    encoder_of(work.tokenizer_path, work.fingerprint, work.engine)


def begin_early(work: Work) -> None:
    """As `begin_workers`, before the set's tokenizer.json is written, if it is loaded already."""
    if is_loaded(work.fingerprint):
        begin_workers(work)


def make(work: Work, unit: Unit, report: Report) -> Record:
    """Tokenizes a unit into its shards, and sends them to where the set is.

    The record of its first shard. ValueError for text that cannot be read as the options say, or a
    file that is written to meanwhile.
    """
    encoder, sentence = encoder_of(work.tokenizer_path, work.fingerprint, work.engine)
    report(sentence)
    fetch_files(unit)
    stamps = [file.stamp() for file in unit.files]
    with contextlib.ExitStack() as stack:
        stack.enter_context(work.destination.held())
        folder = stack.enter_context(work.destination.unit_folder())
        writer = UnitWriter(unit, work, encoder, folder, stack, report)
        done = 0
        for batches in _gathered(read_unit(unit, work.options)):
            writer.write(batches)
            read = min(unit.bytes - done, sum(batch.bytes for batch in batches))
            report(0, 0, 0, read)
            done += read
        if stamps != [file.stamp() for file in unit.files]:
            raise changed(unit.files[0])
        report(0, 0, 0, unit.bytes - done)
        records = writer.finish()
        work.destination.send(folder, records)
    return records[-1]


class UnitWriter:
    """Writes the shards of a unit.

    The first one is there even if the unit has no documents: it has the record.
    """

    def __init__(
        self,
        unit: Unit,
        work: Work,
        encoder: Encoder,
        folder: Path,
        stack: contextlib.ExitStack,
        report: Report,
    ):
        self._unit = unit
        self._work = work
        self._tokenizer = encoder.tokenizer
        self._encode = batch_encoder(encoder, work.options)
        self._folder = folder
        self._stack = stack  # removes what a unit that fails has written
        self._report = report
        self._shards: list[UnitShard] = []
        self._latest: dict[Split, UnitShard] = {}
        self._counts = [Counter[str]() for _ in unit.files]  # what was left out of each
        self._types = ColumnTypes()
        self._types.add(_columns_without_types(work.options.kept), unit.files[0].name)
        self._first_broken = ""  # where the first broken line or row is, and what is wrong with it
        self._lost = Counter[str]()  # characters that the tokenizer has no token for
        self._num_characters = 0
        self._first: Split = "val" if unit.files[0].val_share == 1.0 else "train"
        self._begin(self._first)

    def write(self, batches: list[DocumentBatch]) -> None:
        """Writes documents to the shards of their splits."""
        for batch in batches:
            self._counts[batch.file].update(batch.counts)
            if len(batch.texts) and batch.kept is not None:
                self._types.add(batch.kept.schema, self._unit.files[batch.file].name)
            self._note_broken(batch, batch.first_broken)
        for split in SPLITS:
            of_split = [batch.chosen(batch.is_val == (split == "val")) for batch in batches]
            of_split = [batch for batch in of_split if len(batch.texts)]
            if of_split:
                self._write(split, of_split)

    def finish(self) -> list[Record]:
        """Makes the shards count, the first one last; returns their records in that order."""
        unit_facts = facts_of(self._unit, self._work)
        unit_facts["shards"] = {shard.name: shard.split for shard in self._shards}
        shared = {"fingerprint": self._tokenizer.fingerprint, "unit": unit_facts}
        if self._work.options.kept:
            shared["metadata"] = text_of_schema(self._types.schema)
        sources = [file.facts() for file in self._unit.files]
        for facts, counts in zip(sources, self._counts, strict=True):
            left_out = sum(counts[name] for name in LEFT_OUT)
            if left_out:
                facts["left_out"] = left_out
        records = []
        for shard in reversed(self._shards):
            counts = Counter[str]()  # those of the unit are in the first shard's record
            if shard is self._shards[0]:
                counts = sum(self._counts, counts)
                shared |= self._lost_facts()
                if self._first_broken:
                    shared["first_broken"] = self._first_broken
            left_out_counts = {name: counts[name] for name in LEFT_OUT_COUNTS}
            try:
                records.append(shard.finish(sources, left_out_counts | shared, self._types.schema))
            except ValueError as error:  # of a column that is kept
                raise ValueError(f"{self._unit.files[0].shown}: {error}") from error
        return records

    def _note_broken(self, batch: DocumentBatch, what: str) -> None:
        """Keeps where the first broken line or row is."""
        if what and not self._first_broken:
            self._first_broken = f"{self._unit.files[batch.file].name}, {what}"

    def _lost_facts(self) -> Record:
        """How many characters the tokens lack. ForAllError for more than a thousandth."""
        num_lost = self._lost.total()
        if not num_lost:
            return {}
        if num_lost > MOST_LOST * self._num_characters:
            commonest = "".join(character for character, _ in self._lost.most_common(8))
            of = f"{num_lost:,} of {self._num_characters:,} characters, as {commonest!r}"
            raise ForAllError(
                f"{self._unit.files[0].shown}: tokenizer {self._tokenizer.name} has no token for "
                f"{of}, which would be lost; use a tokenizer with all 256 bytes, as gpt2, or "
                "--tokenizer train:32768"
            )
        return {"lost_characters": num_lost, "characters": self._num_characters}

    def _begin(self, split: Split) -> None:
        number = sum(shard.split == split for shard in self._shards)
        name = f"{self._unit.stem}.{self._unit.k + number:03d}"
        if split != self._first:
            name += "-val"
        kept = self._work.options.kept
        columns = [META.suffix] if kept else []
        if self._tokenizer.chat is not None:
            columns += [MASK.suffix, TARGETS.suffix]
        writer = ShardWriter(self._folder, name, dtype_name(self._tokenizer.vocab_size), columns)
        shard = UnitShard(self._stack.enter_context(writer), split)
        self._latest[split] = shard
        self._shards.append(shard)

    def _write(self, split: Split, batches: list[DocumentBatch]) -> None:
        if split not in self._latest or self._is_full(self._latest[split]):
            self._begin(split)
        shard = self._latest[split]
        try:
            encoded = self._encode(shard.name, shard.writer.num_documents, batches)
        except ValueError as error:
            raise ValueError(f"{self._unit.files[batches[0].file].shown}: {error}") from error
        for batch, kept in zip(batches, encoded.batches, strict=True):
            num_left_out = len(batch.texts) - len(kept.texts)
            self._counts[batch.file]["left_out_conversations"] += num_left_out
        if encoded.broken and not self._first_broken:
            reason, batch, number = encoded.broken[0]
            self._note_broken(batch, f"{batch.place(number)}: {reason}")
        lost, num_characters = encoded.lost
        self._lost.update(lost)
        self._num_characters += num_characters
        shard.write(encoded)
        self._report(len(encoded.lengths), len(encoded.tokens), encoded.text_bytes, 0)

    def _is_full(self, shard: UnitShard) -> bool:
        """Whether further documents go into another shard: if the unit is a whole file."""
        return self._unit.n == 1 and shard.text_bytes >= ROOM * self._work.shard_text_bytes


def _columns_without_types(kept: list[str]) -> pa.Schema:
    """The columns of a unit without documents."""
    return as_table({name: pa.nulls(0) for name in kept}, "").schema


def _gathered(stream: Iterator[DocumentBatch]) -> Iterator[list[DocumentBatch]]:
    """Batches, a few MB together, so that an engine is called once for many small files."""
    gathered: list[DocumentBatch] = []
    size = 0
    for batch in stream:
        gathered.append(batch)
        size += batch.texts.nbytes
        if size >= GATHERED_BYTES:
            yield gathered
            gathered = []
            size = 0
    if gathered:
        yield gathered
