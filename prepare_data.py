"""Turns shards of text into token shards, once: `python prepare_data.py --help`.

    source files -> units of work -> worker processes -> shards -> manifest.json

A unit is one shard's worth of a source file. Each worker streams its unit's documents, tokenizes,
writes, hashes and renames; tokens never cross a process boundary. The parent plans, watches and
shows progress. What is on disk already is not made again, so running the same command after a
crash, or with more source files, does only what is missing; another tokenizer is another folder.
"""

import functools
import io
import signal
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import tyro

from config import PRESETS, PrepareConfig
from tokenmill import hub
from tokenmill.engines import Encoder, choose_engine, hard_texts, sample
from tokenmill.files import locked, remove_temporary_files, write_file
from tokenmill.foreign import is_foreign, load_foreign
from tokenmill.progress import Meter
from tokenmill.shards import SPLITS, TEXT_COUNTS, ShardWriter, TokenSet, dtype_name, finished_record, write_manifest
from tokenmill.sources import SourceFile, Unit, local_files, plan_units, read_documents, split_files
from tokenmill.stdlib import write_stdlib
from tokenmill.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from tokenmill.workers import Failure, run_tasks

PROOF_DOCUMENTS = 64  # of the source, that a tokenizer or an engine is proven on before it is used


class PreparationError(Exception):
    """Some shards could not be made; the others are done. Holds (what, Failure) for each."""

    def __init__(self, failures: list[tuple[str, Failure]]):
        super().__init__(f"{len(failures)} failed")
        self.failures = failures


class Prepared(NamedTuple):
    """A token set's folder, and how many of its shards other parts have yet to make."""

    folder: Path
    missing: int


def prepare(config: PrepareConfig) -> Prepared:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all is there.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong
    before work starts, PreparationError for what went wrong with single files or shards.
    """
    files = split_files(_fetch(config), config.val_file)
    tokenizer = _tokenizer(config, files)
    folder = config.tokens_root / f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
    part, parts = config.part_of_all
    with locked(folder, shared=parts > 1):  # parts work side by side
        if parts == 1:
            remove_temporary_files(folder, folder / "shards")
        _save_tokenizer(folder, tokenizer)
        units, failures = _plan(files, config)
        records, missing = _finished(folder, units, tokenizer)
        mine = [] if config.finish else [unit for unit in units[part - 1 :: parts] if unit.name not in records]
        _say(f"{len(records)} of {len(units)} shards are there, {len(mine)} to make: {folder}")
        if mine:
            _make(folder, mine, config, failures)
            if parts == 1:
                remove_temporary_files(folder, folder / "shards")
            more, missing = _finished(folder, missing, tokenizer)
            records |= more
        if failures:
            raise PreparationError(failures)
        if missing and config.finish:
            raise ValueError(
                f"{folder}: {len(missing)} of {len(units)} shards are not there, as {missing[0].name}; run their parts"
            )
        if not missing:
            write_manifest(folder, config.dataset, tokenizer.facts(), [(records[u.name], u.file.split) for u in units])
    return Prepared(folder, len(missing))


# ---------------------------------------------------------------------------- what to prepare


def _fetch(config: PrepareConfig) -> dict[str, Path]:
    """The source's parquet files, name -> path, downloaded or written first where need be."""
    if config.source == "stdlib":
        return local_files(str(write_stdlib(config.raw_dir, _say)))
    if not Path(config.source).exists() and hub.is_repository(config.source):
        return hub.fetch(config.source, config.num_shards, config.raw_dir, _say)
    return local_files(config.source)


def _tokenizer(config: PrepareConfig, files: list[SourceFile]) -> Tokenizer:
    if is_foreign(Path(config.tokenizer)):
        texts = [*hard_texts(()), *islice(_training_texts(config, files), PROOF_DOCUMENTS)]
        return load_foreign(Path(config.tokenizer), config.bos_token, texts)
    tokenizer = _own_tokenizer(config, files)
    if config.bos_token in (None, tokenizer.bos_token):
        return tokenizer
    if config.bos_token not in tokenizer.special_tokens:
        known = ", ".join(tokenizer.special_tokens)
        raise ValueError(f"--bos-token {config.bos_token!r}: the special tokens of {tokenizer.name} are {known}")
    return replace(tokenizer, bos_token=config.bos_token)


def _own_tokenizer(config: PrepareConfig, files: list[SourceFile]) -> Tokenizer:
    if not config.tokenizer.startswith("train:"):
        return load_tokenizer(config.tokenizer)
    size = config.tokenizer.removeprefix("train:")
    if not size.isdigit():
        raise ValueError(f"tokenizer {config.tokenizer!r}: expected train:N with a number of tokens, like train:32768")
    path = config.tokenizers_dir / f"{config.dataset}-bpe{size}.json"
    if path.exists():
        _say(f"using the tokenizer trained before: {path} (delete it to train anew)")
        return Tokenizer.load(path)
    if config.part_of_all[1] > 1:
        raise ValueError(f"{path}: no tokenizer yet, and parts must share one; train it by a run without --part first")
    _say(f"training a tokenizer of {int(size):,} tokens on {config.source}")
    started = time.monotonic()
    tokenizer = train_tokenizer(_training_texts(config, files), int(size), f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    _say(f"trained in {time.monotonic() - started:.0f} s: {path}")
    return tokenizer


def _training_texts(config: PrepareConfig, files: list[SourceFile]):
    """Texts of the training files in order, up to train_text_bytes."""
    left = config.train_text_bytes
    for file in files:
        if file.split != "train":
            continue
        for unit in plan_units(file, config.text_column, config.shard_text_bytes):
            for documents in read_documents(unit):
                yield from documents.texts.to_pylist()
                left -= documents.text_bytes
                if left <= 0:
                    return


def _plan(files: list[SourceFile], config: PrepareConfig) -> tuple[list[Unit], list[tuple[str, Failure]]]:
    """The units of all files, and the files that cannot be planned. ValueError where none can."""
    units, failures = [], []
    for file in files:
        try:
            units += plan_units(file, config.text_column, config.shard_text_bytes)
        except ValueError as error:
            failures.append((file.name, Failure(str(error))))
    if not units:
        raise ValueError(failures[0][1].reason)
    return units, failures


def _finished(folder: Path, units: list[Unit], tokenizer: Tokenizer) -> tuple[dict[str, dict], list[Unit]]:
    """The records of the units that are done, by name, and the units that are not.

    ValueError where a shard of that name was made from something else: its bytes may be in use.
    """
    records, missing = {}, []
    for unit in units:
        record = finished_record(folder, unit.name)
        if record is None:
            missing.append(unit)
            continue
        made_from = record["source"] | {"fingerprint": record["fingerprint"]}
        for key, expected in (unit.source() | {"fingerprint": tokenizer.fingerprint}).items():
            if made_from[key] != expected:
                raise ValueError(
                    f"{folder}: shard {unit.name} was made from other data: {key} of {unit.file.path} was "
                    f"{made_from[key]} then, is {expected} now; prepare under another --name, or delete the folder"
                )
        records[unit.name] = record
    return records, missing


# ---------------------------------------------------------------------------- making shards


def _make(folder: Path, units: list[Unit], config: PrepareConfig, failures: list) -> None:
    """Makes shards in worker processes. Adds what failed to `failures`."""
    units = sorted(units, key=lambda unit: -unit.text_bytes)  # the longest first, so that all end together
    workers, total = min(config.workers, len(units)), sum(unit.documents for unit in units)
    engine = _engine(config.engine, folder, units)
    with Meter("preparing", total) as meter:
        make = functools.partial(make_shard, folder)
        setup = functools.partial(load_encoder, folder, engine)
        outcomes = run_tasks(make, units, setup, workers, meter.add)
    _say(f"made {meter.rates()} in {meter.seconds:.1f} s with {workers} workers and {engine}")
    for unit, outcome in zip(units, outcomes, strict=True):
        if isinstance(outcome, Failure):
            failures.append((f"shard {unit.name}", outcome))
    if referred := sum(outcome for outcome in outcomes if not isinstance(outcome, Failure)):
        _say(f"{referred:,} documents have characters that {engine} classes otherwise; tiktoken encoded them")


def _engine(wanted: str, folder: Path, units: list[Unit]) -> str:
    """The engine for these units: proven on hard texts and on the first documents of the first of them."""
    first = next((documents.texts for unit in units[:1] for documents in read_documents(unit)), None)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    engine, why = choose_engine(
        wanted, tokenizer, pa.array([], pa.large_string()) if first is None else first[:PROOF_DOCUMENTS]
    )
    if why:
        _say(f"tokenizing with {engine}: {why}")
    return engine


def load_encoder(folder: Path, engine: str) -> Encoder:
    """What a worker encodes with."""
    return Encoder(Tokenizer.load(folder / "tokenizer.json"), engine)


def make_shard(folder: Path, encoder: Encoder, unit: Unit, report) -> int:
    """Tokenizes one unit into one shard; runs in a worker. How many documents went to tiktoken for their characters."""
    counts, referred = dict.fromkeys(TEXT_COUNTS, 0), 0
    kept = dict.fromkeys(unit.row_groups, 0)  # documents of each row group
    with ShardWriter(folder, unit.name, dtype_name(encoder.tokenizer.vocab_size)) as writer:
        for documents in read_documents(unit):
            tokens, lengths, by_reference = encoder.encode(documents.texts)
            encoder.prove(documents.texts, tokens, lengths, sample(unit.name, writer.num_documents, len(lengths)))
            writer.write(tokens, lengths)
            referred += by_reference
            kept[documents.row_group] += len(lengths)
            for count in counts:
                counts[count] += getattr(documents, count)
            left_out = documents.null_documents + documents.empty_documents
            report(len(lengths) + left_out, len(tokens), documents.text_bytes)
        source = unit.source() | {"row_group_documents": list(kept.values())}
        writer.finish(counts | {"source": source, "fingerprint": encoder.tokenizer.fingerprint})
    return referred


def _save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(folder / "tokenizer.json")
    path = folder / "token_bytes.npy"
    if not path.exists():
        data = io.BytesIO()
        np.save(data, tokenizer.token_bytes())
        write_file(path, data.getvalue())


# ---------------------------------------------------------------------------- the command


def main(arguments: list[str] | None = None) -> int:
    """Prepares as the command line says; prints a summary, and last the token set's path. The exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the workers on the way out
    try:
        folder, missing = prepare(_parse(arguments))
    except PreparationError as error:
        _report(error.failures)
        return 1
    except (ValueError, OSError) as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; run the same command to go on from here")
        return 128 + signal.SIGINT
    if missing:
        _say(f"this part is done; {missing:,} shards of other parts are not there yet")
    else:
        _summarize(folder)
    print(folder)
    return 0


def _parse(arguments: list[str]) -> PrepareConfig:
    preset = PRESETS.get(arguments[0]) if arguments else None
    flags = arguments[1:] if preset else arguments
    return tyro.cli(PrepareConfig, args=flags, default=preset or PrepareConfig(), prog="prepare_data.py")


def _report(failures: list[tuple[str, Failure]]) -> None:
    for what, failure in failures:
        _say(f"failed: {what}: {failure.reason}")
        if failure.traceback:
            _say(failure.traceback)
    _say(f"error: {len(failures)} failed, all others are done; mend the cause and run the same command again")


def _summarize(folder: Path) -> None:
    token_set = TokenSet(folder)
    facts, itemsize = token_set.manifest, token_set.numpy_dtype.itemsize
    print(
        f"{facts['dataset']}, tokenizer {token_set.tokenizer['name']} of {token_set.tokenizer['vocab_size']:,} tokens"
    )
    for split in SPLITS:
        entries = token_set.split(split)
        documents, tokens = sum(entry.documents for entry in entries), sum(entry.tokens for entry in entries)
        size = f"{tokens * itemsize / 1e6:10,.1f} MB"
        print(f"  {split:5} {len(entries):6,} shards {documents:12,} documents {tokens:16,} tokens {size}")
    print(f"  {facts['text_bytes'] / max(1, facts['tokens']):.2f} bytes of text a token")
    print(f"  left out: {facts['null_documents']:,} null and {facts['empty_documents']:,} empty documents")
    if facts["repaired_documents"]:
        print(f"  mended: {facts['repaired_documents']:,} documents that were not UTF-8 (bad bytes became U+FFFD)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    import prepare_data  # by its name, so that workers find make_shard in a module that they can import

    sys.exit(prepare_data.main())
