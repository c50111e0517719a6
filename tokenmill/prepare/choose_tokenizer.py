"""The tokenizer of a preparation: named, read from a file, or trained on the source.

find_tokenizer(config, files, asked, say)      gpt2, a tokenizer.json, a model on the hub; or
                                               train:N, trained once and kept
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import ceil
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.chat.conversations import texts_of_row
from tokenmill.chat.find_rule import find_chat_rule, with_rule
from tokenmill.chat.renderer import Renderer
from tokenmill.messages import in_bytes
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.fetching import fetch_files
from tokenmill.prepare.progress import LINE_SECONDS
from tokenmill.text.documents import DocumentBatch, read_unit
from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import plan, shard_size
from tokenmill.text.source_file import SourceFile
from tokenmill.text.validation import Rule, divide, find_rule
from tokenmill.tokenize.load import load_any
from tokenmill.tokenize.lost import LostCharacters
from tokenmill.tokenize.tokenizer import Tokenizer
from tokenmill.tokenize.train import train_tokenizer

TRAIN_TEXT_BYTES = 1 << 30  # that train:N reads, at most

Say = Callable[[str], None]


def find_tokenizer(
    config: PrepareConfig, files: Sequence[SourceFile], asked: Rule | None, say: Say
) -> Tokenizer | None:
    """The requested tokenizer; trains it if that is asked for and was not done before.

    `asked` is what the flags say of validation: what validates does not train a tokenizer either.

    None if a dry run would have to. ValueError, FileNotFoundError or ConnectionError if there is
    none.
    """
    if config.train_size is None:
        is_added = config.bos_token in config.added_tokens
        tokenizer = load_any(config.tokenizer_name, None if is_added else config.bos_token)
        _warn_of_losses(tokenizer, say)
    else:
        trained = _trained(config, config.train_size, files, asked, say)
        if trained is None:
            return None
        tokenizer = trained
    if config.added_tokens:
        tokenizer = tokenizer.with_added(config.added_tokens)
    tokenizer = tokenizer.with_ends(config.bos_token)
    if config.chat is None:
        return tokenizer.with_ends(eot_token=config.eot_token)
    by_default = ", by default" if config.tokenizer is None else ""
    say(f"tokenizer: {config.tokenizer_name}{by_default}")
    tokenizer = with_rule(tokenizer, find_chat_rule(config.chat, config.loss))
    renderer = Renderer(tokenizer)
    _require_turns_to_end(renderer, config, say)
    missing = [token for token in renderer.written if token not in tokenizer.special_tokens]
    if missing:
        say(
            f"warning: {config.chat} writes {', '.join(missing)}, which {tokenizer.name} has no "
            "token for, so each becomes several tokens of text; add it by --add-tokens"
        )
    return tokenizer


def _warn_of_losses(tokenizer: Tokenizer, say: Say) -> None:
    """Says what of a text the tokenizer's ids do not have."""
    lost = LostCharacters(tokenizer)
    if lost.unknown:
        say(
            f"warning: tokenizer {tokenizer.name} has no token for some characters, as "
            f"{lost.unknown[:8]!r}; they are lost from the text, and counted, and more than a "
            "thousandth of a file's is an error"
        )
    if not lost.keeps_white_space:
        say(
            f"warning: tokenizer {tokenizer.name} does not keep white space: line breaks, or "
            "several spaces, have the ids of one space or none, which is not counted"
        )


def _trained(
    config: PrepareConfig, size: int, files: Sequence[SourceFile], asked: Rule | None, say: Say
) -> Tokenizer | None:
    """The tokenizer that was trained before, or a new one; None if a dry run would train it."""
    path = _path_of_trained(config.tokens_root, config.dataset, size)
    if path.exists():
        say(
            f"using the tokenizer trained before for a data set of this name: {path} (delete "
            "it to train again)"
        )
        return Tokenizer.load(path)
    if config.dry_run:
        return None
    _require_no_parts(path, config.part_of)
    say(f"training a tokenizer of {size:,} tokens on {' and '.join(config.source)}")
    divided, _ = divide(files, find_rule(asked, files))
    texts = training_texts(divided, config.options, TRAIN_TEXT_BYTES, say)
    return _train(texts, size, path, say)


def _require_turns_to_end(renderer: Renderer, config: PrepareConfig, say: Say) -> None:
    """ValueError if what ends a turn is not in the loss, unless that is meant."""
    end = renderer.unlearned_end()
    if end is None:
        return
    problem = (
        f"{config.chat}: the {{% generation %}} blocks of the template leave {end} out of the "
        "loss, so a model would not learn to stop"
    )
    if not config.unended_turns:
        raise ValueError(f"{problem}; end them after it, or give --unended-turns if that is meant")
    say(f"warning: {problem}")


def _path_of_trained(tokens_root: str, dataset: str, size: int) -> Path:
    root = Path("data/tokens") if has_scheme(tokens_root) else Path(tokens_root)
    return root.absolute().parent / "tokenizers" / f"{dataset}-bpe{size}.json"


def _require_no_parts(path: Path, part_of: tuple[int, int]) -> None:
    if part_of[1] > 1:
        raise ValueError(
            f"{path}: no tokenizer yet, and parts must share one; train it by a run without --part "
            "first"
        )


def _train(texts: Iterator[str], size: int, path: Path, say: Say) -> Tokenizer:
    started = time.monotonic()
    read = 0

    def read_texts() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += len(text.encode())
            yield text
        say(f"all {in_bytes(read)} of text is read; now tokens are merged, without progress")

    def say_progress() -> None:
        seconds = time.monotonic() - started
        say(f"training for {seconds:.0f} s: {in_bytes(read)} of text is read")

    with _saying(say_progress):
        tokenizer = train_tokenizer(read_texts(), size, f"bpe{size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)
    seconds = time.monotonic() - started
    say(f"trained in {seconds:.0f} s: {path}")
    return tokenizer


@contextlib.contextmanager
def _saying(say_progress: Callable[[], None]) -> Iterator[None]:
    """Calls the function every few seconds, in a thread."""
    is_done = threading.Event()

    def run() -> None:
        while not is_done.wait(LINE_SECONDS):
            say_progress()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def training_texts(
    files: Sequence[SourceFile], options: ReadOptions, most: int, say: Say
) -> Iterator[str]:
    """Texts that train, about `most` bytes of them.

    All, or those of units from all over the source, and of a unit with more than that, batches at
    even distances.
    """
    units = plan(files, options, shard_size(files))
    units = [unit for unit in units if unit.files[0].val_share < 1.0]
    random.Random(0).shuffle(units)
    bytes_left = most
    for unit in units:
        fetch_files(unit, lambda name: say(f"fetching {name}, to train on"))
        step = max(1, ceil(unit.text_bytes / most))
        for batch in islice(read_unit(unit, options), 0, None, step):
            texts = _texts_of(batch.chosen(~batch.is_val), options)
            bytes_left -= sum(len(text.encode()) for text in texts)
            yield from texts
        if bytes_left <= 0:
            return


def _texts_of(batch: DocumentBatch, options: ReadOptions) -> list[str]:
    rows: list[str] = batch.texts.to_pylist()
    if not options.conversations:
        return rows
    texts = []
    for row in rows:
        texts += texts_of_row(row, options.messages_column)
    return texts
