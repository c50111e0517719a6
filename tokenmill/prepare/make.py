"""One unit of work -> one shard, in a worker process."""

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tokenmill.store.shards import TEXT_COUNTS, ShardWriter, dtype_name
from tokenmill.text.sources import read_documents
from tokenmill.text.units import Unit
from tokenmill.tokenize.engines import Encoder, choose_encoder, sample
from tokenmill.tokenize.tokenizer import Tokenizer

PROOF_DOCUMENTS = 64  # of a worker's first unit, that an engine is proven on before it is used


class Made(NamedTuple):
    """What a worker tells of a shard beside what it wrote."""

    engine: str
    why: str  # not a faster engine, or ""
    referred: int  # documents that tiktoken encoded for the characters in them


def load_encoder(folder: Path, engine: str, unit: Unit) -> tuple[Encoder, str]:
    """What a worker encodes with, proven on the first documents of its first unit, and why not a faster engine."""
    first = next((documents.texts for documents in read_documents(unit)), pa.array([], pa.large_string()))
    return choose_encoder(engine, Tokenizer.load(folder / "tokenizer.json"), first[:PROOF_DOCUMENTS])


def make_shard(folder: Path, state: tuple[Encoder, str], unit: Unit, report) -> Made:
    """Tokenizes one unit into one shard; reports (documents, tokens, bytes of text, share of unit.text_bytes)."""
    encoder, why = state
    counts, referred = dict.fromkeys(TEXT_COUNTS, 0), 0
    kept = dict.fromkeys(unit.identity.get("row_groups", ()), 0)  # documents of each row group
    with ShardWriter(folder, unit.name, dtype_name(encoder.tokenizer.vocab_size)) as writer:
        for documents in read_documents(unit):
            tokens, lengths, by_reference = encoder.encode(documents.texts)
            encoder.prove(documents.texts, tokens, lengths, sample(unit.name, writer.num_documents, len(lengths)))
            writer.write(tokens, lengths)
            referred += by_reference
            if kept:
                kept[documents.row_group] += len(lengths)
            for count in counts:
                counts[count] += getattr(documents, count)
            report(documents.read, len(tokens), documents.text_bytes, documents.share)
        groups = {"row_group_documents": list(kept.values())} if "row_groups" in unit.identity else {}
        source = unit.identity | groups | {"shards": unit.units}
        writer.finish(counts | {"source": source, "fingerprint": encoder.tokenizer.fingerprint})
    return Made(encoder.engine, why, referred)
