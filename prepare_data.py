"""Turns shards of text into token shards, once: `python prepare_data.py --help`.

    source files -> units of work -> worker processes -> shards -> manifest.json

A unit is one shard's worth of a source file. Each worker streams its unit's documents, tokenizes,
writes, hashes and renames; tokens never cross a process boundary. The parent plans, watches and
shows progress. What is on disk already is not made again, so running the same command after a
crash, or with more source files, does only what is missing; another tokenizer is another folder.
"""

import contextlib
import io
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config import PRESETS, PrepareConfig
from tokenmill.engines import hard_texts, require_engine
from tokenmill.files import locked, remove_temporary_files, write_file
from tokenmill.foreign import is_foreign, load_foreign
from tokenmill.inventory import Inventory
from tokenmill.missing import look_again, make_missing
from tokenmill.origin import Source, find_source
from tokenmill.progress import Bars
from tokenmill.shards import SPLITS, TokenSet, write_manifest
from tokenmill.sources import plan_units, read_documents
from tokenmill.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from tokenmill.workers import Failure

PROOF_DOCUMENTS = 64  # of the source, that a foreign tokenizer is checked on


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
    with Bars() as bars, contextlib.closing(find_source(config, bars)) as source:
        tokenizer = _tokenizer(config, source)
        require_engine(config.engine, tokenizer)
        folder = config.tokens_root / f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
        alone = config.part_of_all[1] == 1
        with locked(folder, shared=not alone):  # parts work side by side
            if alone:
                remove_temporary_files(folder, folder / "shards")
            _save_tokenizer(folder, tokenizer)
            stock = Inventory(folder, tokenizer.fingerprint, config.reading, config.shard_text_bytes)
            failures = make_missing(stock, source, config, bars)
            if alone:
                remove_temporary_files(folder, folder / "shards")
            if failures:
                raise PreparationError(failures)
            look_again(stock, source)
            missing = stock.missing(source.files)
            if missing and config.finish:
                raise ValueError(f"{folder}: {len(missing)} shards are not there, as {missing[0]}; run their parts")
            if not missing:
                entries = stock.entries(source.files)
                write_manifest(folder, config.dataset, tokenizer.facts(), entries, source.facts())
    return Prepared(folder, len(missing))


# ---------------------------------------------------------------------------- what to prepare


def _tokenizer(config: PrepareConfig, source: Source) -> Tokenizer:
    if is_foreign(Path(config.tokenizer)):
        texts = [*hard_texts(()), *islice(_training_texts(config, source), PROOF_DOCUMENTS)]
        return load_foreign(Path(config.tokenizer), config.bos_token, texts)
    tokenizer = _own_tokenizer(config, source)
    if config.bos_token in (None, tokenizer.bos_token):
        return tokenizer
    if config.bos_token not in tokenizer.special_tokens:
        known = ", ".join(tokenizer.special_tokens)
        raise ValueError(f"--bos-token {config.bos_token!r}: the special tokens of {tokenizer.name} are {known}")
    return replace(tokenizer, bos_token=config.bos_token)


def _own_tokenizer(config: PrepareConfig, source: Source) -> Tokenizer:
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
    tokenizer = train_tokenizer(_training_texts(config, source), int(size), f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    _say(f"trained in {time.monotonic() - started:.0f} s: {path}")
    return tokenizer


def _training_texts(config: PrepareConfig, source: Source) -> Iterator[str]:
    """Texts of the training files in order, up to train_text_bytes; fetches no more files than that takes."""
    left = config.train_text_bytes
    files = [file for file in source.files if file.split == "train"]
    for number, file in enumerate(files):
        for future, fetched in source.fetch(files[number : number + config.download_workers]).items():
            if fetched is file:
                future.result()
        for unit in plan_units(file, config.reading, config.shard_text_bytes):
            for documents in read_documents(unit):
                yield from documents.texts.to_pylist()
                left -= documents.text_bytes
                if left <= 0:
                    return


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
    import tyro  # here, as workers import this module too

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
    if facts["broken_lines"]:
        print(f"  left out: {facts['broken_lines']:,} broken lines")
    if facts["repaired_documents"]:
        print(f"  mended: {facts['repaired_documents']:,} documents that were not UTF-8 (bad bytes became U+FFFD)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    import prepare_data  # by its name, so that workers find make_shard in a module that they can import

    sys.exit(prepare_data.main())
