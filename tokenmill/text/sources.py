"""Where text comes from: files of documents -> units of work -> batches of documents.

`local_files` finds what the user named, below a folder or a URL (downloads.py fetches such files first, stdlib.py
writes them), and `split_files` puts them in name order, the last one for validation. `plan_units` cuts a file into
units of work, one shard each, by `shard_text_bytes` of text, so the cut depends on the data and never on the machine.
`read_documents` streams a unit's text some MB at a time; null and empty documents are left out and counted.
"""

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import fsspec

from tokenmill.extras import pip_line
from tokenmill.text.formats import FORMATS, SUFFIX, Reading
from tokenmill.text.lines import plan_lines, read_lines
from tokenmill.text.parquet import plan_row_groups, read_row_groups
from tokenmill.text.units import Documents, SourceFile, Unit

PLAN = {"parquet": plan_row_groups, "jsonl": plan_lines, "txt": plan_lines}
READ = {"parquet": read_row_groups, "jsonl": read_lines, "txt": read_lines}


def plan_units(file: SourceFile, how: Reading, shard_text_bytes: int) -> list[Unit]:
    """Cuts a file into units of work. ValueError where it is damaged or has no such text column."""
    return PLAN[file.format](file, how, shard_text_bytes)


def read_documents(unit: Unit) -> Iterator[Documents]:
    """Streams the unit's documents in order, a few MB at a time. ValueError where damaged."""
    return READ[unit.file.format](unit)


# ---------------------------------------------------------------------------- finding files


def is_url(source: str) -> bool:
    """Whether fsspec is to read it: s3://, gs://, hf:// ..."""
    return "://" in source


def local_files(source: str) -> dict[str, Path | str]:
    """The files of a folder (with its subfolders), of a glob, or one file, of this machine or of a URL: name -> path.

    Of a folder the parquet files, where there are none the jsonl, where there are none of these the txt files.
    FileNotFoundError where there are none at all, ValueError where one file or a glob names another format.
    """
    if is_url(source):
        return _files_of_url(source)
    path = Path(source).expanduser()
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file()]
        return _of_one_format({file.relative_to(path).as_posix(): file for file in found}, source)
    elif glob.has_magic(source):
        found = [file for name in glob.glob(str(path), recursive=True) if (file := Path(name)).is_file()]
    else:
        raise FileNotFoundError(
            f"{source}: no such file or folder; expected a folder, file or glob of parquet, jsonl or txt files, "
            "a URL, a dataset repository on the Hugging Face hub (owner/name), or stdlib"
        )
    return _known({str(file): file for file in found}, source)


def _files_of_url(source: str) -> dict[str, Path | str]:
    try:
        files, root = fsspec.core.url_to_fs(source)
        found = files.glob(root) if glob.has_magic(root) else [root] if files.isfile(root) else files.find(root)
    except ImportError as error:
        raise ValueError(f"{source}: {error}; {pip_line('remote')}") from error
    except ValueError as error:
        raise ValueError(f"{source}: {error}; expected a URL that fsspec knows, as s3://bucket/folder") from error
    except Exception as error:  # each file system has its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConnectionError(f"{source}: could not be listed ({reason}); check the address and your access") from error
    urls = {path: files.unstrip_protocol(path) for path in found}
    if glob.has_magic(root) or found == [root]:
        return _known(urls, source)
    return _of_one_format({str(PurePosixPath(path).relative_to(root)): url for path, url in urls.items()}, source)


def _of_one_format(files: dict, source: str) -> dict:
    """Of a folder's files, by their names below it: those of the first format that it has."""
    seen = {name: path for name, path in files.items() if not any(p.startswith(".") for p in PurePosixPath(name).parts)}
    for format in FORMATS:
        if found := {name: path for name, path in seen.items() if (m := SUFFIX.search(name)) and m[1] == format}:
            return found
    raise FileNotFoundError(
        f"{source}: expected parquet, jsonl or txt files in this folder, found none; check --source"
    )


def _known(files: dict, source: str) -> dict:
    """The files of a glob, or one file, by their names below the folder that they share."""
    if not files:
        raise FileNotFoundError(f"{source}: no file matches this pattern; check --source")
    if unknown := [path for path in files if not SUFFIX.search(path)]:
        raise ValueError(
            f"{unknown[0]}: expected the name of a .parquet, .jsonl or .txt file (the latter two also .gz, .zst); "
            "check --source"
        )
    root = _common_folder([PurePosixPath(path) for path in files])
    return {str(PurePosixPath(path).relative_to(root)): where for path, where in files.items()}


def split_files(files: Mapping[str, Path | str], val_file: str | None = None) -> list[SourceFile]:
    """The files in name order, the last of them for validation, all others to train on.

    `val_file` names another for validation: one of them, or any other file. ValueError where
    nothing is left to train on, FileNotFoundError where val_file is no file.
    """
    names = dict(files)
    val_name = _val_name(names, val_file)
    if len(names) == 1:
        raise ValueError(
            f"{names[val_name]}: found this one file, and the last file is the validation split: nothing would be "
            "left to train on; add another file, or name a separate one with --val-file PATH"
        )
    found = [SourceFile(name, _absolute(names[name]), "val" if name == val_name else "train") for name in sorted(names)]
    _check_stems(found)
    return found


def _absolute(path: Path | str) -> Path | str:
    """The same for a worker on another machine."""
    return path.absolute() if isinstance(path, Path) else path


def _common_folder(paths: list[PurePosixPath]) -> PurePosixPath:
    parents = [set(path.parents) for path in paths]
    return max(set.intersection(*parents), key=lambda folder: len(folder.parts))


def _val_name(names: dict[str, Path | str], val_file: str | None) -> str:
    """The name of the validation file; adds it to `names` where it lies outside the source."""
    if val_file is None:
        return max(names)
    inside = [name for name, path in names.items() if val_file in (name, str(path)) or _same_file(path, val_file)]
    if inside:
        return inside[0]
    if not is_url(val_file) and not Path(val_file).expanduser().is_file():
        raise FileNotFoundError(
            f"--val-file {val_file}: expected one of {', '.join(sorted(names))}, or another file's path"
        )
    ((name, path),) = local_files(val_file).items()
    name = name if name not in names else f"val/{name}"
    names[name] = path
    return name


def _same_file(path: Path | str, other: str) -> bool:
    there = Path(other).expanduser()
    return isinstance(path, Path) and path.exists() and there.exists() and path.samefile(there)


def _check_stems(files: list[SourceFile]) -> None:
    by_stem: dict[str, SourceFile] = {}
    for file in files:
        other = by_stem.setdefault(file.stem, file)
        if other is not file:
            raise ValueError(f"{file.path} and {other.path}: both would write shards named {file.stem}; rename one")
