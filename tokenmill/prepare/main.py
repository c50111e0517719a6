"""`tokenmill prepare`: the process that workers are forked from starts before anything else.

It imports what they need while this process imports, reads the flags and plans.
"""

from typing import Any

from tokenmill.prepare.workers import WorkerSource

MODULES = ["tokenmill.prepare.make"]


def main(arguments: list[str], prog: str, **more: Any) -> int:
    """As `main` of command.py says."""
    source = WorkerSource()
    try:
        if not {"-h", "--help"}.intersection(arguments):
            source.start(MODULES)
        from tokenmill.prepare import command

        return command.main(arguments, prog, source=source, **more)
    finally:
        source.kill()
