"""What to prepare, from what, and how: the one configuration.

config = PrepareConfig(source="corpus", tokenizer="train:32768", part="3/32")
config.dataset, config.options, config.part_of      the set's name, how documents are read, (3, 32)
"""

import re
from dataclasses import dataclass
from itertools import combinations
from numbers import Real
from typing import Any, Literal, get_args

from tokenmill.addresses import has_scheme, named, path_of, require_no_password
from tokenmill.checks import one_of, text_of, truth, whole_number
from tokenmill.store.columns import KNOWN
from tokenmill.store.schema import MOST_IDS
from tokenmill.text.formats import MAX_DOCUMENT_BYTES, ReadOptions
from tokenmill.text.listing import name_of_source
from tokenmill.threads import available_cores
from tokenmill.tokenize.chat_rule import NAMES as CHAT_NAMES
from tokenmill.tokenize.chat_rule import LossRule
from tokenmill.tokenize.engine import EngineName

FEW_NAMES = 3  # of sources, that make the name of the data set
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
NOT_EMPTY = ["tokenizer", "bos_token", "add_tokens", "val_file", "chat", "raw_dir"]
TEXTS = [*NOT_EMPTY, "eot_token", "messages_column", "name", "text_column", "keep_columns"]
TEXTS += ["document_separator", "revision", "tokens_root", "part"]
VALUES: dict[str, tuple[Any, ...]] = {
    "loss": get_args(LossRule),
    "engine": get_args(EngineName),
    "cluster": (None, "ray"),
}
TRUTHS = ("unended_turns", "skip_broken", "keep_raw", "dry_run")
SMALLEST = {"workers": 1, "num_shards": 1, "max_document_bytes": 1, "shard_text_bytes": 1000}


@dataclass(frozen=True)
class PrepareConfig:
    """What a preparation is asked for. A field's comment is its help text."""

    # folders, files or globs of parquet, jsonl, txt, csv, md or arrow files, local or at URLs; or a
    # dataset repository on the Hugging Face hub, or a folder or glob in it; or stdlib
    source: str | tuple[str, ...]
    num_shards: int | None = None  # how many source files to take, in name order; by default all
    revision: str = "main"  # of a hub repository: a branch, tag or commit
    # a tiktoken encoding; or train:N, a byte-level BPE of N tokens trained on the source; or a
    # model on the Hugging Face hub, as Qwen/Qwen3-0.6B; or a model's folder, as ./model; or a
    # tokenizer.json, tokenmill's or Hugging Face's; or nanochat's tokenizer.pkl; by default gpt2,
    # or the tokenizer.json beside the file of --chat
    tokenizer: str | None = None
    # the special token that begins a document, if it is not clear which one does
    bos_token: str | None = None
    # special tokens to add after the tokenizer's last id, as '<|user|>,<|end|>', which a chat
    # template of your own writes
    add_tokens: str | None = None
    eot_token: str | None = None  # a special token that ends documents too; BOS still begins them
    # the source has conversations: nanochat, chatml, or a tokenizer_config.json or .jinja file with
    # a Hugging Face chat template
    chat: str | None = None
    loss: LossRule = "all"  # which turns of the assistant are in the loss
    # take a chat template whose marks leave what ends a turn out of the loss; by default an error
    unended_turns: bool = False
    # the column, or key, with the messages, if it is not messages or conversations
    messages_column: str | None = None
    # what tokenizes; auto takes the fastest proven one
    engine: EngineName = "auto"
    # the data set's name in the token set's folder; by default taken from the source
    name: str | None = None
    # the files that validate: a name or a glob within the source, another file's path, or last: the
    # source's last; by default those named val, valid, validation or dev
    val_file: str | None = None
    # how much of the documents validates, drawn by a hash of their text; by default, if no file is
    # named so, 0.01 (0.1 of less than 10 MiB)
    val_fraction: float | None = None
    # the column, or key of a jsonl line, with the documents; doc.text of a struct; several, as
    # title,text, are joined by a blank line
    text_column: str = "text"
    # columns, or keys, to keep for `tokenmill view` and `show`, as id,score,meta.language; note?
    # may be missing
    keep_columns: str | None = None
    # between documents of a txt file, as `\n\n`; by default a file is one
    document_separator: str | None = None
    # leave out and count lines, and conversations, that are broken; by default an error
    skip_broken: bool = False
    # leave out and count texts, and lines of jsonl, that are longer
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    tokens_root: str = "data/tokens"  # where token sets are written: a folder, or s3://, gs:// ...
    raw_dir: str = "data/raw"  # where files from the hub are fetched to
    # keep files from the hub; otherwise each is deleted once its shards are made
    keep_raw: bool = True
    # processes, without --cluster; by default as many as this process has cores
    workers: int = available_cores()
    cluster: Literal["ray"] | None = None  # make shards on the Ray cluster that RAY_ADDRESS names
    # I/N: make only every N-th unit, as one of N machines; the last one finishes
    part: str | None = None
    dry_run: bool = False  # say what would be fetched and written, and stop
    # bytes of text in a shard; by default a 512th of all, 8 to 256 MiB
    shard_text_bytes: int | None = None

    def __post_init__(self) -> None:
        """Puts values in one form. Raises ValueError for one that cannot be used."""
        self._require_types()
        self._require_fitting()
        for field in NOT_EMPTY:
            value = getattr(self, field)
            if value == "":  # an unset variable of the shell
                flag = field.replace("_", "-")
                raise ValueError(f"--{flag} is empty; leave it out, or say which")
        self._set("source", self._sources())
        for address in (*self.source, self.val_file or ""):
            parts = address.split("::") if has_scheme(address) else []  # fsspec's chains of URLs
            for part in parts:
                require_no_password(part)
        self._set("tokens_root", str(named(self.tokens_root)))
        if has_scheme(self.tokens_root) and self.cluster is not None:
            raise ValueError(
                "--cluster writes into a folder that its machines share; to a bucket prepare by "
                "--part"
            )
        for field, smallest in SMALLEST.items():
            value = getattr(self, field)
            if value is not None or getattr(PrepareConfig, field) is not None:
                self._set(field, whole_number(field, value, smallest))
        self._require_part()
        if not re.fullmatch(r"\w[\w.-]*", self.dataset):
            raise ValueError(
                f"name must be of letters, digits, '.', '_' and '-', not {self.dataset!r}; give "
                "--name"
            )
        _require_names("--add-tokens must be tokens", self.added_tokens, self.add_tokens)
        self._require_columns()

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    def _require_types(self) -> None:
        """ValueError for a value of another type than a field has."""
        for field in TEXTS:
            value = getattr(self, field)
            if value is not None:
                self._set(field, text_of(f"--{field.replace('_', '-')}", value))
        for field, values in VALUES.items():
            one_of(f"--{field}", getattr(self, field), values)
        for field in TRUTHS:
            self._set(field, truth(f"--{field.replace('_', '-')}", getattr(self, field)))

    def _require_fitting(self) -> None:
        """ValueError for flags that do not go together, and a fraction that is none."""
        of_chat = (self.loss, self.messages_column, self.unended_turns)
        if self.chat is None and of_chat != ("all", None, False):
            raise ValueError(
                "--loss, --messages-column and --unended-turns go with --chat, which is missing"
            )
        if self.chat is not None and (self.text_column, self.document_separator) != ("text", None):
            raise ValueError(
                "--text-column and --document-separator are for text, and --chat for "
                "conversations; leave out one or the other"
            )
        if self.unended_turns and self.chat in CHAT_NAMES:
            raise ValueError(
                f"--unended-turns is for templates of a file; {self.chat} ends its turns"
            )
        if self.chat is not None and self.eot_token:
            raise ValueError("--eot-token is for text; a chat template itself ends its turns")
        if self.val_fraction is None:
            return
        if self.val_file is not None:
            raise ValueError(
                "--val-file and --val-fraction both say what validates; give one of them"
            )
        if not isinstance(self.val_fraction, Real):
            raise ValueError(f"--val-fraction must be a number, not {self.val_fraction!r}")
        self._set("val_fraction", float(self.val_fraction))
        if not 1e-6 <= self.val_fraction < 1:
            raise ValueError(
                "--val-fraction must be from 0.000001 to less than 1, as 0.01, not "
                f"{self.val_fraction}"
            )

    def _require_columns(self) -> None:
        columns = self.options.kept
        _require_names("--keep-columns must be names", columns, self.keep_columns)
        for first, second in combinations(columns, 2):
            if _may_be_one(first, second):
                raise ValueError(
                    f"--keep-columns: {first} and {second} may mean one column in a rule of "
                    "`tokenmill view`; keep one of them, or rename the other"
                )

    def _sources(self) -> tuple[str, ...]:
        values: Any = self.source if isinstance(self.source, list | tuple) else [self.source]
        sources = tuple(dict.fromkeys(text_of("--source", value) for value in values))
        if not sources or not all(source.strip() for source in sources):
            raise ValueError(
                "--source names nothing; name a folder, a file or a repository on the hub"
            )
        return sources

    def _require_part(self) -> None:
        if re.fullmatch(r"\d+/\d+", self.part or "1/1"):
            number, parts = self.part_of
            if 1 <= number <= parts:
                return
        raise ValueError(f"part must be I/N, from 1/N to N/N, not {self.part!r}")

    @property
    def dataset(self) -> str:
        """The data set's name: --name, or the names of the sources."""
        names = list(dict.fromkeys(map(name_of_source, self.source)))
        if self.name is None and len(names) > FEW_NAMES:
            raise ValueError(
                f"{len(names)} sources have {len(names)} names; say what to call the data set, by "
                "--name"
            )
        return self.name or "-".join(names)

    @property
    def part_of(self) -> tuple[int, int]:
        """(I, N): this run makes every N-th unit from the I-th on."""
        number, _, parts = (self.part or "1/1").partition("/")
        return int(number), int(parts)

    @property
    def tokenizer_name(self) -> str:
        """What --tokenizer says, or its default."""
        if self.tokenizer is not None:
            return self.tokenizer
        if self.chat is not None and self.chat not in CHAT_NAMES:
            path = path_of(self.chat)
            beside = (path if path.is_dir() else path.parent) / "tokenizer.json"
            if beside.is_file():
                return str(beside)
        return "gpt2"

    @property
    def train_size(self) -> int | None:
        """The tokens of a tokenizer to be trained; None if one is named.

        ValueError if train:N has no valid N.
        """
        kind, _, size = self.tokenizer_name.partition(":")
        if kind != "train":
            return None
        if not size.isdecimal() or not 0 < int(size) <= MOST_IDS:
            raise ValueError(
                f"tokenizer {self.tokenizer_name!r}: expected train:N of up to {MOST_IDS:,} "
                "tokens, as train:32768"
            )
        return int(size)

    @property
    def added_tokens(self) -> list[str]:
        """The special tokens to add."""
        names = (self.add_tokens or "").split(",")
        return [name.strip() for name in names if self.add_tokens]

    @property
    def options(self) -> ReadOptions:
        """How documents are read."""
        separator = self.document_separator
        if separator is not None:  # \n, \r, \t and \\ mean what they do in Python
            separator = re.sub(r"\\([nrt\\])", lambda escape: ESCAPES[escape[1]], separator)
        names = () if self.keep_columns is None else self.keep_columns.split(",")
        return ReadOptions(
            text_column=self.text_column,
            document_separator=separator or None,
            keep_columns=tuple(name.strip() for name in names),
            max_document_bytes=self.max_document_bytes,
            skip_broken=self.skip_broken,
            conversations=self.chat is not None,
            messages_column=self.messages_column,
        )


def _may_be_one(first: str, second: str) -> bool:
    """Whether rules cannot tell two columns apart: SQL has no case, and meta has meta.lang."""
    paths = []
    for name in (first, second):
        path = name.lower().split(".")
        if path[0] in KNOWN:
            path[0] = f"kept_{path[0]}"
        paths.append(path)
    length = min(map(len, paths))
    is_within = paths[0][:length] == paths[1][:length]
    heads = {name.partition(".")[0] for name in (first, second)}
    return is_within or (paths[0][0] == paths[1][0] and len(heads) == 2)


def _require_names(expected: str, names: list[str], value: str | None) -> None:
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"{expected}, separated by commas, not {value!r}")
