"""One command: `tokenmill VERB`, or `python -m tokenmill VERB` where it is not installed.

A verb is a module with `main(arguments, prog)`, an exit status or None for 0; it is imported when it is asked for, as
each needs packages of its own. Here is how all of them end: an exit status, and one line for what a user can mend.

    0      done
    1      an error, printed; or what was looked for is wrong (verify)
    2      the words of the command line are off
    130    Ctrl-C
"""

import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenmill import __version__
from tokenmill.extras import MissingExtra, naming_the_extra
from tokenmill.printed import printed


@dataclass(frozen=True)
class Verb:
    """What `tokenmill VERB` does, and where."""

    module: str
    extra: str  # that has what it needs
    help: str


VERBS = {
    "prepare": Verb("tokenmill.prepare.command", "prepare", "turn text into a token set, once, on all cores"),
    "show": Verb("tokenmill.look.show", "report", "print rows, batches, steps or documents, decoded"),
    "report": Verb("tokenmill.look.report", "report", "write one HTML page about a token set"),
    "verify": Verb("tokenmill.look.verify", "report", "check every byte of a token set"),
    "mix": Verb("tokenmill.look.mix", "report", "tell what a mixture gives of each source, before the run"),
    "push": Verb("tokenmill.exchange.push", "remote", "send a token set to a bucket or the hub"),
    "pull": Verb("tokenmill.exchange.pull", "remote", "fetch a token set from a bucket or the hub"),
    "convert": Verb("tokenmill.exchange.convert", "prepare", "write or read nanoGPT's, llm.c's, Megatron's ... files"),
}


def main(arguments: list[str] | None = None) -> int:
    """Does what the command line says. The exit status."""
    return _ending(lambda: _choose(sys.argv[1:] if arguments is None else arguments))


def run(verb: str, arguments: list[str], prog: str, **more: Any) -> int:
    """Runs one command, under the name `prog`. The exit status."""
    return _ending(lambda: _run(verb, arguments, prog, **more))


def help_page() -> str:
    """The commands, one a line."""
    widest = max(map(len, VERBS))
    return "\n".join(
        [
            "usage: tokenmill COMMAND [OPTIONS]",
            "",
            "Shards of text become token files, once, and these become training rows.",
            "",
            *(f"  {name:{widest}}  {verb.help}" for name, verb in VERBS.items()),
            "",
            "tokenmill COMMAND --help tells more, tokenmill --version the version.",
        ]
    )


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
    meant = difflib.get_close_matches(first, VERBS, 1)
    hint = f"; did you mean {meant[0]}?" if meant else ""
    print(f"error: no command {first!r}, there are {', '.join(VERBS)}{hint}", file=sys.stderr)
    return 2


def _run(verb: str, arguments: list[str], prog: str, **more: Any) -> int:
    with naming_the_extra(VERBS[verb].extra):
        status: int | None = importlib.import_module(VERBS[verb].module).main(arguments, prog, **more)
    return status or 0


def _ending(command: Callable[[], int]) -> int:
    """The exit status of a command, after an error that the user can mend is told."""
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `tokenmill verify ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at its end
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, MissingExtra) as error:
        print(printed(f"error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
