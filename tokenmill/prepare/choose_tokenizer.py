"""The tokenizer of a preparation: named, read from a file, or trained on the source.

find_tokenizer(config, files, say)      gpt2, a tokenizer.json, a model on the hub; train:N, trained once and kept
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.chat.conversations import texts_of_row
from tokenmill.chat.find_rule import find_chat_rule, with_rule
from tokenmill.chat.renderer import Renderer
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.fetching import fetch_files
from tokenmill.text.documents import read_unit
from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import plan, shard_size
from tokenmill.text.source_file import SourceFile
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.tokenizer import Tokenizer
from tokenmill.tokenize.train import train_tokenizer

TRAIN_TEXT_BYTES = 1 << 30  # that train:N reads, at most


def find_tokenizer(
    config: PrepareConfig, files: Sequence[SourceFile], say: Callable[[str], None]
) -> Tokenizer | None:
    """The requested tokenizer; trains it if that is asked for and was not done before. None if a dry run would have to.

    ValueError, FileNotFoundError or ConnectionError if there is none.
    """
    if config.train_size is None:
        tokenizer = load_any(config.tokenizer_name, config.bos_token)
    else:
        root = Path("data/tokens") if has_scheme(config.tokens_root) else Path(config.tokens_root)
        path = (
            root.absolute().parent / "tokenizers" / f"{config.dataset}-bpe{config.train_size}.json"
        )
        if config.dry_run and not path.exists():
            return None
        tokenizer = _trained(path, config.train_size, config, files, say).with_ends(
            config.bos_token
        )
    if config.chat is None:
        return tokenizer.with_ends(eot_token=config.eot_token)
    say(f"tokenizer: {config.tokenizer_name}{', by default' * (config.tokenizer is None)}")
    found = with_rule(tokenizer, find_chat_rule(config.chat, config.loss))
    Renderer(found)  # ValueError if it lacks what the rule needs, or the template is not valid
    return found


def _trained(
    path: Path,
    size: int,
    config: PrepareConfig,
    files: Sequence[SourceFile],
    say: Callable[[str], None],
) -> Tokenizer:
    if path.exists():
        say(
            f"using the tokenizer trained before for a data set of this name: {path} (delete it to train again)"
        )
        return Tokenizer.load(path)
    if config.part_of[1] > 1:
        raise ValueError(
            f"{path}: no tokenizer yet, and parts must share one; train it by a run without --part first"
        )
    say(f"training a tokenizer of {size:,} tokens on {' and '.join(config.source)}")
    started = time.monotonic()
    tokenizer = train_tokenizer(
        training_texts(files, config.options, TRAIN_TEXT_BYTES, say), size, f"bpe{size}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    say(f"trained in {time.monotonic() - started:.0f} s: {path}")
    return tokenizer


def training_texts(
    files: Sequence[SourceFile],
    options: ReadOptions,
    most: int,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[str]:
    """Texts that train, about `most` bytes of them: all, or units from all over the source, and of a unit with more
    than that, batches at even distances.
    """
    units = [
        unit for unit in plan(files, options, shard_size(files)) if unit.files[0].val_share < 1.0
    ]
    random.Random(0).shuffle(units)
    left = most
    for unit in units:
        fetch_files(unit, lambda name: say(f"fetching {name}, to train on"))
        for documents in itertools.islice(
            read_unit(unit, options), 0, None, max(1, ceil(unit.text_bytes / most))
        ):
            rows = documents.chosen(~documents.is_val).texts.to_pylist()
            if options.conversations:
                rows = [text for row in rows for text in texts_of_row(row, options.messages_column)]
            left -= sum(map(len, rows))
            yield from rows
        if left <= 0:
            return
