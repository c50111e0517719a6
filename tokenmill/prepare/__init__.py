"""Preparing: text becomes a token set, once, on all cores or many machines.

Comes in: a PrepareConfig (config). Goes out: a token set's folder, or which shards failed and why (outcomes).

    run         the whole of it
    origin      the files to read; tokenizers: the tokenizer to read them with
    splits      which files validate, also of a set that grows
    inventory   what a token set needs, and what of it is there; plan: what is missing; missing: has that made
    outlook     what is ahead, in bytes and time, before anything is fetched
    make        one unit of work -> one shard, in a worker
    elsewhere   shards sent to a bucket as they are made
    workers     tasks to worker processes, which nursery forks; cluster: to Ray's; cores: how many there may be
    progress    what a person sees meanwhile; command: `tokenmill prepare`

It must never know how rows are made of what it writes.
"""

from typing import TYPE_CHECKING

from tokenmill.extras import naming_the_extra

if TYPE_CHECKING:
    from tokenmill.prepare.config import PrepareConfig
    from tokenmill.prepare.outcomes import Prepared


def prepare(config: "PrepareConfig") -> "Prepared":
    """Prepares a token set, or what is missing of it: its folder, and how many shards other parts have yet to make.

    Run it again and it goes on where it was; the result is byte-identical to an undisturbed run's. Progress goes to
    standard error.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong before work starts,
    PreparationError for what went wrong with single files or shards, ModuleNotFoundError with the line for pip where
    the extra `prepare` is not installed.
    """
    with naming_the_extra("prepare"):
        from tokenmill.prepare import run  # what it needs is not loaded before it is asked for

    return run.prepare(config)
