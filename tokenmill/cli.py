"""The command line: `tokenmill VERB`, or `python -m tokenmill VERB` if it is not installed.

A verb is a function of a module, `main(arguments, prog)`, which returns an exit status, or None for
0. It is imported only when it is used, because each verb needs packages of its own. This module
decides how they all end: with an exit status, and with one line for an error that the user can fix.

    0      success
    1      an error, which was printed; or a problem that was found (verify)
    2      invalid command-line arguments
    130    Ctrl-C
"""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tokenmill import __version__
from tokenmill.extras import naming_the_extra
from tokenmill.messages import sanitize

COPY_COMMANDS = "exchange.copy_commands"


class Verb(NamedTuple):
    """One command."""

    help: str
    module: str
    extra: str  # the extra with the packages that it needs
    function: str = "main"  # of the module


VERBS = {
    "prepare": Verb("turn text into a token set, once, on all cores", "prepare.main", "prepare"),
    "list": Verb("list the token sets on this disk", "look.list_sets", "report"),
    "show": Verb("print rows, batches, steps or documents, decoded", "look.show", "report"),
    "report": Verb("say what packings do to a token set", "look.report", "report"),
    "verify": Verb("check every byte of a token set", "look.verify", "report"),
    "mix": Verb("forecast what a mixture takes from each source", "look.mix", "report"),
    "view": Verb("choose and repeat documents by their metadata", "views.command", "view"),
    "push": Verb("upload a token set to a bucket or the hub", COPY_COMMANDS, "remote", "send"),
    "pull": Verb("download a token set from a bucket or the hub", COPY_COMMANDS, "remote", "fetch"),
    "convert": Verb(
        "write or read files of nanoGPT, llm.c, Megatron ...", "exchange.convert", "prepare"
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
    return _exit_status(partial(_choose, arguments))


def run(verb: str, arguments: list[str], prog: str, **more: Any) -> int:
    """Runs one command under the name `prog`. Returns the exit status."""
    return _exit_status(partial(_run, verb, arguments, prog, **more))


def help_page() -> str:
    """The help page: one line for each command."""
    head = (
        "usage: tokenmill COMMAND [OPTIONS]\n\n"
        "Turn text into token files once, and token files into training rows.\n"
    )
    width = max(map(len, VERBS))
    lines = [f"  {name:{width}}  {verb.help}" for name, verb in VERBS.items()]
    last = (
        "\nFor help on a command, run tokenmill COMMAND --help. For the version, run "
        "tokenmill --version."
    )
    return "\n".join([head, *lines, last])


def _choose(arguments: list[str]) -> int:
    first, *rest = arguments or [""]
    if first in VERBS:
        return _run(first, rest, f"tokenmill {first}")
    if first == "--version":
        print(f"tokenmill {__version__}")
        return 0
    if first in ("", "-h", "--help", "help"):
        print(help_page())
        return 0 if first else 2
    known = ", ".join(VERBS)
    error = f"error: no command {first!r}; the commands are {known}"
    for near in difflib.get_close_matches(first, VERBS, 1):
        error += f"; did you mean {near}?"
    print(error, file=sys.stderr)
    return 2


def _run(verb: str, arguments: list[str], prog: str, **more: Any) -> int:
    command = VERBS[verb]
    with naming_the_extra(command.extra):
        module = importlib.import_module(f"tokenmill.{command.module}")
        function = getattr(module, command.function)
        status: int | None = function(arguments, prog, **more)
    return status or 0


def _exit_status(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit status. Prints an error that the user can fix."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # for example `tokenmill verify ... | head`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python flushes again when it exits
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, ImportError) as error:
        print(sanitize(f"error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
