"""The formats of source files, told by their names' ends, and what is told about reading them.

.parquet                                          parquet
.jsonl .ndjson, plain or .gz, .zst; .json.gz .zst  jsonl: a JSON object a line
.txt, plain or .gz, .zst                          txt
.json                                             jsonl too, in a folder that has nothing else
"""

import re
from dataclasses import dataclass

SUFFIX = re.compile(r"\.(parquet$|jsonl|ndjson|json|txt)(\.gz|\.zst)?$", re.IGNORECASE)
KINDS = ("parquet", "jsonl", "txt", "json")  # what a folder is taken for, the first that it has files of
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_DOCUMENT_BYTES = 16 << 20  # longer than any book
KNOWN = ".parquet, .jsonl, .ndjson, .json or .txt (all but the first also .gz, .zst)"


@dataclass(frozen=True)
class Reading:
    """How documents are told in a file, where its format leaves it open."""

    text_column: str = "text"
    document_separator: bytes | None = None
    skip_broken_lines: bool = False
    id_column: str | None = None
    max_document_bytes: int = MAX_DOCUMENT_BYTES  # a longer text, or line of jsonl, is left out and counted

    def facts(self, format: str) -> dict[str, str]:
        """What of this a file's documents follow from, for the record of a shard that is made of it."""
        found: dict[str, str | None] = {}
        if format != "txt":
            found = {"text_column": self.text_column, "id_column": self.id_column}
        elif self.document_separator:
            found = {"document_separator": self.document_separator.decode("utf-8", "backslashreplace")}
        return {key: value for key, value in found.items() if value is not None}


def kind_of(name: str) -> str | None:
    """One of KINDS, or None where the name is of no known format."""
    found = SUFFIX.search(name)
    if found is None:
        return None
    kind = found[1].lower()
    return "jsonl" if kind == "ndjson" or (kind == "json" and found[2]) else kind
