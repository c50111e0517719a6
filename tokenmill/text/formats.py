"""The formats of source files, told by their names' ends, and what is told about reading them."""

import re
from dataclasses import dataclass

SUFFIX = re.compile(r"\.(parquet$|jsonl|txt)(\.gz|\.zst)?$")
FORMATS = ("parquet", "jsonl", "txt")  # what a folder is taken for, the first that it has files of
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class Reading:
    """How documents are told in a file, where its format leaves it open."""

    text_column: str = "text"
    document_separator: bytes | None = None
    skip_broken_lines: bool = False
