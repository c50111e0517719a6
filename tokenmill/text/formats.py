"""The formats of source files: a registry. A file's name says which format it has.

    FORMATS["jsonl"]                     the entry: its suffixes, and the module that plans, identifies and reads files
    format_of("web/a.jsonl.gz").name     "jsonl"
    format_of("README.md")               None

To add a format, write a module with three functions and register an entry that names it:

    # toy_format.py, documents separated by a line of %%
    def identify(file, raw): ...         facts that differ between two files, for the shard's record
    def plan(file, raw, options, shard_text_bytes, known_text_bytes): ...      a list of units.Cut, one per shard
    def read(part): ...                  yields units.Documents, a few MB at a time

    # before preparing
    register_format(TextFormat("toy", (".toy",), module="toy_format"))

txt.py and separated.py are the shortest example. `raw` is the open file, a seekable pyarrow.NativeFile. `part` is a
units.FilePart. All three may raise ValueError for what the user can fix, and pyarrow's errors or OSError for damage,
which are reported with the file's name.

An entry holds strings and numbers only, so it travels to worker processes with the files it belongs to, and the
workers import its module by name. The module must be importable there: a file on `sys.path`, not the main script. With
Ray, every node needs it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from tokenmill.cached import cached_property

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
# by which rows with conversations are recognized (chat/conversations.py)
MESSAGES_COLUMNS = ("messages", "conversations", "conversation")
MASK_COLUMNS = ("loss_mask", "assistant_masks", "labels")
CONVERSATION_COLUMNS = (*MESSAGES_COLUMNS, "system", "prompt", "completion", "input_ids", *MASK_COLUMNS, "tools")
MAX_DOCUMENT_BYTES = 16 << 20  # longer than any book


class KeptColumn(NamedTuple):
    """A column to keep, by its name in the source.

    KeptColumn.parse("score")           a column, or a key of a jsonl line
    KeptColumn.parse("meta.lang")       a field of a struct, or of an object: kept as meta, a struct with lang alone
    KeptColumn.parse("note?")           null where it is missing; without `?`, what lacks it is an error
    """

    name: str
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}?" if self.optional else self.name

    @classmethod
    def parse(cls, named: str) -> Self:
        return cls(named.removesuffix("?"), named.endswith("?"))

    def path(self, known: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Its path among these columns or keys: ["meta", "lang"], or ["meta.lang"] if one of them is so named."""
        return [self.name] if self.name in known else self.name.split(".")


def parse_columns(named: str) -> tuple[str, ...]:
    """The names in a comma-separated list, each as `KeptColumn.parse` takes it. ValueError for an empty one, or two."""
    found = tuple(dict.fromkeys(name.strip() for name in named.split(",")))
    names = [KeptColumn.parse(name).name for name in found]
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"--keep-columns must be names of columns, separated by commas, not {named!r}")
    return found


@dataclass(frozen=True)
class ReadOptions:
    """How to find the documents in a file, where its format leaves a choice."""

    text_column: str = "text"
    document_separator: bytes | None = None
    skip_broken: bool = False
    id_column: str | None = None
    max_document_bytes: int = MAX_DOCUMENT_BYTES  # a longer text, or line of jsonl, is left out and counted
    conversations: bool | None = None  # documents are rows with conversations, given as JSON; None: they are texts
    messages_column: str | None = None  # the column with the messages, if it is not one of the usual names
    keep_columns: tuple[str, ...] = ()  # names of columns that are kept beside the tokens, `name?` if it may be missing

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns to keep, with that of the ids."""
        names = [name.removesuffix("?") for name in self.keep_columns]
        return self.keep_columns if self.id_column in (None, *names) else (*self.keep_columns, str(self.id_column))


@dataclass(frozen=True)
class TextFormat:
    """An entry of the registry: what the rest of the package needs to know about a format."""

    name: str  # as messages call it
    suffixes: tuple[str, ...]  # of plain files, in lower case: (".jsonl", ".ndjson")
    module: str  # has `identify`, `plan` and `read`
    compressed: tuple[str, ...] = ()  # suffixes that .gz or .zst may follow, where the whole file is compressed
    has_columns: bool = False  # whether documents have other columns, or keys, than their text
    options: tuple[str, ...] = ()  # the fields of ReadOptions that its documents depend on
    document: str = "document"  # what `show` calls one of them: "line"
    first: int = 0  # the number of the first one
    is_packed: bool = False  # compresses text within the file, to about a quarter
    has_row_groups: bool = False  # a shard's span is row groups, and not the first byte and the one after the last

    @cached_property
    def _suffix(self) -> re.Pattern[str]:
        plain, packed, ends = (
            "|".join(map(re.escape, some)) for some in (self.suffixes, self.compressed, COMPRESSIONS)
        )
        return re.compile(f"(?:{plain}|(?:{packed or '(?!)'})(?P<compressed>{ends}))$", re.IGNORECASE)

    def matches(self, name: str) -> bool:
        return self._suffix.search(name) is not None

    def stem(self, name: str) -> str:
        """The name without its suffix."""
        return self._suffix.sub("", name)

    def compression(self, name: str) -> str | None:
        """How a file of this name is compressed as a whole: gzip, zstd or None."""
        found = self._suffix.search(name)
        return COMPRESSIONS[found["compressed"].lower()] if found and found["compressed"] else None

    def facts(self, options: ReadOptions) -> dict[str, str]:
        """The options that the documents depend on, for the record of a shard that is made of them."""
        unused = {"text_column"} if options.conversations else set()
        found = {field: getattr(options, field) for field in self.options if field not in unused}
        as_text = {k: v.decode("utf-8", "backslashreplace") if isinstance(v, bytes) else v for k, v in found.items()}
        return {field: value for field, value in as_text.items() if value is not None}


# the options of formats whose rows may have conversations
OF_ROWS = ("text_column", "id_column", "conversations", "messages_column")
FORMATS: dict[str, TextFormat] = {
    entry.name: entry
    for entry in (
        TextFormat(
            "parquet",
            (".parquet",),
            "tokenmill.text.parquet",
            options=OF_ROWS,
            has_columns=True,
            document="row",
            is_packed=True,
            has_row_groups=True,
        ),
        TextFormat(
            "jsonl",
            (".jsonl", ".ndjson"),
            "tokenmill.text.jsonl",
            compressed=(".jsonl", ".ndjson", ".json"),
            options=OF_ROWS,
            has_columns=True,
            document="line",
            first=1,
        ),
        TextFormat("txt", (".txt",), "tokenmill.text.txt", compressed=(".txt",), options=("document_separator",)),
        TextFormat(
            "csv",
            (".csv",),
            "tokenmill.text.csv",
            options=("text_column", "id_column"),
            has_columns=True,
            document="row",
            first=1,
        ),
        TextFormat("md", (".md",), "tokenmill.text.txt", compressed=(".md",), options=("document_separator",)),
        TextFormat(
            "arrow",
            (".arrow",),
            "tokenmill.text.arrow",
            options=OF_ROWS,
            has_columns=True,
            document="row",
        ),
        TextFormat(
            "json",
            (".json",),
            "tokenmill.text.jsonl",
            options=OF_ROWS,
            has_columns=True,
            document="line",
            first=1,
        ),
    )
}


def register_format(entry: TextFormat) -> None:
    """Adds a format to the registry of this process; registering the same entry again changes nothing.

    ValueError if its name or a suffix is taken, or if its module is the main script, which workers do not import.
    """
    if FORMATS.get(entry.name) == entry:
        return
    taken = [format_of(f"a{suffix}") for suffix in (*entry.suffixes, *(f"{suffix}.gz" for suffix in entry.compressed))]
    if other := next(filter(None, [FORMATS.get(entry.name), *taken]), None):
        raise ValueError(f"{entry}: its name or a suffix is taken by {other}; choose another")
    if entry.module == "__main__":
        raise ValueError(f"{entry}: workers do not import the main script; move these functions into a module")
    FORMATS[entry.name] = entry


def format_of(name: str) -> TextFormat | None:
    """The format of a file of this name, or None if no format is known by it."""
    return next((entry for entry in FORMATS.values() if entry.matches(name)), None)


def stem_of(name: str) -> str:
    """The name without the suffix of a known format."""
    entry = format_of(name)
    return entry.stem(name) if entry else name


def format_names() -> str:
    """All formats, for messages: "parquet, jsonl or txt"."""
    *names, last = FORMATS
    return f"{', '.join(names)} or {last}"
