"""One unit of work -> its shards, in a worker process.

    a.000          the documents of the unit that train: its first shard, whose record is written last
    a.000-val      those that validate, if there are any
    a.001 ...      further shards of a unit with much more text than planned, as a compressed file may have

The text is read once, whichever split a document is in.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tokenmill.prepare.encode import columns_of, documents_encoder
from tokenmill.prepare.made import Work, add_type, facts_of, kind_of, made
from tokenmill.store.columns import META
from tokenmill.store.schema import LEFT_OUT_COUNTS, dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import SPLITS, TOTALS, Split
from tokenmill.text.documents import LEFT_OUT, Documents, read_unit
from tokenmill.text.formats import BATCH_BYTES
from tokenmill.text.hub import fetch
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import changed
from tokenmill.tokenize.encoder import Encoder

ROOM = 2  # a shard takes up to this many times the text that was planned, as the plan knows only the size of files
Report = Callable[[int, int, int, int], None]  # documents, tokens, bytes of text, bytes of the unit's files


class Made(NamedTuple):
    """What a worker tells about a unit beside what it wrote."""

    documents: int
    tokens: int
    text_bytes: int
    record: dict[str, Any]  # of its first shard


def make(work: Work, encoder: Encoder, unit: Unit, report: Report) -> Made:
    """Tokenizes a unit into its shards, and sends them to where the set is.

    ValueError for text that cannot be read as the options say, or a file that is written to meanwhile.
    """
    for file in unit.files:
        fetch(file)
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
        manifest = work.destination.manifest() if work.destination.stamp() != work.stamp else None
        if manifest is not None:  # another run has written it meanwhile: what it lists is not overwritten
            listed = frozenset(shard["name"] for shard in manifest["shards"])
            if (record := made(unit, work._replace(listed=listed))) is not None:
                return Made(0, 0, 0, record)
        records = maker.finish()
        work.destination.send(folder, records)
    documents, tokens, text = (sum(record[key] for record in records) for key in TOTALS)
    return Made(documents, tokens, text, records[-1])


class _Maker:
    """Writes the shards of a unit. The first one is there even if the unit has no documents: it has the record."""

    def __init__(
        self, unit: Unit, work: Work, encoder: Encoder, folder: Path, stack: contextlib.ExitStack, report: Report
    ):
        self.unit, self.work, self.encoder, self._folder, self._stack = unit, work, encoder, folder, stack
        self._encode, self._report = documents_encoder(encoder, work.options), report
        self.shards: list[_Shard] = []
        self._counts = [Counter[str]() for _ in unit.files]  # what was left out of each
        self._types: dict[str, tuple[Any, str]] = {}  # of each column that is kept, and a file that has it
        self._all_validate = unit.files[0].validates == 1.0
        self._latest: dict[Split, _Shard] = {}
        self._begin("val" if self._all_validate else "train")

    def _begin(self, split: Split) -> None:
        number = sum(shard.split == split for shard in self.shards)
        is_other = split == "val" and not self._all_validate
        name = f"{self.unit.stem}.{self.unit.k + number:03d}{'-val' * is_other}"
        columns = [META.suffix] * bool(self.work.options.kept) + columns_of(self.encoder, self.work.options)
        writer = ShardWriter(self._folder, name, dtype_name(self.encoder.tokenizer.vocab_size), columns)
        self._latest[split] = _Shard(self._stack.enter_context(writer), split, self.work)
        self.shards.append(self._latest[split])

    def write(self, batch: list[Documents]) -> None:
        """Writes documents to the shards of their splits."""
        for documents in batch:
            self._counts[documents.file].update(documents.counts)
            for field in documents.kept.schema if documents.kept is not None and len(documents.texts) else ():
                add_type(self._types, field.name, kind_of(field.type), self.unit.files[documents.file].name)
        for split in SPLITS:
            some = [one.chosen(one.validates == (split == "val")) for one in batch]
            if any(len(one.texts) for one in some):
                self._write(split, [one for one in some if len(one.texts)])

    def _write(self, split: Split, batch: list[Documents]) -> None:
        most = ROOM * self.work.shard_text_bytes
        if split not in self._latest or (self.unit.n == 1 and self._latest[split].text_bytes >= most):
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
        total = sum(self._counts, Counter[str]())
        whole = {"unit": facts_of(self.unit, self.work) | {"shards": names}}
        if self.work.options.kept:
            whole["metadata"] = {name: kind for name, (kind, _) in self._types.items()}
        files = [file.facts() for file in self.unit.files]
        for facts, counts in zip(files, self._counts, strict=True):
            if left_out := sum(counts[name] for name in LEFT_OUT):
                facts["left_out"] = left_out
        records = []
        for shard in reversed(self.shards):
            is_first = shard is self.shards[0]
            numbers: dict[str, Any] = {name: total[name] if is_first else 0 for name in LEFT_OUT_COUNTS}
            records.append(shard.finish(files, self.encoder.tokenizer.fingerprint, numbers | whole))
        return records


class _Shard:
    """A shard that is being written, and what its record says."""

    def __init__(self, writer: ShardWriter, split: Split, work: Work):
        self.writer, self.split, self._work = writer, split, work
        self.text_bytes = 0
        self._documents = Counter[tuple[int, int | None]]()  # by file and row group
        self._counts, self._refused = Counter[str](), Counter[str]()
        if work.options.kept:  # a shard without documents has the columns too
            heads = dict.fromkeys(name.partition(".")[0] for name in work.options.kept)
            writer.write_column(META.suffix, pa.table({head: pa.nulls(0) for head in heads}))

    def write(self, encoded: Any) -> None:
        """Appends a batch of documents."""
        self.writer.write(encoded.tokens, encoded.lengths)
        for suffix, values in encoded.columns.items():
            self.writer.write_column(suffix, values)
        self.text_bytes += encoded.text_bytes
        self._refused += encoded.refused
        self._counts += Counter(broken_conversations=encoded.broken, refused_conversations=encoded.refused.total())
        for documents in encoded.documents:
            self._documents[documents.file, documents.row_group] += len(documents.texts)
            if documents.kept is not None:
                self.writer.write_column(META.suffix, documents.kept)

    def finish(self, files: list[dict[str, Any]], fingerprint: str, more: dict[str, Any]) -> dict[str, Any]:
        """Makes the shard count; returns its record."""
        sources = []
        by_file: dict[int, dict[int | None, int]] = {}
        for (file, group), count in self._documents.items():
            by_file.setdefault(file, {})[group] = count
        for number, of_file in enumerate(files):
            groups = by_file.get(number, {})
            by_group = {"row_groups": list(groups), "row_group_documents": list(groups.values())}
            has_groups = bool(groups) and None not in groups
            sources.append(of_file | {"documents": sum(groups.values())} | (by_group if has_groups else {}))
        facts: dict[str, Any] = {
            "source": sources[0] if len(sources) == 1 else {"files": sources},
            "fingerprint": fingerprint,
        }
        facts |= {"text_bytes": self.text_bytes, **self._counts}
        if self._refused:
            facts["refused"] = dict(sorted(self._refused.items()))
        return self.writer.finish(facts | more)


def _gathered(stream: Iterator[Documents]) -> Iterator[list[Documents]]:
    """Batches of documents, a few MB in each, so that an engine is called once for many small files."""
    held: list[Documents] = []
    size = 0
    for documents in stream:
        held.append(documents)
        size += documents.texts.nbytes
        if size >= BATCH_BYTES // 2:
            yield held
            held, size = [], 0
    if held:
        yield held
