"""What validates. The rule is the set's: it is kept when the set grows, so no document changes its split.

    1. --val-file or --val-fraction
    2. files or folders with the word val, valid, validation or dev in their names
    3. else 1% of the documents, by a hash of their text; 10% of a source below 10 MiB

Files for tests, by their names, are left out, unless --val-file names files or the source has no others. Only the
user's own word makes more than 20% of the bytes validate.
"""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenmill.prepare.config import PrepareConfig
from tokenmill.text.listing import some
from tokenmill.text.source_file import SourceFile

VALIDATES = re.compile(r"(^|[/_.-])(validation|valid|val|dev)([/_.-]|$)", re.IGNORECASE)  # web/validation/a.jsonl
FOR_TESTS = re.compile(r"(^|[/_.-])(test|eval|heldout)([/_.-]|$)", re.IGNORECASE)  # test-00000-of-00001.parquet
FRACTION, LITTLE, FRACTION_OF_LITTLE = 0.01, 10 << 20, 0.1
MOST = 0.2  # of the bytes, which may validate without the user's word
LAST = "last"

Rule = dict[str, Any]  # as a manifest has it: {"file": "a.parquet"}, {"fraction": 0.01} or {"names": true}


def find_rule(config: PrepareConfig, files: Sequence[SourceFile], former: Rule | None = None, shown: str = "") -> Rule:
    """What validates. `former` is the rule of a set that grows: ValueError if another one is asked for."""
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
    by_user, every = rule.get("file"), [file.name for file in files]
    called = set(filter(VALIDATES.search, every))
    chosen = called if by_user is None else {by_user} if by_user in every else {*fnmatch.filter(every, by_user)}
    tests = [] if by_user else [name for name in filter(FOR_TESTS.search, every) if name not in called]
    tests = [] if tests == every else tests  # a source of tests alone is meant
    kept = [file for file in files if file.name not in {*tests}] if tests else files
    divided = [replace(file, validates=rule.get("fraction", float(file.name in chosen))) for file in kept]
    total = sum(file.text_bytes for file in divided)
    share = sum(file.text_bytes * file.validates for file in divided) / max(1, total)
    names = [file.name for file in divided if file.validates == 1.0]
    if by_user and not names:
        raise FileNotFoundError(f"--val-file {by_user}: no such file here or in the source, which has {some(every)}")
    if len(names) == len(divided):
        raise ValueError(
            f"{some(names)} would validate, and nothing would be left to train on; add training files, or give "
            "--val-fraction 0.01"
        )
    if "names" in rule and share > MOST and not is_kept:
        raise ValueError(
            f"{some(names)} would validate, as the names say, {share:.0%} of the source; say what validates by "
            "--val-file or --val-fraction"
        )
    how = "of the documents, chosen by a hash of their text (--val-fraction; --val-file names files)"
    said = [f"validates: {rule['fraction']:.4g} {how}"] if "fraction" in rule else []
    said += [f"validates: {some(names)}, about {share:.1%} of the text"] if names else []
    odd = [file.name for file in divided if file.validates < 1.0 and (by_user or file.name in called)]
    if odd := [name for name in odd if VALIDATES.search(name) or FOR_TESTS.search(name)]:
        said.append(f"warning: {some(odd)}: in the training data, though the name says validation or test")
    if tests:
        how = "to use them, name them alone as --source, or as --val-file"
        said.append(f"left out, for tests as the names say: {some(tests)}; {how}")
    return divided, said
