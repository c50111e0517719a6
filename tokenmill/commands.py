"""How the commands `python -m tokenmill.<verb>` end: an exit status, and a line for what the user can mend."""

import signal
import sys
from collections.abc import Callable


def exit_status(command: Callable[[], None]) -> int:
    """Runs a command: 0, or 1 after an error, printed, that the user can mend; 130 after Ctrl-C."""
    try:
        command()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0
