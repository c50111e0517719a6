"""Turns shards of text into token shards, once.

    source files -> units of work -> worker processes -> shards -> manifest.json

A unit is one shard's worth of a source file. Each worker streams its unit's documents, tokenizes,
writes, hashes and renames; tokens never cross a process boundary. The parent plans, watches and
shows progress. What is on disk already is not made again, so running the same command after a
crash, or with more source files, does only what is missing; another tokenizer is another folder.
"""

import contextlib
from dataclasses import replace

from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.cores import available_cores
from tokenmill.prepare.elsewhere import Elsewhere
from tokenmill.prepare.inventory import Inventory
from tokenmill.prepare.missing import make_missing
from tokenmill.prepare.origin import find_source
from tokenmill.prepare.outcomes import PreparationError, Prepared
from tokenmill.prepare.progress import Bars
from tokenmill.prepare.splits import (
    changes,
    former_entries,
    in_former_order,
    keep_splits,
    require_all_there,
    still_dropped,
)
from tokenmill.prepare.tokenizers import find_tokenizer, save_tokenizer
from tokenmill.remote.addresses import joined
from tokenmill.store.files import locked, remove_temporary_files
from tokenmill.store.token_sets import write_manifest
from tokenmill.tokenize.encoder import require_engine


def prepare(config: PrepareConfig) -> Prepared:
    """`prepare_and_tell`, without what became of the splits."""
    return prepare_and_tell(config)[0]


def prepare_and_tell(config: PrepareConfig) -> tuple[Prepared, list[str]]:
    """Prepares a token set, or what is missing of it, or this part of it; writes the manifest once all is there.

    And what became of the splits of a set that there was: sentences, none where nothing did.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong
    before work starts, PreparationError for what went wrong with single files or shards.
    """
    with Bars() as bars, contextlib.closing(find_source(config, bars)) as source:
        if config.workers > (cores := available_cores()) and config.cluster is None:
            bars.say(f"warning: {config.workers} workers for {cores} cores: more memory, and no more speed")
        tokenizer = find_tokenizer(config, source, bars.say)
        require_engine(config.engine, tokenizer)
        name = f"{config.dataset}-{tokenizer.name}-{tokenizer.fingerprint[:8]}"
        folder, address = config.here / name, config.elsewhere and joined(config.elsewhere, name)
        elsewhere = Elsewhere(address, folder) if address else None
        alone = config.part_of_all[1] == 1
        with locked(folder, shared=not alone):  # parts work side by side
            written = (folder, folder / "shards", folder / "manifests")
            if alone:
                remove_temporary_files(*written)
            if elsewhere is not None:
                elsewhere.bring()
            former = former_entries(folder)
            require_all_there(folder, source.files)
            source = replace(source, files=keep_splits(source.files, former, config.val_file is not None))
            save_tokenizer(folder, tokenizer)
            stock = Inventory(folder, tokenizer.fingerprint, config.reading, config.shard_text_bytes, elsewhere)
            failures = make_missing(stock, source, config, bars)
            if alone:
                remove_temporary_files(*written)
            if failures:
                raise PreparationError(failures)
            stock.look_again()
            missing = stock.missing(source.files)
            if missing and (config.finish or alone):
                raise ValueError(f"{folder}: {len(missing)} shards are not there, as {missing[0]}; run their parts")
            if missing:
                return Prepared(address or folder, len(missing)), []
            records = in_former_order(stock.entries(source.files), former)
            dropped = still_dropped(folder, records)
            write_manifest(folder, config.dataset, tokenizer.facts(), records, source.facts(), dropped)
            if elsewhere is not None:
                elsewhere.close()
    return Prepared(address or folder, 0), changes(records, former)
