"""Turns text into token files, once: `python prepare_data.py --help`. All is in tokenmill/."""

import sys

from config import PRESETS
from tokenmill.cli import run

if __name__ == "__main__":
    sys.exit(run("prepare", sys.argv[1:], "prepare_data.py", presets=PRESETS))
