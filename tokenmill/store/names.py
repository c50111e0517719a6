"""Checks names that come from others, in manifests, records, listings and tokenizers.

    plain("shard", "shard_00000.000")          one part of a path; ValueError for "../../home/model"
    plain_path("file", "data/a.parquet")       such parts below a folder
    require_inside(folder, path)               ValueError if a link leads out of the folder

A name is checked where it comes in (schema.py, hub listings, tokenizers), so that every path made
from it stays in the folder that the user named.
"""

import os
import re
import unicodedata
from pathlib import Path

LONGEST = 240  # bytes of UTF-8: with an ending it is to fit into 255
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
NOT_SHOWN = {"Cc", "Cs", "Zl", "Zp"}  # control characters, halves of characters, breaks of lines


def is_plain(name: object) -> bool:
    """Whether this can be one part of a path, and can be shown."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        return False
    if "/" in name or len(name) > LONGEST:
        return False
    if name.isascii():
        return name.isprintable()
    return all(map(is_shown, name)) and len(name.encode()) <= LONGEST


def is_shown(character: str) -> bool:
    """Whether a character is visible, and does not move, hide or reverse the text beside it."""
    return character not in BIDI and unicodedata.category(character) not in NOT_SHOWN


def by_number(name: object) -> tuple[list[tuple[int, str]], str]:
    """A key to sort names or paths by, with 2 before 10."""
    text = str(name)
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], text


def plain(what: str, name: object) -> str:
    """The name. ValueError if it cannot be one part of a path."""
    if not is_plain(name):
        shown = ascii(name)[:200]
        raise ValueError(
            f"{what} must be a plain name, without `/` or control characters, not {shown}"
        )
    return str(name)


def plain_path(what: str, path: object) -> str:
    """The path. ValueError if it is not made of plain names below a folder."""
    if not isinstance(path, str) or not all(map(is_plain, path.split("/"))):
        shown = ascii(path)[:200]
        raise ValueError(f"{what} must be a path of plain names below a folder, not {shown}")
    return path


def require_inside(folder: Path, path: Path) -> None:
    """ValueError if the folder of `path` is not inside `folder`, after following links.

    `path` itself may be a link.
    """
    real = os.path.realpath(path.parent)
    root = os.path.realpath(folder)
    if os.path.commonpath([real, root]) != root:
        raise ValueError(
            f"{path}: lies outside of {folder}, in {real}, by a link; nothing is deleted or "
            "written there"
        )
