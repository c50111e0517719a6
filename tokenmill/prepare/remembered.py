"""The command that made a set, kept beside its folder, so that the set is continued by its name.

    data/tokens/web-gpt2-1bd489c3/            the set
    data/tokens/.web-gpt2-1bd489c3.command    cd /home/me && tokenmill prepare --source web ...

It is no part of the set, as it names paths of this machine. A set at an address has none.
"""

import os
import shlex
from dataclasses import replace
from pathlib import Path

from tokenmill.messages import redact
from tokenmill.prepare.config import PrepareConfig

SUFFIX = ".command"


def command_path(folder: Path) -> Path:
    """Where the command that made the set in a folder is kept."""
    folder = folder.absolute() if folder.name else folder.resolve()
    return folder.with_name(f".{folder.name}{SUFFIX}")


def command_of(folder: Path) -> str:
    """The command that made the set in a folder; "" if it is not known."""
    path = command_path(folder)
    return path.read_bytes().decode().removesuffix("\n") if path.is_file() else ""


def parts_of_command(folder: Path) -> tuple[str, list[str]]:
    """Where the command that made the set in a folder was run, and its flags.

    ValueError if the file of the command is damaged.
    """
    try:
        _, where, _, _, _, *flags = shlex.split(command_of(folder))
    except ValueError as error:
        raise ValueError(
            f"{command_path(folder)}: expected the command that made the set, found damage "
            f"({error}); delete the file, and name the set's text by --source"
        ) from error
    return where, flags


def sets_named(root: Path, name: str) -> list[Path]:
    """The folders of the sets of a data set whose commands are kept."""
    folders = []
    for path in sorted(root.glob(f".*{SUFFIX}")):
        folder = path.with_name(path.name[1:].removesuffix(SUFFIX))
        if folder.is_dir() and f" --name {name} " in f"{command_of(folder)} ":
            folders.append(folder)
    return folders


def command_for(config: PrepareConfig) -> str:
    """What makes the same set, wherever it is, however many workers there are."""
    same_set = replace(
        config,
        name=config.dataset,
        tokens_root=PrepareConfig.tokens_root,
        workers=PrepareConfig.workers,
        cluster=None,
        part=None,
        dry_run=False,
    )
    command = redact(shlex.join(["tokenmill", "prepare", *flags_of(same_set)]))
    return f"cd {shlex.quote(os.getcwd())} && {command}"


def flags_of(config: PrepareConfig) -> list[str]:
    """The flags that differ from their defaults, as `tokenmill prepare` takes them."""
    flags = ["--source", *config.source]
    for field, value in vars(config).items():
        flag = field.replace("_", "-")
        if field == "source" or value == getattr(PrepareConfig, field):
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags
