"""Makes shards from token files of other programs: finds where their documents begin.

Documents are those of the index if the layout has one, else what is between the BOS (or EOT) tokens, also across files:
a document that continues in the next file stays one. The last token of a split's files, or of a document of the index,
may be an EOT that nothing follows; that is not an empty document.

    B w w w B w w      w w w E w w E      ->      B w w w | B w w            B and E are one id
"""

from collections import Counter
from pathlib import Path

import numpy as np

from tokenmill.exchange.layouts import LAYOUTS
from tokenmill.exchange.split_files import BLOCK_TOKENS
from tokenmill.store.schema import dtype_name
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS, in_blocks
from tokenmill.tokenize.tokenizer import Tokenizer


def names_of(files: list[Path]) -> dict[Path, str]:
    """The names of the files' shards: of the file, and also of its folder if several files have one name.

    ValueError if two shards would still have one name.
    """
    stems = Counter(path.stem for path in files)
    names = {path: path.stem if stems[path.stem] == 1 else f"{path.parent.name}-{path.stem}" for path in files}
    owners: dict[str, Path] = {}
    for path, name in names.items():
        if owners.setdefault(name, path) != path:
            raise ValueError(f"{path}: would be shard {name}, as {owners[name]} is; rename one of them")
    return names


class Intake:
    """Makes a shard from each file of a split, in order, with the documents that begin in it.

    With `val_fraction`, the documents that begin in this last fraction of the files' bytes are shards of their own, for
    validation. `headless` is the number of tokens before the first BOS, if they must be the rest of a document that
    began elsewhere.
    """

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, layout: str, names: dict[Path, str], val_fraction: float = 0
    ):
        self.folder, self.tokenizer, self.layout, self.names = folder, tokenizer, layout, names
        self.records: list[tuple[dict, bool]] = []  # and whether the shard is one that validates
        self.headless = 0
        self._val_fraction, self._validates = val_fraction, False
        self._bytes_before = self._bytes = 0
        self._shard: _Shard | None = None  # at hand
        self._open: list[np.ndarray] | None = None  # its last document, which may go on in the next file
        self._bos_found = False

    def take(self, files: list[Path]) -> list[tuple[dict, bool]]:
        """Takes files in; returns the record of each shard, and whether it validates."""
        self._bytes = sum(path.stat().st_size for path in files)
        try:
            for path in files:
                self._take_file(path)
                self._bytes_before += path.stat().st_size
            if self._open is not None and sum(map(len, self._open)) == 1 and self._open[-1][0] == self.tokenizer.bos_id:
                self._open = None  # an EOT that nothing follows
            self._end_shard()
        finally:
            if self._shard is not None:
                self._shard.writer.discard()
        return self.records

    def require_documents(self, files: list[Path]) -> None:
        """ValueError if nothing separated the documents of these files."""
        if not self._bos_found and LAYOUTS[self.layout].is_flat:
            tokenizer = self.tokenizer
            raise ValueError(
                f"{files[0]}: expected documents with {tokenizer.bos_token}, token {tokenizer.bos_id}, between them, "
                f"found none in {len(files)} files, all of which would be one document; check --tokenizer and "
                "--bos-token, or prepare the text instead"
            )

    def _take_file(self, path: Path) -> None:
        tokens, lengths = LAYOUTS[self.layout].read(path, np.dtype(dtype_name(self.tokenizer.vocab_size)))
        begins = self._begins(path, tokens, lengths)
        head, indexed = tokens[: begins[0] if len(begins) else len(tokens)], lengths is not None
        if self._open is not None and not indexed:
            self._open.append(head)
            head = head[:0]
        if len(begins) or len(head) or self._shard is None:
            self._end_shard()
            self._shard = _Shard(self.folder, self.tokenizer, path, self.layout, self.names[path])
        if len(head):
            self.headless += len(head) if LAYOUTS[self.layout].begins and not self.records else 0
            self._open = [head]
        first_to_validate = self._first_to_validate(path, len(tokens))
        for begin, end in zip(begins, np.append(begins, len(tokens))[1:], strict=True):
            self._end_document()
            if begin >= first_to_validate and not self._validates:
                self._begin_to_validate(path)
            ended = indexed and end - begin > 1 and tokens[end - 1] == self.tokenizer.bos_id  # by an EOT
            self._open = [tokens[begin : end - ended]]
        if indexed:
            self._end_document()

    def _first_to_validate(self, path: Path, tokens: int) -> float:
        """The token of a file from which on documents validate."""
        if not self._val_fraction:
            return float("inf")
        share = ((1 - self._val_fraction) * self._bytes - self._bytes_before) / path.stat().st_size
        return share * tokens

    def _begin_to_validate(self, path: Path) -> None:
        if self._shard is not None and self._shard.is_empty:
            self._shard.writer.discard()
            self._shard = None
        self._end_shard()
        self._validates = True
        name = f"{self.names[path]}-val"
        while name in self.names.values():  # another file's
            name += "-val"
        self._shard = _Shard(self.folder, self.tokenizer, path, self.layout, name)

    def _begins(self, path: Path, tokens: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
        """Where documents begin in a file, ascending. ValueError if the tokenizer does not have one of the ids."""
        found = [np.cumsum(lengths) - lengths] if lengths is not None else []
        ends = np.cumsum(lengths)[lengths > 1] - 1 if lengths is not None else np.empty(0, np.int64)
        for first, block in zip(range(0, len(tokens), BLOCK_TOKENS), in_blocks(tokens, BLOCK_TOKENS), strict=True):
            if len(wrong := np.flatnonzero((block >= self.tokenizer.vocab_size) | (block < 0))):
                raise ValueError(
                    f"{path}: token {first + int(wrong[0]):,} is {int(block[wrong[0]])}, and tokenizer "
                    f"{self.tokenizer.name} has {self.tokenizer.vocab_size:,}; check --tokenizer"
                )
            bos = first + np.flatnonzero(block == self.tokenizer.bos_id)
            self._bos_found = self._bos_found or len(bos) > 0
            found.append(bos[~np.isin(bos, ends)])
        begins = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        return begins[begins < len(tokens)]

    def _end_document(self) -> None:
        if self._open is not None and self._shard is not None:
            self._shard.add(np.concatenate(self._open))
            self._open = None

    def _end_shard(self) -> None:
        self._end_document()
        if self._shard is not None:
            self.records.append((self._shard.finish(), self._validates))
            self._shard = None


class _Shard:
    """A shard that is being made from the documents of a file."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, path: Path, layout: str, name: str):
        self._tokenizer, self._token_bytes = tokenizer, tokenizer.token_bytes()
        self._source = {"file": path.name, "bytes": path.stat().st_size, "layout": layout}
        self._counts = dict.fromkeys(TEXT_COUNTS, 0)
        self.writer = ShardWriter(folder, f"{name}.000", dtype_name(tokenizer.vocab_size))
        self._waiting: list[np.ndarray] = []
        self._size = 0

    def add(self, document: np.ndarray) -> None:
        """Adds a document, with or without BOS; BOS alone is an empty document."""
        if document[0] != self._tokenizer.bos_id:
            document = np.concatenate([[self._tokenizer.bos_id], document])
        if len(document) == 1:
            self._counts["empty_documents"] += 1
            return
        self._waiting.append(document)
        self._size += len(document)
        if self._size >= BLOCK_TOKENS:
            self._write()

    @property
    def is_empty(self) -> bool:
        """Whether no document was added."""
        return self.writer.num_documents == 0 and not self._waiting and not self._counts["empty_documents"]

    def _write(self) -> None:
        if self._waiting:
            tokens = np.concatenate(self._waiting)
            self._counts["text_bytes"] += int(self._token_bytes[tokens].sum())
            self.writer.write(tokens, [len(document) for document in self._waiting])
            self._waiting, self._size = [], 0

    def finish(self) -> dict:
        self._write()
        facts = {"source": self._source, "fingerprint": self._tokenizer.fingerprint}
        return self.writer.finish(self._counts | facts)
