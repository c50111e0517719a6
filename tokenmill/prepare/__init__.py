"""Preparing: text becomes a token set, once, on all cores or many machines.

Comes in: a PrepareConfig. Goes out: a token set's folder, or which shards failed and why (outcomes).

    prepare_config    what the user asks for; run goes through the steps with it:
    input_files       lists the files to read; choose_tokenizer: finds or trains the tokenizer
    splits            decides which files validate, also when a set grows
    inventory         knows which shards are needed and made; plan: finds what is missing
    shard_size        decides how much text a shard has
    estimate          says how many bytes that will take
    execute           has it made; upload: sends shards to a bucket as they are made
    make              makes one shard of one unit of work, in a worker
    metadata          keeps columns of the source beside the tokens
    tokenize_documents  tokenizes a batch of texts, or of conversations
    workers           gives waiting_tasks to worker processes, which fork_server starts; cluster: to Ray's
    cores             counts the cores that a process may use
    progress          shows what is happening; command: `tokenmill prepare`

It must never know how rows are made of what it writes.
"""

from typing import TYPE_CHECKING

from tokenmill.extras import naming_the_extra

if TYPE_CHECKING:
    from tokenmill.prepare.outcomes import Prepared
    from tokenmill.prepare.prepare_config import PrepareConfig


def prepare(config: "PrepareConfig") -> "Prepared":
    """Prepares a token set, or what is missing of it. Returns its folder, and how many shards other parts must make.

    If it is interrupted, run it again: it continues where it stopped, and the result is byte-identical to that of an
    undisturbed run. Progress goes to standard error.

    Raises ValueError, FileNotFoundError, ConnectionError or OSError for what a user can get wrong before work starts,
    PreparationError for what went wrong with single files or shards, and ModuleNotFoundError, with the command for pip,
    if the extra `prepare` is not installed.
    """
    with naming_the_extra("prepare"):
        from tokenmill.prepare import run  # loads its packages only when it is needed

    return run.prepare(config)
