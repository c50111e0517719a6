"""One unit of work -> one shard, in a worker process."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.prepare.metadata import kept_columns_of, kept_table, no_rows, require_found
from tokenmill.prepare.tokenize_documents import concatenated, text_maker
from tokenmill.store.columns import META
from tokenmill.store.schema import dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import DTYPES, TEXT_COUNTS
from tokenmill.text.sources import read_documents
from tokenmill.text.units import BATCH_BYTES, Documents, FilePart, Unit
from tokenmill.text_arrays import text_array
from tokenmill.tokenize.encoder import Encoder, choose_encoder
from tokenmill.tokenize.tokenizer import Tokenizer

PROOF_DOCUMENTS = 64  # of the first unit, which an engine is proven on before it is used
MOST_TEXT = 1 << 30  # a shard may have so many bytes of text,
MUCH_MORE = 4  # or so many times what was planned, if that is more
WARM_BYTES = 8 << 20  # of text, after which most words are known


class Made(NamedTuple):
    """What a worker reports about a shard beside what it wrote."""

    engine: str
    why: str  # no faster engine was used, or ""
    referred: int  # documents that the reference encoded for the characters in them
    itemsize: int  # bytes of a token


def load_encoder(tokenizer: Tokenizer, engine: str, unit: Unit) -> tuple[Encoder, str]:
    """What workers encode with, proven on the first documents of a unit; and why not a faster engine, or "".

    A fast engine then encodes some MB more to learn common words, which every worker starts with.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # every core has its process, and threads do not survive a fork
    stream = (concatenated(gathered) for gathered in _gathered(read_documents(unit)))
    first = next(stream, text_array([]))
    encoder, why = choose_encoder(engine, tokenizer, first[:PROOF_DOCUMENTS])
    seen = 0
    while not encoder.is_reference and seen < WARM_BYTES and (texts := next(stream, None)) is not None:
        encoder.encode(texts)
        seen += texts.nbytes
    return encoder, why


def make_shard(
    folder: Path,
    shard_text_bytes: int,
    state: tuple[Encoder, str],
    unit: Unit,
    report: Callable[..., None],
) -> Made:
    """Tokenizes one unit into one shard; reports (documents, tokens, bytes of text, share of unit.text_bytes).

    The record says which `shard_text_bytes` the unit was planned with.
    """
    encoder, why = state
    tallies, referred = [Tally(part) for part in unit.parts], 0
    identities: list[dict] = []
    most = max(MOST_TEXT, MUCH_MORE * unit.text_bytes)
    kept = kept_columns_of(unit)
    missing = {column.name for column in kept if not column.optional}
    tokenize = text_maker(encoder, unit)
    written = [META.suffix] * bool(kept) + list(tokenize.columns)
    with ShardWriter(folder, unit.name, dtype_name(encoder.tokenizer.vocab_size), written) as writer:
        if kept:
            writer.write_column(META.suffix, no_rows(kept))
        for gathered in _gathered(read_documents(unit, identities)):
            made = tokenize(unit, writer.num_documents, gathered)
            writer.write(made.tokens, made.lengths)
            for suffix, values in made.columns.items():
                writer.write_column(suffix, values)
            referred += made.referred
            for documents in made.documents:
                tallies[documents.part].add(documents)
                _require_as_planned(tallies[documents.part], most)
                if kept:
                    writer.write_column(META.suffix, kept_table(documents, kept))
                    missing -= documents.kept_found
            text_bytes, share = map(sum, zip(*((d.text_bytes, d.share) for d in made.documents), strict=True))
            report(len(made.lengths), len(made.tokens), text_bytes, share)
        counts = {count: sum(tally.counts[count] for tally in tallies) for count in TEXT_COUNTS}
        facts: dict[str, Any] = {"source": _source(unit, tallies, identities)} | tokenize.facts()
        facts["fingerprint"] = encoder.tokenizer.fingerprint
        if kept:
            facts["metadata"] = [str(column) for column in kept]
            require_found(unit, missing, writer.num_documents)
        facts["max_document_bytes"] = unit.parts[0].options.max_document_bytes
        writer.finish(counts | facts | {"shard_text_bytes": shard_text_bytes})
    return Made(encoder.engine, why, referred, DTYPES[writer.dtype].itemsize)


def _require_as_planned(tally: "Tally", most: int) -> None:
    """ValueError if a file has far more text than planned: a few bytes can hold a text a million times."""
    if tally.counts["text_bytes"] > most:
        raise ValueError(
            f"{tally.part.file.shown}: gave {tally.counts['text_bytes']:,} bytes of text and has more, where "
            f"{tally.part.text_bytes:,} were planned, as it repeats itself in a dictionary or is compressed very "
            "tightly; write it again with smaller row groups and no dictionary, or plain, or take it out of the source"
        )


def _gathered(stream: Iterator[Documents]) -> Iterator[list[Documents]]:
    """Batches of documents, a few MB in each, so that an engine is called once for many small files."""
    held: list[Documents] = []
    size = 0
    for documents in stream:
        held.append(documents)
        size += documents.text_bytes
        if size >= BATCH_BYTES // 2:
            yield held
            held, size = [], 0
    if held:
        yield held


class Tally:
    """Counts what was read of a part."""

    def __init__(self, part: FilePart):
        self.part, self.documents, self.other_split = part, 0, 0
        self.counts = Counter(dict.fromkeys(TEXT_COUNTS, 0))
        self.row_groups = dict.fromkeys(part.span or () if part.file.format.has_row_groups else (), 0)

    def add(self, documents: Documents) -> None:
        self.documents += len(documents.texts)
        self.other_split += documents.other_split
        for count in TEXT_COUNTS:
            self.counts[count] += getattr(documents, count)
        if documents.row_group is not None:
            self.row_groups[documents.row_group] = self.row_groups.get(documents.row_group, 0) + len(documents.texts)

    def groups(self) -> dict:
        """How many documents each row group has, for packing `nanochat`."""
        return {"row_group_documents": list(self.row_groups.values())} if self.part.file.format.has_row_groups else {}

    def spans(self) -> dict:
        """Which row groups were read, of a file that was planned as a whole."""
        return {"row_groups": list(self.row_groups)} if self.groups() and self.part.span is None else {}

    def whole(self, identity: dict) -> dict:
        """What a record says about one file of several."""
        left_out = {count: found for count, found in self.counts.items() if found}
        return identity | self.spans() | self.groups() | {"documents": self.documents} | left_out | self.split()

    def split(self) -> dict:
        """How many documents the other split has, if the file's documents are split."""
        return {} if self.part.file.val_fraction is None else {"other_split": self.other_split}


def _source(unit: Unit, tallies: list[Tally], identities: list[dict]) -> dict:
    """What a record says about the source of its text."""
    if len(tallies) == 1:
        return identities[0] | tallies[0].spans() | tallies[0].groups() | tallies[0].split() | {"shards": unit.units}
    return {"files": [tally.whole(one) for tally, one in zip(tallies, identities, strict=True)], "shards": 1}
