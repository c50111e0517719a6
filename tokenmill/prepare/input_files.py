"""The files that a preparation reads: those of the source, perhaps only the first, and those that
validate, one of which may be from elsewhere.

files, asked = list_files(config, say)      `asked`: what the flags say of validation
"""

from collections.abc import Callable
from dataclasses import replace

from tokenmill.addresses import has_scheme, path_of
from tokenmill.prepare.config import PrepareConfig
from tokenmill.store.names import by_number
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import list_sources
from tokenmill.text.source_file import SourceFile
from tokenmill.text.validation import LAST, Rule, asked_rule, names_matching


def list_files(
    config: PrepareConfig, say: Callable[[str], None]
) -> tuple[list[SourceFile], Rule | None]:
    """The files in the order of their names, and the rule of validation that was asked for.

    Raises what `list_sources` raises, and ValueError for flags that do not go with these files.
    """
    files, left_out = list_sources(config.source, path_of(config.raw_dir), config.revision)
    for line in left_out:
        say(f"left out {line}")
    val_file = config.val_file
    if config.num_shards is not None:
        files = _first_files(files, config.num_shards, val_file)
    if val_file is not None and _is_elsewhere(val_file, files):
        files, val_file = _with_file(files, val_file)
    _require_fitting(files, config)
    return files, asked_rule(val_file, config.val_fraction)


def _first_files(files: list[SourceFile], count: int, val_file: str | None) -> list[SourceFile]:
    """The first files by number, 2 before 10, and those that validate."""
    if count > len(files):
        raise ValueError(f"expected {count} files, found {len(files)}; give a smaller --num-shards")
    names = sorted((file.name for file in files), key=by_number)
    pattern = names[-1] if val_file == LAST else val_file
    taken = set(names[:count])
    if pattern:
        taken |= names_matching(names, pattern)
    return [file for file in files if file.name in taken]


def _is_elsewhere(val_file: str, files: list[SourceFile]) -> bool:
    if val_file == LAST or any(file.name == val_file for file in files):
        return False
    return has_scheme(val_file) or path_of(val_file).is_file()


def _with_file(files: list[SourceFile], val_file: str) -> tuple[list[SourceFile], str]:
    """The files with another one, which may be among them; and its name there."""
    added, *more = list_sources([val_file]).files
    if more:
        count = 1 + len(more)
        raise ValueError(f"--val-file {val_file}: expected one file, found {count:,}; name one")
    name = added.name
    for file in files:
        if file.path == added.path:
            return files, file.name
        if file.name == added.name:
            name = f"val/{added.name}"
    return [*files, replace(added, name=name)], name


def _require_fitting(files: list[SourceFile], config: PrepareConfig) -> None:
    """ValueError for options that mean nothing to these files, or one file that is one document."""
    options = config.options
    has_separator = options.document_separator is not None
    of_hub = (config.revision, config.keep_raw)
    if of_hub != ("main", True) and all(file.hub is None for file in files):
        raise ValueError(
            f"{files[0].shown}: --revision and --no-keep-raw are for repositories on the hub; "
            "leave them out"
        )
    text_files = [file for file in files if file.format.is_text]
    if not text_files:
        if has_separator:
            raise ValueError(
                f"{files[0].shown}: --document-separator is for files of text; leave it out"
            )
        return
    shown = text_files[0].shown
    may_lack_all = not options.required and len(text_files) < len(files)
    must_have_columns = bool(options.kept) and not may_lack_all
    is_column_named = options.text_column != ReadOptions().text_column
    if must_have_columns or is_column_named:
        raise ValueError(
            f"{shown}: a file of text has no columns; leave out --text-column and --keep-columns, "
            "or take such files out of the source (columns that other files have are kept as id?)"
        )
    if len(files) == 1 and not has_separator:
        raise ValueError(
            f"{shown}: found this one file, which is one document, so nothing would be left "
            r"to validate with; say what separates its documents, as --document-separator '\n\n' "
            "or '<|endoftext|>', or add files"
        )
