"""`tokenmill prepare`: parses, prepares, and prints a summary, the token set's path last."""

import difflib
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import tyro

from tokenmill.messages import counted, in_bytes, sanitize
from tokenmill.prepare.config import PRESETS, PreparationError, PrepareConfig
from tokenmill.prepare.made import left_out
from tokenmill.prepare.run import prepare
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import TARGETS
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet

FEW = 20_000  # tokens


def main(arguments: list[str], prog: str, presets: Mapping[str, PrepareConfig] = PRESETS) -> int:
    """Prepares as the command line says; prints a summary, and last the token set's path. The exit status."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # stops the workers on the way out
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
        _summarize(open_set(folder))
        for line in sentences:
            print(sanitize(f"  {line}"))
        print(
            next_step(
                folder, "data" if prog.endswith(".py") else "tokenmill", config.chat is not None
            )
        )
    print(folder)
    return 0


def _parse(arguments: list[str], prog: str, presets: Mapping[str, PrepareConfig]) -> PrepareConfig:
    """The configuration of the preset before the flags, changed by the flags; of the first one if nothing is named."""
    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    flags = [argument.partition("=")[0] for argument in arguments]
    if named is not None and named not in presets:
        hint = "".join(
            f"; did you mean {meant}?"
            for meant in difflib.get_close_matches(named, presets, 1, 0.5)
        )
        _exit(
            f"no preset {named!r}, there are {', '.join(presets)}{hint} (text is named by --source {named})"
        )
    if flags.count("--source") > 1:
        _exit("--source is there twice; give all sources behind one --source")
    how: dict[str, Any] = {}
    if named or not {"--source", "--help", "-h"} & {*flags}:
        is_other = "--val-fraction" in flags and "--val-file" not in flags
        preset = presets[named or next(iter(presets))]
        how["default"] = replace(preset, val_file=None) if is_other else preset
    elif "--source" not in flags:  # help
        how["default"] = PrepareConfig(source=next(iter(presets.values())).source)
    described = (
        f"{PrepareConfig.__doc__}\n\nYou may name a preset before the flags:\n{_listed(presets)}"
    )
    prog, arguments = f"{prog} {named or '[PRESET]'}", arguments[named is not None :]
    return tyro.cli(PrepareConfig, args=arguments, prog=prog, description=described, **how)


def _exit(message: str) -> NoReturn:
    _say(f"error: {message}")
    sys.exit(2)


def _listed(presets: Mapping[str, PrepareConfig]) -> str:
    """Each preset on a line; the first one is what runs if nothing is named."""
    lines = []
    for name, preset in presets.items():
        given = vars(preset) | {"source": shlex.join(preset.source)}
        given = {
            key: value for key, value in given.items() if value != getattr(PrepareConfig, key, None)
        }
        lines.append(
            f"  {name}: "
            + " ".join(f"--{key.replace('_', '-')} {value}" for key, value in given.items())
        )
    return "\n".join(
        [
            *lines,
            f"\nA preset names its own source. Without a preset and --source, {next(iter(presets))} is prepared.",
        ]
    )


def _report(error: PreparationError) -> None:
    kinds = set[str]()
    for failure in error.failures:
        if (
            kind := re.sub(r"\S+\.\S+|\d[\d,]*", "", failure.reason)
        ) not in kinds:  # without names and numbers
            kinds.add(kind)
            files, name = failure.task.files, failure.task.files[0].shown
            _say(
                f"failed: {failure.reason}"
                if name in failure.reason
                else f"failed: {name}: {failure.reason}"
            )
            if len(files) > 1:
                _say(
                    f"{len(files):,} files are made together, {name} to {files[-1].name}: none of them is made"
                )
            if failure.traceback:
                _say(failure.traceback)
    if more := len(error.failures) - len(kinds):
        _say(f"and {more:,} more that differ only in the file or line")
    _say(f"error: {len(error.failures)} failed; fix the cause and run the same command again")


def _summarize(token_set: TokenSet) -> None:
    facts, tokenizer = token_set.manifest, token_set.tokenizer
    said = f"tokenizer {tokenizer['name']} of {tokenizer['vocab_size']:,} tokens, BOS {tokenizer['bos_token']}"
    print(f"{facts['dataset']}, {said}")
    for split in SPLITS:
        entries = token_set.split(split)
        documents, tokens = (
            sum(entry.documents for entry in entries),
            sum(entry.tokens for entry in entries),
        )
        sizes = f"{counted(len(entries), 'shard'):>12} {counted(documents, 'document'):>22} {tokens:18,} tokens"
        print(f"  {split:5} {sizes} {in_bytes(tokens * token_set.numpy_dtype.itemsize):>12}")
        if split == "val" and tokens < FEW:
            hint = (
                "a loss on them is mostly chance"
                if tokens
                else "a loader of val fails; see --val-fraction"
            )
            print(f"  warning: {tokens:,} tokens are too few to validate with: {hint}")
    if facts["text_bytes"]:  # which conversations that are tokenized already do not have
        print(f"  {facts['text_bytes'] / max(1, facts['tokens']):.2f} bytes of text a token")
    if token_set.is_chat:
        targets = sum(
            int(token_set.open(entry).column(TARGETS.suffix).sum()) for entry in token_set.entries
        )
        print(f"  {targets:,} tokens are in the loss, {targets / max(1, facts['tokens']):.1%}")
    for line in left_out((token_set.record(entry), entry.split) for entry in token_set.entries):
        print(sanitize(f"  left out, or repaired: {line}"))


def next_step(folder: Path | str, module: str, is_chat: bool) -> str:
    """The lines that train on a set, and the one that looks at it; `module` is what is imported from."""
    settings = f"batch_size=8, seq_len=1024, tokens={str(folder)!r}"
    lines = [f"from {module} import get_batch", f'inputs, targets = get_batch("train", {settings})']
    if is_chat:  # long conversations are an error by default, and a loss is divided by the loader's `targets`
        lines = [
            f"from {module} import RowLoader",
            f'loader = RowLoader({settings}, long_documents="crop")',
        ]
        lines.append("inputs, targets = next(loader)")
    lines += ["", "look at it:", "", f"{_as_typed_here()} report {shlex.quote(str(folder))}", ""]
    return "\n".join(["train on it:", "", *lines])


def _as_typed_here() -> str:
    """`tokenmill`, or the path of it that was typed, or this Python and its module."""
    is_tool = Path(sys.argv[0]).name == "tokenmill"
    file = sys.argv[0] if is_tool else sys.executable
    shown = Path(file).name if shutil.which(Path(file).name) == file else os.path.relpath(file)
    return shlex.quote(shown) + " -m tokenmill" * (not is_tool)


def _say(text: str) -> None:
    print(sanitize(text), file=sys.stderr, flush=True)
