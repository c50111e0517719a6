"""`python -m tokenmill`: the command where it is not installed."""

import sys

from tokenmill.cli import main

if __name__ == "__main__":
    sys.exit(main())
