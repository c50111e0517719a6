"""What validates. The rule is the set's: it is kept when the set grows, so no document changes its split.

    1. --val-file or --val-fraction
    2. files or folders with the word val, valid, validation or dev in their names
    3. else 1% of the documents, by a hash of their text; 10% of a source below 10 MiB

Files for tests, by their names, are left out, unless --val-file names files or the source has no others. Only the
user's own word makes more than 20% of the bytes validate.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from tokenmill.prepare.config import PrepareConfig
from tokenmill.text.source_file import SourceFile

VALIDATES = re.compile(r"(^|[/_.-])(validation|valid|val|dev)([/_.-]|$)", re.IGNORECASE)  # web/validation/a.jsonl
FOR_TESTS = re.compile(r"(^|[/_.-])(test|eval|heldout)([/_.-]|$)", re.IGNORECASE)  # test-00000-of-00001.parquet
FRACTION, LITTLE, FRACTION_OF_LITTLE = 0.01, 10 << 20, 0.1
MOST = 0.2  # of the bytes, which may validate without the user's word
LAST = "last"
SHOWN = 3

Rule = dict[str, Any]  # as a manifest has it: {"file": "a.parquet"}, {"fraction": 0.01} or {"names": true}


def find_rule(
    config: PrepareConfig, files: Sequence[SourceFile], former: Rule | None, shown: str, earlier: Rule | None = None
) -> Rule:
    """What validates. ValueError if a set that grows was made by another rule."""
    named: Rule | None = None
    if config.val_file is not None:
        named = {"file": files[-1].name if config.val_file == LAST else config.val_file}
        if former is not None and config.val_file == LAST:
            named = former if "file" in former else named
    elif config.val_fraction is not None:
        named = {"fraction": config.val_fraction}
    if former is not None:
        if named not in (None, former):
            raise ValueError(
                f"{shown}: validates {_told(former)}, and cannot now validate {_told(named or {})}; leave that flag "
                "out, or prepare under another --name"
            )
        return former
    if named is not None:
        return named
    if any(VALIDATES.search(file.name) for file in files):
        return {"names": True}
    if earlier is not None and "fraction" in earlier:  # of a set of another tokenizer, so that bits per byte compare
        return earlier
    return {"fraction": FRACTION_OF_LITTLE if sum(file.bytes for file in files) < LITTLE else FRACTION}


def _told(rule: Rule) -> str:
    if "fraction" in rule:
        return f"{rule['fraction']:.4g} of all documents (--val-fraction)"
    return f"{rule['file']} (--val-file)" if "file" in rule else "the files whose names say so"


def divide(files: Sequence[SourceFile], rule: Rule, is_kept: bool = False) -> tuple[list[SourceFile], list[str]]:
    """The files, each with the share of its documents that validates; and what was decided, in sentences.

    ValueError if nothing would be left to train on, or if names alone would make too much validate, unless the rule is
    that of a set that is there.
    """
    by_user = rule.get("file")
    tests = [file for file in files if FOR_TESTS.search(file.name) and not VALIDATES.search(file.name)]
    tests = [] if by_user or len(tests) == len(files) else tests  # a source of tests alone is meant
    tested, divided, is_exact = {test.name for test in tests}, [], by_user in {file.name for file in files}
    for file in (file for file in files if file.name not in tested):
        is_val = fnmatchcase(file.name, by_user) if by_user else bool(VALIDATES.search(file.name))
        is_val = file.name == by_user if is_exact else is_val
        divided.append(replace(file, validates=rule["fraction"] if "fraction" in rule else float(is_val)))
    total = sum(file.text_bytes for file in divided)
    share = sum(file.text_bytes * file.validates for file in divided) / max(1, total)
    names = [file.name for file in divided if file.validates == 1.0]
    if by_user and not names:
        raise FileNotFoundError(
            f"--val-file {by_user}: no such file, and none of this name in the source, which has "
            f"{_some([file.name for file in files])}"
        )
    if len(names) == len(divided):
        raise ValueError(
            f"{_some(names)} would validate, and nothing would be left to train on; add training files, or give "
            "--val-fraction 0.01"
        )
    if "names" in rule and share > MOST and not is_kept:
        raise ValueError(
            f"{_some(names)} would validate, as the names say, {share:.0%} of the source; say what validates by "
            "--val-file or --val-fraction"
        )
    said = [f"validates: {_fraction(rule['fraction'])}"] if "fraction" in rule else []
    said += [f"validates: {_some(names)}, about {share:.1%} of the text"] if names else []
    if not names and (called := [file.name for file in divided if VALIDATES.search(file.name)]):
        said.append(f"warning: {_some(called)}: called after a validation split, and split like all others in this set")
    if tests:
        said.append(
            f"left out, for tests as the names say: {_some([file.name for file in tests])}; to use them, name them "
            "alone as --source, or as --val-file"
        )
    return divided, said


def _fraction(fraction: float) -> str:
    return f"{fraction:.4g} of the documents, chosen by a hash of their text (--val-fraction; --val-file names files)"


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
