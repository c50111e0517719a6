"""The tokenizer of a preparation: named, trained on the source, or read from a file; and its files in a token set."""

import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from tokenmill.chat.chat_encoder import Renderer, texts_of_row
from tokenmill.prepare.input_files import InputFiles
from tokenmill.prepare.prepare_config import PrepareConfig
from tokenmill.store.token_sets import write_token_bytes
from tokenmill.text.file_groups import about_text_bytes
from tokenmill.text.formats import ReadOptions
from tokenmill.text.sources import plan_units, read_documents
from tokenmill.text.units import Documents, SourceFile
from tokenmill.tokenize.chat_rule import find_chat_rule
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer, train_tokenizer

SAMPLED_FILES, SAMPLED_HUB_FILES = 64, 8  # that train:N reads at most; those of a hub have to be fetched first
PLACES = 8  # in each file
TRAIN_TEXT_BYTES = 1 << 30  # that train:N reads, at most


def find_tokenizer(config: PrepareConfig, inputs: InputFiles, say: Callable[[str], None]) -> Tokenizer:
    """The requested tokenizer; trains it if that is asked for and was not done before.

    ValueError, FileNotFoundError or ConnectionError if there is none.
    """
    if config.train_size is not None:
        tokenizer = _trained(config, inputs, say).framed(config.bos_token)
    else:
        tokenizer = load_any(config.tokenizer_name, config.bos_token).of_text()  # chat sets of it are mixed with text
    if config.chat is None:
        return tokenizer.framed(eot_token=config.eot_token)
    found = tokenizer.chatting(find_chat_rule(config.chat, config.loss))
    Renderer(found)  # ValueError if it lacks what the rule needs, or the template is not valid
    return found


def must_train(config: PrepareConfig) -> bool:
    """Whether a tokenizer has to be trained first. ValueError if parts are to be made without one."""
    if config.train_size is None or config.trained.exists():
        return False
    if config.parts > 1:
        raise ValueError(
            f"{config.trained}: no tokenizer yet, and parts must share one; train it by a run without --part first"
        )
    return True


def _trained(config: PrepareConfig, inputs: InputFiles, say: Callable[[str], None]) -> Tokenizer:
    size, path = config.train_size, config.trained
    assert size is not None, "another tokenizer is not trained"
    if path.exists():
        say(f"using the tokenizer trained before: {path} (delete it to train again)")
        return Tokenizer.load(path)
    say(f"training a tokenizer of {size:,} tokens on {' and '.join(config.sources)}")
    started = time.monotonic()
    tokenizer = train_tokenizer(training_texts(inputs, config.options, TRAIN_TEXT_BYTES), size, f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    say(f"trained in {time.monotonic() - started:.0f} s: {path}")
    return tokenizer


def training_texts(inputs: InputFiles, options: ReadOptions, text_bytes: int) -> Iterator[str]:
    """Texts from all over the training files, up to `text_bytes`: the same share of each file.

    Reads at most `SAMPLED_FILES` files at even distances; of each file, stretches at even distances.
    """
    files = [file for file in inputs.files if file.split == "train"]
    files = _spread(files, SAMPLED_FILES if inputs.downloads is None else SAMPLED_HUB_FILES)
    fetched = inputs.fetch(files)
    sizes = [min(about_text_bytes(file), text_bytes) for file in files]
    share = text_bytes / max(1, sum(sizes))
    left = 0.0  # what the files before this one did not have
    for file, size in zip(files, sizes, strict=True):
        for future in [future for future, of in fetched.items() if of is file]:
            future.result()
        wanted = left + size * share  # if there is little text, all of it, whatever its size was taken for
        yielded = 0
        for text in _texts_of(file, options, wanted):
            yielded += len(text.encode())
            yield text
        left = max(0.0, wanted - yielded)


def _texts_of(file: SourceFile, options: ReadOptions, wanted: float) -> Iterator[str]:
    """Texts of a file, up to about `wanted` bytes, from places at even distances."""
    stretch = max(1 << 16, int(wanted / PLACES))
    units = _spread(plan_units(file, options, stretch), PLACES if wanted < about_text_bytes(file) else 1 << 62)
    left = wanted
    for number, unit in enumerate(units):
        here = left / (len(units) - number)
        texts = chain.from_iterable(_texts_in(documents, options) for documents in read_documents(unit))
        while here > 0 and (text := next(texts, None)) is not None:
            yield text
            size = len(text.encode())
            here, left = here - size, left - size


def _texts_in(documents: Documents, options: ReadOptions) -> list[str]:
    """The texts of documents; of conversations, those of their messages."""
    rows: list[str] = documents.texts.to_pylist()
    return [text for row in rows for text in texts_of_row(row)] if options.conversations else rows


Some = TypeVar("Some")


def _spread(items: list[Some], most: int) -> list[Some]:
    """At most `most` of the items, at even distances."""
    if len(items) <= most:
        return items
    return [items[(2 * number + 1) * len(items) // (2 * most)] for number in range(most)]


def save_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes the tokenizer, and the bytes that its tokens stand for, into a token set's folder."""
    tokenizer.save(folder / "tokenizer.json")
    write_token_bytes(folder, tokenizer.token_bytes())
