"""The tokenizer of a preparation: named, trained on the source, or somebody else's; and its files in a token set."""

import io
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.origin import Source
from tokenmill.store.files import write_file
from tokenmill.store.schema import MOST_IDS
from tokenmill.text.lots import about_text_bytes
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import SourceFile
from tokenmill.tokenize.encoder import hard_texts
from tokenmill.tokenize.foreign import is_foreign, load_any
from tokenmill.tokenize.tokenizer import Tokenizer, train_tokenizer

PROOF_DOCUMENTS = 64  # of the source, that a foreign tokenizer is checked on
SAMPLED_FILES, SAMPLED_HUB_FILES = 64, 8  # that train:N reads of, at most: a hub's have to be fetched first
PLACES = 8  # in each file


def find_tokenizer(config: PrepareConfig, source: Source, say: Callable[[str], None]) -> Tokenizer:
    """The tokenizer that the configuration names; trains it where that is asked for and was not done before.

    ValueError, FileNotFoundError or ConnectionError where there is none.
    """
    if config.tokenizer.startswith("train:"):
        tokenizer = _trained(config, source, say).framed(config.bos_token)
    else:
        foreign = is_foreign(Path(config.tokenizer))
        texts = [*hard_texts(()), *islice(_training_texts(config, source), PROOF_DOCUMENTS)] if foreign else []
        tokenizer = load_any(config.tokenizer, config.bos_token, texts)
    if not (config.eot or config.eot_token):
        return tokenizer
    return tokenizer.framed(eot_token=config.eot_token or tokenizer.end_of_text())


def size_to_train(config: PrepareConfig) -> int | None:
    """Tokens of a tokenizer that is to be trained first; None where there is one.

    ValueError where train:N has no such N, or parts are to be made without one.
    """
    if not config.tokenizer.startswith("train:") or (path := _trained_path(config)).exists():
        return None
    if config.part_of_all[1] > 1 or config.finish:
        raise ValueError(
            f"{path}: no tokenizer yet, and parts must share one; train it by a run without --part and --finish first"
        )
    return int(_size(config))


def _size(config: PrepareConfig) -> str:
    size = config.tokenizer.removeprefix("train:")
    if not size.isdecimal() or not 0 < int(size) <= MOST_IDS:
        raise ValueError(
            f"tokenizer {config.tokenizer!r}: expected train:N of up to {MOST_IDS:,} tokens, as train:32768"
        )
    return size


def _trained_path(config: PrepareConfig) -> Path:
    return config.tokenizers_dir / f"{config.dataset}-bpe{_size(config)}.json"


def _trained(config: PrepareConfig, source: Source, say: Callable[[str], None]) -> Tokenizer:
    size, path = _size(config), _trained_path(config)
    if path.exists():
        say(f"using the tokenizer trained before: {path} (delete it to train anew)")
        return Tokenizer.load(path)
    say(f"training a tokenizer of {int(size):,} tokens on {config.source}")
    started = time.monotonic()
    tokenizer = train_tokenizer(_training_texts(config, source), int(size), f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    say(f"trained in {time.monotonic() - started:.0f} s: {path}")
    return tokenizer


def _training_texts(config: PrepareConfig, source: Source) -> Iterator[str]:
    """Texts from all over the training files, up to train_text_bytes: as much of each as it is of the whole.

    Of more files than `SAMPLED_FILES`, of so many, at even distances; of each, stretches at even distances.
    """
    files = [file for file in source.files if file.split == "train"]
    files = _spread(files, SAMPLED_FILES if source.downloads is None else SAMPLED_HUB_FILES)
    fetched = source.fetch(files)
    sizes = [min(about_text_bytes(file), config.train_text_bytes) for file in files]
    share = config.train_text_bytes / max(1, sum(sizes))
    left = 0.0  # what files before this one did not have
    for file, size in zip(files, sizes, strict=True):
        for future in [future for future, of in fetched.items() if of is file]:
            future.result()
        wanted = left + size * share  # of little text all, whatever its size was taken for
        yielded = 0
        for text in _texts_of(file, config, wanted):
            yielded += len(text.encode())
            yield text
        left = max(0.0, wanted - yielded)


def _texts_of(file: SourceFile, config: PrepareConfig, wanted: float) -> Iterator[str]:
    """Texts of a file, up to about `wanted` bytes, from places at even distances."""
    stretch = max(1 << 16, int(wanted / PLACES))
    units = _spread(plan_units(file, config.reading, stretch), PLACES if wanted < about_text_bytes(file) else 1 << 62)
    left = wanted
    for number, unit in enumerate(units):
        here = left / (len(units) - number)
        texts = chain.from_iterable(documents.texts.to_pylist() for documents in read_documents(unit))
        while here > 0 and (text := next(texts, None)) is not None:
            yield text
            size = len(text.encode())
            here, left = here - size, left - size


Some = TypeVar("Some")


def _spread(items: list[Some], most: int) -> list[Some]:
    """At most so many of the items, at even distances."""
    if len(items) <= most:
        return items
    return [items[(2 * number + 1) * len(items) // (2 * most)] for number in range(most)]


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes the tokenizer, and the bytes that its tokens stand for, into a token set's folder."""
    tokenizer.save(folder / "tokenizer.json")
    path = folder / "token_bytes.npy"
    if not path.exists():
        data = io.BytesIO()
        np.save(data, tokenizer.token_bytes())
        write_file(path, data.getvalue())
