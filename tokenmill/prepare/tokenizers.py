"""The tokenizer of a preparation: named, trained on the source, or somebody else's; and its files in a token set."""

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.origin import Source
from tokenmill.store.files import write_file
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.tokenize.engines import hard_texts
from tokenmill.tokenize.foreign import is_foreign, load_foreign
from tokenmill.tokenize.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

PROOF_DOCUMENTS = 64  # of the source, that a foreign tokenizer is checked on


def find_tokenizer(config: PrepareConfig, source: Source, say: Callable[[str], None]) -> Tokenizer:
    """The tokenizer that the configuration names; trains it where that is asked for and was not done before.

    ValueError, FileNotFoundError or ConnectionError where there is none.
    """
    if is_foreign(Path(config.tokenizer)):
        texts = [*hard_texts(()), *islice(_training_texts(config, source), PROOF_DOCUMENTS)]
        return load_foreign(Path(config.tokenizer), config.bos_token, texts)
    tokenizer = _own_tokenizer(config, source, say)
    if config.bos_token in (None, tokenizer.bos_token):
        return tokenizer
    if config.bos_token not in tokenizer.special_tokens:
        known = ", ".join(tokenizer.special_tokens)
        raise ValueError(f"--bos-token {config.bos_token!r}: the special tokens of {tokenizer.name} are {known}")
    return replace(tokenizer, bos_token=config.bos_token)


def _own_tokenizer(config: PrepareConfig, source: Source, say: Callable[[str], None]) -> Tokenizer:
    if not config.tokenizer.startswith("train:"):
        return load_tokenizer(config.tokenizer)
    size = config.tokenizer.removeprefix("train:")
    if not size.isdigit():
        raise ValueError(f"tokenizer {config.tokenizer!r}: expected train:N with a number of tokens, like train:32768")
    path = config.tokenizers_dir / f"{config.dataset}-bpe{size}.json"
    if path.exists():
        say(f"using the tokenizer trained before: {path} (delete it to train anew)")
        return Tokenizer.load(path)
    if config.part_of_all[1] > 1 or config.finish:
        raise ValueError(
            f"{path}: no tokenizer yet, and parts must share one; train it by a run without --part and --finish first"
        )
    say(f"training a tokenizer of {int(size):,} tokens on {config.source}")
    started = time.monotonic()
    tokenizer = train_tokenizer(_training_texts(config, source), int(size), f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    say(f"trained in {time.monotonic() - started:.0f} s: {path}")
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


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes the tokenizer, and the bytes that its tokens stand for, into a token set's folder."""
    tokenizer.save(folder / "tokenizer.json")
    path = folder / "token_bytes.npy"
    if not path.exists():
        data = io.BytesIO()
        np.save(data, tokenizer.token_bytes())
        write_file(path, data.getvalue())
