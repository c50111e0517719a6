"""Preparing: text becomes a token set, once, on all cores or many machines.

Comes in: a PrepareConfig. Goes out: a token set's folder, or which units failed and why.

    config            what the user asks for; presets: some that are ready
    main              `tokenmill prepare`; command: its flags, and its summary
    run               the whole story: list, decide what validates, plan, make, write the manifest
    input_files       lists the files to read; fetching: fetches the hub's ahead of the workers
    choose_tokenizer  finds or trains the tokenizer
    destination       where a set is made: a folder or an address
    remembered        the command that made a set, kept beside it
    estimate          says what is ahead: files to fetch, text to tokenize, space on disks
    made              says whether a unit is made; make: makes it, in a worker
    column_types      the type of each column that is kept, one in the whole set
    unit_shard        a shard of a unit that is being written, with what its record counts
    encode            tokenizes some texts, or conversations
    pool              runs tasks in worker processes; cluster: Ray's; failures: why one failed
    workers           the processes, forked from one that has made what they share
    progress          shows what is happening

It must never know how rows are made of what it writes.
"""

from typing import TYPE_CHECKING

from tokenmill.extras import naming_the_extra

if TYPE_CHECKING:
    from tokenmill.prepare.config import PrepareConfig
    from tokenmill.prepare.run import Prepared


def prepare(config: "PrepareConfig") -> "Prepared":
    """Prepares a token set, or what is missing of it.

    Returns (folder, missing, sentences): the set's folder or address, how many units other parts
    must still make, and what a dry run or a grown set has to say.

    If it is interrupted, run it again: it continues where it stopped, and the result is
    byte-identical to that of an undisturbed run. Progress goes to standard error.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong
    before work starts and if no document is left to train on, PreparationError for what went wrong
    with single units, and ModuleNotFoundError, with the command for pip, if the extra `prepare` is
    not installed.
    """
    with naming_the_extra("prepare"):
        from tokenmill.prepare import run  # loads its packages only when it is needed

    return run.prepare(config)
