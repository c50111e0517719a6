"""The formats of source files: the name says the format, and whether the file is compressed.

format_of("web/a.jsonl.gz").name          "jsonl"
format_of("LICENSE")                      None
"""

import importlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # whoever writes a config, or shows a set, need not have it
    import pyarrow as pa

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
BATCH_BYTES = 4 << 20  # of text in memory at a time, about
MAX_DOCUMENT_BYTES = 16 << 20  # longer than any book
# by which rows with conversations are recognized (chat/conversations.py)
MESSAGES_COLUMNS = ("messages", "conversations", "conversation")
MASK_COLUMNS = ("loss_mask", "assistant_masks", "completion_mask", "labels")
UNREADABLE = "tokenmill: unreadable"  # the key of why a row of Arrow is no JSON
# the messages or ids
BESIDE = ("system", "tools", "chat_template_kwargs", "attention_mask", "loss_mask", "weight")
IDS_COLUMN = "input_ids"
CONVERSATION_COLUMNS = (
    *MESSAGES_COLUMNS,
    *BESIDE,
    "prompt",
    "completion",
    IDS_COLUMN,
    *MASK_COLUMNS,
)


@dataclass(frozen=True)
class ReadOptions:
    """How to find the documents in a file."""

    # a column; or doc.text, a field of a struct; or title,text: several, joined by a blank line
    text_column: str = "text"
    # between documents of a text file; None: a file is one document
    document_separator: str | None = None
    keep_columns: tuple[str, ...] = ()  # columns kept beside the tokens; `name?` may be missing
    # longer texts, and lines of jsonl, are left out and counted
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    skip_broken: bool = False  # leave out broken lines and count them; otherwise they are errors
    conversations: bool = False  # documents are conversations, given as JSON, and not texts
    # the column with the messages, if it has none of the usual names
    messages_column: str | None = None

    @property
    def kept(self) -> list[str]:
        """The names of the columns to keep."""
        return [name.removesuffix("?") for name in self.keep_columns]

    @property
    def required(self) -> list[str]:
        """Those that a file must have."""
        return [name for name in self.keep_columns if not name.endswith("?")]

    def text_columns(self, known: Collection[str]) -> list[str]:
        """The columns with text; a name with a comma is one column if the file has it."""
        if self.text_column in known:
            return [self.text_column]
        return self.text_column.split(",")

    @property
    def conversation_columns(self) -> tuple[str, ...]:
        """The columns that a conversation may be made of."""
        if self.messages_column is None:
            return CONVERSATION_COLUMNS
        return self.messages_column, *BESIDE

    def facts(self) -> dict[str, Any]:
        """What the documents depend on, for the record of a shard."""
        facts = dict(vars(self))
        facts["keep_columns"] = self.kept  # a set may grow by a file that lacks one
        del facts["skip_broken"], facts["conversations"]
        return {name: value for name, value in facts.items() if value not in (None, [])}


class Rows(NamedTuple):
    """Some rows of a file, as a reader yields them."""

    texts: "list[pa.Array]"  # one per text column: text or bytes, possibly null, possibly not UTF-8
    kept: "dict[str, pa.Array]"  # the columns to keep, by name
    bytes: int  # of the file that were read for them, for progress
    row_group: int | None = None
    broken: int = 0  # lines that were left out
    first_broken: str = ""  # where the first of them is, and what is wrong with it
    blank: int = 0  # lines that are no document
    oversized: int = 0  # texts that were left out while reading because they are too long
    # where in the file the row with this number is, for errors
    place: Callable[[int], str] | None = None


@dataclass(frozen=True)
class TextFormat:
    """What the rest of the package needs to know about a format."""

    name: str
    suffixes: tuple[str, ...]  # in lower case
    reader: str  # the module and function of text/ that read part k of n of a file, as Rows
    compressed: tuple[str, ...] = ()  # suffixes that .gz or .zst may follow
    is_cut: bool = True  # several workers read parts of one file; otherwise one reads all of it
    is_cut_at_url: bool = True  # so too for a file that is not on this disk
    is_text: bool = False  # without a separator a file is one document
    has_conversations: bool = True
    text_per_byte: float = 1.0  # bytes of text in a byte of the file, about
    document: str = "row"  # what `show` calls one document,
    first: int = 0  # and the number of the first one

    def read(self, file: Any, k: int, n: int, options: ReadOptions) -> Iterator[Rows]:
        """Part k of n of a SourceFile. ValueError for conversations where the format has none."""
        if options.conversations and not self.has_conversations:
            raise ValueError(
                f"{file.shown}: {self.name} has no conversations; write them as jsonl, parquet or "
                "arrow"
            )
        module, _, function = self.reader.partition(":")
        read_part = getattr(importlib.import_module(f"tokenmill.text.{module}"), function)
        rows: Iterator[Rows] = read_part(file, k, n, options)
        return rows

    def suffix_of(self, name: str) -> str | None:
        """The suffix by which a file of this name has this format; None if it has another one."""
        lower = name.lower()
        for suffix in self.suffixes:
            if lower.endswith(suffix):
                return suffix
        for suffix in self.compressed:
            for compression in COMPRESSIONS:
                if lower.endswith(suffix + compression):
                    return suffix + compression
        return None


JSONL = (".jsonl", ".ndjson")
PLAIN_TEXT: dict[str, Any] = {
    "is_text": True,
    "has_conversations": False,
    "document": "document",
}
CSV: dict[str, Any] = {"is_cut": False, "has_conversations": False}
_FORMATS = (
    TextFormat("parquet", (".parquet",), "columnar:read_parquet", text_per_byte=2.5),
    TextFormat("arrow", (".arrow",), "columnar:read_arrow", is_cut_at_url=False),
    TextFormat("jsonl", JSONL, "jsonl:read_jsonl", (*JSONL, ".json"), document="line", first=1),
    TextFormat("json", (".json",), "jsonl:read_jsonl", document="line", first=1),
    TextFormat("csv", (".csv",), "csv:read", (".csv",), first=1, **CSV),
    TextFormat("txt", (".txt",), "lines:read_text", (".txt",), **PLAIN_TEXT),
    TextFormat("md", (".md",), "lines:read_text", (".md",), **PLAIN_TEXT),
)
FORMATS = {text_format.name: text_format for text_format in _FORMATS}
FORMAT_NAMES = "/".join(FORMATS)  # for messages


def format_of(name: str) -> TextFormat | None:
    """The format of a file with this name, or None if it has no known one."""
    for text_format in FORMATS.values():
        if text_format.suffix_of(name):
            return text_format
    return None


def stem_of(name: str) -> str:
    """The name without the suffix of a known format."""
    text_format = format_of(name)
    suffix = text_format.suffix_of(name) if text_format else None
    return name[: -len(suffix)] if suffix else name
