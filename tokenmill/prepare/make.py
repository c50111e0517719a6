"""One unit of work -> its shards, in a worker process.

    a.000          the documents of the unit that train: its first shard, whose record is written last
    a.000-val      those that validate, if there are any
    a.001 ...      further shards of a unit with much more text than planned, as a compressed file may have

The text is read once, whichever split a document is in.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tokenmill.prepare.encode import Encoded, documents_encoder, encoder_of
from tokenmill.prepare.fetching import fetch_files
from tokenmill.prepare.made import Types, Work, add_types, facts_of, made
from tokenmill.store.columns import MASK, META, TARGETS
from tokenmill.store.schema import LEFT_OUT_COUNTS, dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import SPLITS, Split
from tokenmill.text.documents import LEFT_OUT, DocumentBatch, read_unit
from tokenmill.text.formats import BATCH_BYTES
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import changed
from tokenmill.tokenize.encoder import Encoder

ROOM = 2  # a shard takes up to this many times the text that was planned, as the plan knows only the size of files
Report = Callable[
    ..., None
]  # a text; or four numbers: documents, tokens, bytes of text, bytes of the unit's files


def make(work: Work, unit: Unit, report: Report) -> dict[str, Any]:
    """Tokenizes a unit into its shards, and sends them to where the set is. The record of its first shard.

    ValueError for text that cannot be read as the options say, or a file that is written to meanwhile.
    """
    encoder, said = encoder_of(work.destination.folder / "tokenizer.json", work.engine)
    report(said)
    fetch_files(unit)
    stamps = [file.stamp() for file in unit.files]
    with work.destination.making() as folder, contextlib.ExitStack() as stack:
        maker = _Maker(unit, work, encoder, folder, stack, report)
        done = 0
        for batch in _gathered(read_unit(unit, work.options)):
            maker.write(batch)
            done += (read := min(unit.bytes - done, sum(documents.bytes for documents in batch)))
            report(0, 0, 0, read)
        if stamps != [file.stamp() for file in unit.files]:
            raise changed(unit.files[0])
        report(0, 0, 0, unit.bytes - done)
        if (
            manifest := work.destination.manifest()
        ) is not None:  # perhaps of a run that was faster: it stays right
            listed = frozenset(shard["name"] for shard in manifest["shards"])
            if (
                listed != work.listed
                and (record := made(unit, work._replace(listed=listed))) is not None
            ):
                return record
        records = maker.finish()
        work.destination.send(folder, records)
    return records[-1]


class _Maker:
    """Writes the shards of a unit. The first one is there even if the unit has no documents: it has the record."""

    def __init__(
        self,
        unit: Unit,
        work: Work,
        encoder: Encoder,
        folder: Path,
        stack: contextlib.ExitStack,
        report: Report,
    ):
        self.unit, self.work, self.tokenizer, self._folder, self._stack = (
            unit,
            work,
            encoder.tokenizer,
            folder,
            stack,
        )
        self._encode, self._report = documents_encoder(encoder, work.options), report
        self.shards: list[_Shard] = []
        self._latest: dict[Split, _Shard] = {}
        self._counts = [Counter[str]() for _ in unit.files]  # what was left out of each
        self._types: Types = {}
        self._first: Split = "val" if unit.files[0].val_share == 1.0 else "train"
        self._begin(self._first)

    def _begin(self, split: Split) -> None:
        number = sum(shard.split == split for shard in self.shards)
        name = f"{self.unit.stem}.{self.unit.k + number:03d}{'-val' * (split != self._first)}"
        columns = [META.suffix] * bool(self.work.options.kept)
        columns += [] if self.tokenizer.chat is None else [MASK.suffix, TARGETS.suffix]
        writer = ShardWriter(self._folder, name, dtype_name(self.tokenizer.vocab_size), columns)
        if self.work.options.kept:  # a shard without documents has them too
            heads = dict.fromkeys(name.partition(".")[0] for name in self.work.options.kept)
            writer.write_column(META.suffix, pa.table({head: pa.nulls(0) for head in heads}))
        self._latest[split] = _Shard(self._stack.enter_context(writer), split)
        self.shards.append(self._latest[split])

    def write(self, batch: list[DocumentBatch]) -> None:
        """Writes documents to the shards of their splits."""
        for documents in batch:
            self._counts[documents.file].update(documents.counts)
            if len(documents.texts):
                add_types(self._types, documents.types, self.unit.files[documents.file].name)
        for split in SPLITS:
            some = [one.chosen(one.is_val == (split == "val")) for one in batch]
            if some := [one for one in some if len(one.texts)]:
                self._write(split, some)

    def _write(self, split: Split, batch: list[DocumentBatch]) -> None:
        most = ROOM * self.work.shard_text_bytes
        if split not in self._latest or (
            self.unit.n == 1 and self._latest[split].text_bytes >= most
        ):
            self._begin(split)
        shard = self._latest[split]
        try:
            encoded = self._encode(shard.writer.name, shard.writer.num_documents, batch)
        except ValueError as error:
            raise ValueError(f"{self.unit.files[batch[0].file].shown}: {error}") from error
        shard.write(encoded)
        self._report(len(encoded.lengths), len(encoded.tokens), encoded.text_bytes, 0)

    def finish(self) -> list[dict[str, Any]]:
        """Makes the shards count, the first one last; returns their records in that order."""
        names = {shard.writer.name: shard.split for shard in self.shards}
        whole: dict[str, Any] = {"fingerprint": self.tokenizer.fingerprint}
        whole |= {"unit": facts_of(self.unit, self.work) | {"shards": names}}
        if self.work.options.kept:
            whole["metadata"] = {name: kind for name, (kind, _) in self._types.items()}
        files = [file.facts() for file in self.unit.files]
        for facts, counts in zip(files, self._counts, strict=True):
            if left_out := sum(counts[name] for name in LEFT_OUT):
                facts["left_out"] = left_out
        total, records = sum(self._counts, Counter[str]()), []
        for shard in reversed(self.shards):
            counts = total if shard is self.shards[0] else Counter[str]()
            records.append(
                shard.finish(files, {name: counts[name] for name in LEFT_OUT_COUNTS} | whole)
            )
        return records


class _Shard:
    """A shard that is being written, and what its record says."""

    def __init__(self, writer: ShardWriter, split: Split):
        self.writer, self.split, self.text_bytes = writer, split, 0
        self._documents: dict[int, Counter[int | None]] = defaultdict(
            Counter
        )  # by file and row group
        self._counts, self._refused = Counter[str](), dict[str, dict[str, Any]]()

    def write(self, encoded: Encoded) -> None:
        """Appends a batch of documents."""
        self.writer.write(encoded.tokens, encoded.lengths)
        for suffix, values in encoded.columns.items():
            self.writer.write_column(suffix, values)
        self.text_bytes += encoded.text_bytes
        for reason, documents, number in encoded.refused:
            if reason not in self._refused:
                self._refused[reason] = {
                    "count": 0,
                    "first": (documents.file, documents.place(number)),
                }
            self._refused[reason]["count"] += 1
        self._counts += Counter(
            broken_conversations=encoded.broken, refused_conversations=len(encoded.refused)
        )
        for documents in encoded.documents:
            self._documents[documents.file][documents.row_group] += len(documents.texts)
            if documents.kept is not None:
                self.writer.write_column(META.suffix, documents.kept)

    def finish(self, files: list[dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
        """Makes the shard count; returns its record."""
        sources = []
        for number, facts in enumerate(files):
            groups = self._documents[number]
            by_group = {"row_groups": list(groups), "row_group_documents": list(groups.values())}
            has_groups = bool(groups) and None not in groups
            sources.append(facts | {"documents": groups.total()} | (by_group if has_groups else {}))
        record: dict[str, Any] = {"source": sources[0] if len(sources) == 1 else {"files": sources}}
        record |= {"text_bytes": self.text_bytes, **self._counts}
        for some in self._refused.values():
            some["first"] = f"{files[some['first'][0]]['file']}: {some['first'][1]}"
        record |= {"refused": dict(sorted(self._refused.items()))} if self._refused else {}
        return self.writer.finish(record | more)


def _gathered(stream: Iterator[DocumentBatch]) -> Iterator[list[DocumentBatch]]:
    """Batches of documents, a few MB in each, so that an engine is called once for many small files."""
    held: list[DocumentBatch] = []
    size = 0
    for documents in stream:
        held.append(documents)
        size += documents.texts.nbytes
        if size >= BATCH_BYTES // 2:
            yield held
            held, size = [], 0
    if held:
        yield held
