"""The files that a preparation reads: those of the source, perhaps some of them, and one from elsewhere that validates.

files, config = list_files(config, say)      --val-file then has a name among the files
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tokenmill.addresses import has_scheme
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.validation import LAST
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import list_sources
from tokenmill.text.source_file import SourceFile


def list_files(config: PrepareConfig, say: Callable[[str], None]) -> tuple[list[SourceFile], PrepareConfig]:
    """The files in the order of their names. Raises what `list_sources` raises, and ValueError for flags that do not go
    with these files.
    """
    listing = list_sources(config.source, Path(config.raw_dir), config.revision)
    for line in listing.left_out:
        say(f"left out {line}")
    files, val = listing.files, config.val_file or ""
    if config.num_shards is not None:
        if config.num_shards > len(files):
            raise ValueError(f"expected {config.num_shards} files, found {len(files)}; give a smaller --num-shards")
        last = [file for file in files if file.name == (files[-1].name if val == LAST else val)]
        files = list(dict.fromkeys([*files[: config.num_shards], *last]))
    names = {file.path: file.name for file in files}
    if val not in (LAST, *names.values()) and (has_scheme(val) or Path(val).is_file()):
        other, *more = list_sources([val]).files
        if more:
            raise ValueError(f"--val-file {val}: expected one file, found {len(more) + 1:,}; name one")
        name = names.get(other.path) or (f"val/{other.name}" if other.name in names.values() else other.name)
        files = files if other.path in names else [*files, replace(other, name=name)]
        config = replace(config, val_file=name)
    _require_fitting(files, config, config.options)
    return files, config


def _require_fitting(files: list[SourceFile], config: PrepareConfig, options: ReadOptions) -> None:
    """ValueError for options that mean nothing to these files, or if the only file is one document."""
    file, has_separator = files[0], options.document_separator is not None
    if config.revision != "main" and file.hub is None:
        raise ValueError(f"{file.shown}: --revision is for repositories on the hub; leave it out")
    if not file.format.is_text and has_separator:
        raise ValueError(f"{file.shown}: --document-separator is for files of text; leave it out")
    if file.format.is_text and (options.kept or options.text_column != ReadOptions().text_column):
        raise ValueError(f"{file.shown}: a file of text has no columns; leave out --text-column and --keep-columns")
    if file.format.is_text and len(files) == 1 and not has_separator:
        raise ValueError(
            f"{file.shown}: found this one file, which is one document, so nothing would be left to validate with; say "
            r"what separates its documents, as --document-separator '\n\n' or '<|endoftext|>', or add files"
        )
