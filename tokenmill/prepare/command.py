"""`tokenmill prepare`: parses, prepares, and prints a summary, the token set's path last."""

import difflib
import re
import shlex
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import tyro

from tokenmill.humanize import counted, in_bytes
from tokenmill.prepare.config import PRESETS, PrepareConfig
from tokenmill.prepare.pool import Failure
from tokenmill.prepare.run import PreparationError, prepare
from tokenmill.remote.token_set import open_set
from tokenmill.sanitize import sanitize
from tokenmill.store.columns import TARGETS
from tokenmill.store.shards import SPLITS, Split
from tokenmill.store.token_sets import TokenSet
from tokenmill.text.formats import format_of

FEW = 20_000  # tokens


def main(arguments: list[str], prog: str, presets: Mapping[str, PrepareConfig] = PRESETS) -> int:
    """Prepares as the command line says; prints a summary, and last the token set's path. The exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the workers on the way out
    try:
        config = _parse(arguments, prog, presets)
        folder, missing, sentences = prepare(config)
    except PreparationError as error:
        _report(error)
        return 1
    except KeyboardInterrupt:
        _say("interrupted; run the same command to continue from here")
        return 128 + signal.SIGINT
    if config.dry_run:
        print("\n".join(map(sanitize, sentences)))
        return 0
    if missing:
        _say(f"this part is done; of other parts {counted(missing, 'unit')} not there yet")
    else:
        _summarize(open_set(folder), config)
        for line in sentences:
            print(sanitize(f"  {line}"))
        print(next_step(folder, "data" if prog.endswith(".py") else "tokenmill", config.chat is not None))
    print(folder)
    return 0


def _parse(arguments: list[str], prog: str, presets: Mapping[str, PrepareConfig]) -> PrepareConfig:
    """The configuration of the preset before the flags, changed by the flags; of the first one if nothing is named."""
    named = arguments[:1] if arguments and not arguments[0].startswith("-") else []
    for name in named:
        if name not in presets:
            meant = difflib.get_close_matches(name, presets, 1, 0.5)
            hint = f"; did you mean {meant[0]}?" if meant else ""
            _say(f"error: no preset {name!r}, there are {', '.join(presets)}{hint} (text is named by --source {name})")
            sys.exit(2)
    for name, preset in presets.items():
        if not isinstance(preset, PrepareConfig):
            raise ValueError(f"preset {name!r} must be a PrepareConfig(...), not {preset!r}; fix it in config.py")
    arguments = _one_source_flag(arguments[len(named) :])
    flags = {argument.partition("=")[0] for argument in arguments}
    chosen = named[0] if named else next(iter(presets)) if not flags & {"--source", "--help", "-h"} else None
    default = presets[chosen] if chosen else None
    if default is not None and "--val-fraction" in flags and "--val-file" not in flags:
        default = replace(default, val_file=None)  # of the preset, which the flag overrides
    described = f"{PrepareConfig.__doc__}\n\nYou may name a preset before the flags:\n{_listed(presets)}"
    prog = f"{prog} {named[0] if named else '[PRESET]'}"
    how: Any = {} if default is None else {"default": default}
    return tyro.cli(PrepareConfig, args=arguments, prog=prog, description=described, **how)


def _one_source_flag(arguments: list[str]) -> list[str]:
    """The arguments with the values of all --source flags behind the first one: a second flag would replace it."""
    values, others, place = list[str](), list[str](), 0
    waiting = deque(arguments)
    while waiting:
        flag, equals, value = (one := waiting.popleft()).partition("=")
        if flag != "--source":
            others.append(one)
            continue
        place = place if values else len(others)
        values += [value] if equals else []
        while waiting and not equals and not waiting[0].startswith("-"):
            values.append(waiting.popleft())
    return [*others[:place], "--source", *values, *others[place:]] if values else arguments


def _listed(presets: Mapping[str, PrepareConfig]) -> str:
    """Each preset with its settings, one per line; the first one is what runs if nothing is named."""
    lines = []
    for name, preset in presets.items():
        changed = [f.name for f in fields(preset) if f.default is MISSING or getattr(preset, f.name) != f.default]
        flags = " ".join(f"--{field.replace('_', '-')} {_as_flag(getattr(preset, field))}" for field in changed)
        lines.append(f"  {name}: {flags}")
    return "\n".join([*lines, f"Without a preset and --source, {next(iter(presets))} is prepared."])


def _as_flag(value: object) -> str:
    return shlex.join(value) if isinstance(value, tuple) else str(value)


def _report(error: PreparationError) -> None:
    alike: dict[str, list[Failure]] = {}
    for failure in error.failures:
        alike.setdefault(re.sub(r"\S+\.\S+|\d[\d,]*", "", failure.reason), []).append(failure)
    for first, *more in alike.values():
        name = first.task.files[0].shown
        _say(f"failed: {first.reason}" if name in first.reason else f"failed: {name}: {first.reason}")
        if len(files := first.task.files) > 1:
            _say(f"{len(files):,} files that are made together wait for it, {files[0].name} to {files[-1].name}")
        if more:
            _say(f"and {len(more):,} more that differ only in the file or line, up to {more[-1].task.files[-1].name}")
        if first.traceback:
            _say(first.traceback)
    if Path(error.folder).exists():
        _say(f"what is done is in {error.folder}; run the same command to continue, or delete the folder")
    _say(f"error: {len(error.failures)} failed; fix the cause and run the same command again")


def _summarize(token_set: TokenSet, config: PrepareConfig) -> None:
    facts, tokenizer = token_set.manifest, token_set.tokenizer
    print(f"{facts['dataset']}, tokenizer {tokenizer['name']} of {tokenizer['vocab_size']:,} tokens")
    for split in SPLITS:
        for line in _of_split(token_set, split):
            print(f"  {line}")
    if facts["text_bytes"]:  # which conversations that are tokenized already do not have
        print(f"  {facts['text_bytes'] / max(1, facts['tokens']):.2f} bytes of text a token")
    for line in (*_left_out(token_set, config), *_of_conversations(token_set)):
        print(sanitize(f"  {line}"))


def _of_split(token_set: TokenSet, split: Split) -> Iterator[str]:
    entries = token_set.split(split)
    documents, tokens = sum(entry.documents for entry in entries), sum(entry.tokens for entry in entries)
    sizes = f"{counted(len(entries), 'shard'):>12} {counted(documents, 'document'):>22} {tokens:18,} tokens"
    yield f"{split:5} {sizes} {in_bytes(tokens * token_set.numpy_dtype.itemsize):>12}"
    if not documents:
        yield f"warning: no document is there to {'train on' if split == 'train' else 'validate with'}"
    elif split == "val":
        rule = token_set.manifest["prepared"]["validation"]
        files = list(dict.fromkeys(source for entry in entries for source in entry.sources))
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        share = tokens / max(1, token_set.manifest["tokens"])
        of = f"{rule.get('fraction', 0):.4g} of the documents, chosen by a hash of their text (--val-fraction)"
        named = f"{''.join(files[:1])}{more} (--val-file names another)"
        yield sanitize(f"validates: {of if 'fraction' in rule else named}, {share:.1%} of the tokens")
        if tokens < FEW:
            yield f"warning: {tokens:,} tokens are few to validate with: what a loss on them says is mostly chance"


def _left_out(token_set: TokenSet, config: PrepareConfig) -> Iterator[str]:
    """What was left out of the set or repaired, in sentences."""
    facts = token_set.manifest
    empty = {kind: facts[f"{kind}_documents"] for kind in ("null", "empty") if facts[f"{kind}_documents"]}
    if empty:
        yield f"left out: {' and '.join(f'{count:,} {kind}' for kind, count in empty.items())} documents"
    if facts["broken_lines"]:
        yield f"left out: {counted(facts['broken_lines'], 'broken line')}"
    if facts["oversized_documents"]:
        many = f"{counted(facts['oversized_documents'], 'document')} of more than {config.max_document_bytes:,} bytes"
        yield f"left out: {many} (--max-document-bytes)"
        names = (name for entry in token_set.entries for name in entry.sources)
        if config.document_separator is None and any(entry.is_text for entry in filter(None, map(format_of, names))):
            yield "a file is one document, unless --document-separator says what separates those in it"
    if facts["repaired_documents"]:
        many = counted(facts["repaired_documents"], "document")
        yield f"repaired: {many} with invalid UTF-8 (bad bytes were replaced with U+FFFD)"


def _of_conversations(token_set: TokenSet) -> Iterator[str]:
    """How many of a chat set's tokens are in the loss, and which conversations were left out, with the reasons."""
    if not token_set.is_chat:
        return
    shards = [token_set.open(entry) for entry in token_set.entries]
    targets = sum(int(shard.column(TARGETS.suffix).sum()) for shard in shards)
    tokens = token_set.manifest["tokens"]
    yield f"{targets:,} tokens are in the loss, {targets / max(1, tokens):.1%}"
    if broken := token_set.manifest.get("broken_conversations"):
        yield f"left out: {counted(broken, 'row')} without a conversation (--skip-broken)"
    refused, first = Counter[str](), dict[str, str]()
    for entry in token_set.entries:
        for reason, many in token_set.record(entry).get("refused", {}).items():
            refused[reason] += many
            first.setdefault(reason, entry.sources[0])
    for reason, many in refused.most_common():
        yield f"left out: {counted(many, 'conversation')}: {reason} (the first in {first[reason]})"


def next_step(folder: Path | str, module: str, is_chat: bool) -> str:
    """The lines that train on a set, and the one that looks at it; `module` is what is imported from."""
    settings = f"batch_size=8, seq_len=1024, tokens={str(folder)!r}"
    lines = [f"from {module} import get_batch", f'inputs, targets = get_batch("train", {settings})']
    if is_chat:  # long conversations are an error by default, and a loss is divided by the loader's `targets`
        lines = [f"from {module} import RowLoader", f'loader = RowLoader({settings}, long_documents="crop")']
        lines.append("inputs, targets = next(loader)")
    train = "\n".join(lines)
    look = "tokenmill" if module == "tokenmill" else "python -m tokenmill"
    return f"""train on it:

{train}

look at it:

{look} report {shlex.quote(str(folder))}
"""


def _say(text: str) -> None:
    print(sanitize(text), file=sys.stderr, flush=True)
