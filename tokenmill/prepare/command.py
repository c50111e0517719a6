"""`tokenmill prepare`: parses, prepares, and prints a summary, the token set's path last."""

import difflib
import signal
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import tyro

from tokenmill.prepare.config import PRESETS, PrepareConfig
from tokenmill.prepare.outcomes import Failure, PreparationError
from tokenmill.prepare.run import prepare_and_tell
from tokenmill.printed import printed
from tokenmill.remote.sets import open_set
from tokenmill.store.shards import SPLITS


def main(arguments: list[str], prog: str, presets: Mapping[str, PrepareConfig] = PRESETS) -> int:
    """Prepares as the command line says; prints a summary, and last the token set's path. The exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the workers on the way out
    try:
        config = _parse(arguments, prog, presets)
        (folder, missing), changes = prepare_and_tell(config)
    except PreparationError as error:
        _report(error.failures)
        return 1
    except KeyboardInterrupt:
        _say("interrupted; run the same command to go on from here")
        return 128 + signal.SIGINT
    if missing:
        _say(f"this part is done; {missing:,} shards of other parts are not there yet")
    else:
        _summarize(folder, config)
        for line in changes:
            print(printed(f"  {line}"))
    print(folder)
    return 0


def _parse(arguments: list[str], prog: str, presets: Mapping[str, PrepareConfig]) -> PrepareConfig:
    """The configuration of a preset, where one stands before the flags, with what the flags change."""
    named = arguments[:1] if arguments and not arguments[0].startswith("-") else []
    for name in named:
        if name not in presets:
            meant = difflib.get_close_matches(name, presets, 1, 0.5)
            hint = f"; did you mean {meant[0]}?" if meant else ""
            _say(f"error: no preset {name!r}, there are {', '.join(presets)}{hint} (text is named by --source {name})")
            sys.exit(2)
    for name, preset in presets.items():
        if not isinstance(preset, PrepareConfig):
            raise ValueError(f"preset {name!r} must be a PrepareConfig(...), not {preset!r}; mend it in config.py")
    default = presets[named[0]] if named else PrepareConfig()
    described = f"{PrepareConfig.__doc__}\n\nA preset may stand before the flags:\n{_listed(presets)}"
    prog = f"{prog} {named[0] if named else '[PRESET]'}"
    return tyro.cli(PrepareConfig, args=arguments[len(named) :], default=default, prog=prog, description=described)


def _listed(presets: Mapping[str, PrepareConfig]) -> str:
    """Each preset with what it sets, a paragraph each; that without other settings is the default."""
    plain = PrepareConfig()
    lines = []
    for name, preset in presets.items():
        changed = [f.name for f in fields(preset) if getattr(preset, f.name) != getattr(plain, f.name)]
        told = " ".join(f"--{field.replace('_', '-')} {getattr(preset, field)}" for field in changed)
        lines.append(f"  {name}: {told or f'the default, --source {plain.source} --num-shards {plain.num_shards}'}")
    return "\n".join(lines)


def _report(failures: list[tuple[str, Failure]]) -> None:
    for what, failure in failures:
        _say(f"failed: {what}: {failure.reason}")
        if failure.traceback:
            _say(failure.traceback)
    _say(f"error: {len(failures)} failed, all others are done; mend the cause and run the same command again")


def _summarize(folder: Path | str, config: PrepareConfig) -> None:
    token_set = open_set(folder)
    facts, itemsize = token_set.manifest, token_set.numpy_dtype.itemsize
    print(
        f"{facts['dataset']}, tokenizer {token_set.tokenizer['name']} of {token_set.tokenizer['vocab_size']:,} tokens"
    )
    for split in SPLITS:
        entries = token_set.split(split)
        documents, tokens = sum(entry.documents for entry in entries), sum(entry.tokens for entry in entries)
        size = f"{tokens * itemsize / 1e6:10,.1f} MB"
        print(f"  {split:5} {len(entries):6,} shards {documents:12,} documents {tokens:16,} tokens {size}")
        if not documents:
            print(f"  warning: no document is there to {'train on' if split == 'train' else 'validate with'}")
    print(f"  {facts['text_bytes'] / max(1, facts['tokens']):.2f} bytes of text a token")
    print(f"  left out: {facts['null_documents']:,} null and {facts['empty_documents']:,} empty documents")
    if facts["broken_lines"]:
        print(f"  left out: {facts['broken_lines']:,} broken lines")
    if facts["oversized_documents"]:
        many = f"{facts['oversized_documents']:,} documents of more than {config.max_document_bytes:,} bytes"
        print(f"  left out: {many} (--max-document-bytes)")
        if config.document_separator is None and any(".txt" in entry.source.lower() for entry in token_set.entries):
            print("  a txt file is one document, unless --document-separator says what lies between those in it")
    if facts["repaired_documents"]:
        print(f"  mended: {facts['repaired_documents']:,} documents that were not UTF-8 (bad bytes became U+FFFD)")


def _say(text: str) -> None:
    print(printed(text), file=sys.stderr, flush=True)
