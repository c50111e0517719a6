"""`tokenmill prepare`: parses, prepares, and prints a summary, the token set's path last."""

import argparse
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

from tokenmill.addresses import path_of
from tokenmill.messages import counted, in_bytes, sanitize
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.destination import Destination
from tokenmill.prepare.failures import Failure, PreparationError
from tokenmill.prepare.presets import PRESETS
from tokenmill.prepare.remembered import command_path, flags_of, parts_of_command, sets_named
from tokenmill.prepare.run import prepare
from tokenmill.prepare.workers import WorkerSource
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import TARGETS
from tokenmill.store.shards import SPLITS
from tokenmill.store.token_sets import TokenSet

FEW = 20_000  # tokens
DESCRIPTION = (
    "Turns files of text into token shards, once, on all cores. Run it again: it continues where "
    "it stopped."
)
NAMES_AND_NUMBERS = re.compile(r"\S+\.\S+|\d[\d,]*")

Presets = Mapping[str, PrepareConfig]


def main(
    arguments: list[str],
    prog: str,
    presets: Presets = PRESETS,
    source: WorkerSource | None = None,
) -> int:
    """Prepares as the command line says. The exit status.

    Prints a summary, and last the token set's path. `source` is what workers are forked from, if it
    has been started.
    """
    # stops the workers on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        config = _parse(arguments, prog, presets)
        folder, missing, sentences = prepare(config, source)
    except PreparationError as error:
        _report(error.failures)
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
        for sentence in sentences:
            print(sanitize(f"  {sentence}"))
        module = "data" if prog.endswith(".py") else "tokenmill"
        print(next_step(folder, module, config.chat is not None))
    print(folder)
    return 0


def _parse(arguments: list[str], prog: str, presets: Presets) -> PrepareConfig:
    """The configuration of the preset before the flags, changed by the flags.

    Of the first preset if neither one nor a source is named.
    """
    name = None
    if arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
    flags = _names_of(arguments)
    if flags.count("--source") > 1:
        _exit("--source is there twice; give all sources behind one --source")
    if name is not None and name not in presets and command_path(Path(name)).is_file():
        folder = Path(name)
        name = None
        arguments = _made_by(folder, arguments)
    elif name is None and "--name" in flags and "--source" not in flags:
        arguments = _made_by(_named_set(arguments), arguments)
    elif name is not None:
        _require_preset(name, presets)
    flags = _names_of(arguments)
    first = next(iter(presets))
    defaults: dict[str, Any] = {}
    if name or not {"--source", "--help", "-h"}.intersection(flags):
        defaults["default"] = presets[name or first]
        if "--val-fraction" in flags and "--val-file" not in flags:
            defaults["default"] = replace(defaults["default"], val_file=None)
    elif "--source" not in flags:  # help
        defaults["default"] = PrepareConfig(source=presets[first].source)
    return tyro.cli(
        PrepareConfig,
        args=arguments,
        prog=f"{prog} {name or '[PRESET]'}",
        description=f"{DESCRIPTION}\n\nYou may name a preset before the flags:\n{_listed(presets)}",
        **defaults,
    )


def _names_of(arguments: list[str]) -> list[str]:
    return [argument.partition("=")[0].replace("_", "-") for argument in arguments]


def _made_by(folder: Path, arguments: list[str]) -> list[str]:
    """The flags that made a set, where it is, what validates in it, and further flags."""
    where, flags = parts_of_command(folder)
    if where != os.getcwd():
        there = shlex.join(["tokenmill", "prepare", str(folder.absolute())])
        _exit(
            f"{folder} was made in {where}, where the paths of its command are from; run it there: "
            f"cd {shlex.quote(where)} && {there}"
        )
    flags += ["--tokens-root", str(folder.parent)]
    prepared = Destination(folder.absolute(), str(folder)).manifest() or {}
    fraction = prepared.get("prepared", {}).get("validation", {}).get("fraction")
    is_said = {"--val-file", "--val-fraction"}.intersection(_names_of([*flags, *arguments]))
    if fraction is not None and not is_said:  # by default it depends on how much text there is
        flags += ["--val-fraction", str(fraction)]
    return [*flags, *arguments]


def _named_set(arguments: list[str]) -> Path:
    """The folder of the set that --name names, and that says how it was made."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--name")
    parser.add_argument("--tokens-root", "--tokens_root", default=PrepareConfig.tokens_root)
    asked, _ = parser.parse_known_args(arguments)
    sets = sets_named(path_of(asked.tokens_root), asked.name)
    if not sets:
        _exit(
            f"no set {asked.name!r} in {asked.tokens_root} says how it was made; name its folder "
            "in place of --name, or its text by --source, or a preset before the flags"
        )
    if len(sets) > 1:
        names = " or ".join(map(str, sets))
        _exit(f"{len(sets)} sets are called {asked.name!r}; name the folder of one, {names}")
    return sets[0]


def _require_preset(name: str, presets: Presets) -> None:
    if name in presets:
        return
    near = difflib.get_close_matches(name, presets, 1, 0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    names = ", ".join(presets)
    _exit(f"no preset {name!r}, there are {names}{hint} (text is named by --source {name})")


def _exit(message: str) -> NoReturn:
    _say(f"error: {message}")
    sys.exit(2)


def _listed(presets: Presets) -> str:
    """Each preset on a line; the first one is what runs if nothing is named."""
    lines = []
    for name, preset in presets.items():
        lines.append(f"  {name}: {shlex.join(flags_of(preset))}\n")
    first = next(iter(presets))
    lines.append(
        f"\nA preset names its own source. Without a preset and --source, {first} is prepared."
    )
    return "".join(lines)


def _report(failures: list[Failure]) -> None:
    """Prints why units failed: of failures that differ in names and numbers only, the first."""
    kinds = set()
    for failure in failures:
        kind = NAMES_AND_NUMBERS.sub("", failure.reason)
        if kind in kinds:
            continue
        kinds.add(kind)
        files = failure.task.files
        first = files[0].shown
        reason = failure.reason if first in failure.reason else f"{first}: {failure.reason}"
        _say(f"failed: {reason}")
        if len(files) > 1:
            _say(
                f"{len(files):,} files are made together, {first} to {files[-1].name}: none of "
                "them is made"
            )
        if failure.traceback:
            _say(failure.traceback)
    num_more = len(failures) - len(kinds)
    if num_more:
        _say(f"and {num_more:,} more that differ only in the file or line")
    _say(f"error: {len(failures)} failed; fix the cause and run the same command again")


def _summarize(token_set: TokenSet) -> None:
    manifest = token_set.manifest
    tokenizer = token_set.tokenizer
    print(
        f"{manifest['dataset']}, tokenizer {tokenizer['name']} of {tokenizer['vocab_size']:,} "
        f"tokens, BOS {tokenizer['bos_token']}"
    )
    for split in SPLITS:
        _summarize_split(token_set, split)
    num_tokens = max(1, manifest["tokens"])
    if manifest["text_bytes"]:  # which conversations that are tokenized already do not have
        bytes_per_token = manifest["text_bytes"] / num_tokens
        print(f"  {bytes_per_token:.2f} bytes of text a token")
    if token_set.is_chat:
        shards = [token_set.open(entry) for entry in token_set.entries]
        targets = sum(int(shard.column(TARGETS.suffix).sum()) for shard in shards)
        share = targets / num_tokens
        print(f"  {targets:,} tokens are in the loss, {share:.1%}")


def _summarize_split(token_set: TokenSet, split: str) -> None:
    entries = token_set.split(split)
    tokens = sum(entry.tokens for entry in entries)
    shards = counted(len(entries), "shard")
    documents = counted(sum(entry.documents for entry in entries), "document")
    size = in_bytes(tokens * token_set.numpy_dtype.itemsize)
    print(f"  {split:5} {shards:>12} {documents:>22} {tokens:18,} tokens {size:>12}")
    if split == "val" and tokens < FEW:
        hint = "a loader of val fails; see --val-fraction"
        if tokens:
            hint = "a loss on them is mostly chance"
        print(f"  warning: {tokens:,} tokens are too few to validate with: {hint}")


def next_step(folder: Path | str, module: str, is_chat: bool) -> str:
    """The lines that train on a set, and the one that looks at it. `module` is imported from."""
    settings = f"batch_size=8, seq_len=1024, tokens={str(folder)!r}"
    if is_chat:
        # long conversations are an error by default; a loss is divided by the loader's `targets`
        lines = [
            f"from {module} import RowLoader",
            f'loader = RowLoader({settings}, long_documents="crop")',
            "inputs, targets = next(loader)",
        ]
    else:
        lines = [
            f"from {module} import get_batch",
            f'inputs, targets = get_batch("train", {settings})',
        ]
    look = f"{_as_typed_here()} report {shlex.quote(str(folder))}"
    return "\n".join(["train on it:", "", *lines, "", "look at it:", "", look, ""])


def _as_typed_here() -> str:
    """`tokenmill`, or the path of it that was typed, or this Python and its module."""
    is_tool = Path(sys.argv[0]).name == "tokenmill"
    file = sys.argv[0] if is_tool else sys.executable
    name = Path(file).name
    shown = shlex.quote(name if shutil.which(name) == file else os.path.relpath(file))
    return shown if is_tool else f"{shown} -m tokenmill"


def _say(text: str) -> None:
    print(sanitize(text), file=sys.stderr, flush=True)
