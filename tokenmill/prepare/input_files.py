"""The files that a preparation reads: those of the source, perhaps some of them, and one from elsewhere that validates.

files, config = list_files(config, say)      --val-file then has a name among the files
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.addresses import has_scheme
from tokenmill.prepare.config import PrepareConfig
from tokenmill.prepare.validation import LAST
from tokenmill.store.files import read_json
from tokenmill.text.formats import ReadOptions
from tokenmill.text.listing import list_sources
from tokenmill.text.source_file import SourceFile

SEPARATORS = ("<|endoftext|>", "\n\n", "\n")  # of which one is suggested for a file that is one document
READ_FOR_IT = 1 << 20  # bytes


def list_files(config: PrepareConfig, say: Callable[[str], None]) -> tuple[list[SourceFile], PrepareConfig]:
    """The files in the order of their names. Raises what `list_sources` raises, and ValueError for flags that do not go
    with these files.
    """
    listing = list_sources(config.source, Path(config.raw_dir), config.revision, _earlier_commit(config))
    for line in listing.left_out:
        say(f"left out {line}")
    files, val = listing.files, config.val_file or ""
    if config.num_shards is not None:
        if config.num_shards > len(files):
            raise ValueError(f"expected {config.num_shards} files, found {len(files)}; give a smaller --num-shards")
        named = earlier_rule(config).get("file", files[-1].name) if val == LAST else val
        last = [file for file in files if file.name == named]
        files = list(dict.fromkeys([*files[: config.num_shards], *last]))
    names = {file.path: file.name for file in files}
    if val not in (LAST, *names.values()) and (has_scheme(val) or Path(val).is_file()):
        (other,) = list_sources([val]).files
        name = names.get(other.path) or (f"val/{other.name}" if other.name in names.values() else other.name)
        files = files if other.path in names else [*files, replace(other, name=name)]
        config = replace(config, val_file=name)
    _require_fitting(files, config.options)
    return files, config


def _require_fitting(files: list[SourceFile], options: ReadOptions) -> None:
    """ValueError for options that mean nothing to these files, or if the only file is one document."""
    file = files[0]
    if not file.format.is_text and options.document_separator is not None:
        raise ValueError(f"{file.shown}: --document-separator is for files of text; leave it out")
    if file.format.is_text and (options.kept or options.text_column != ReadOptions().text_column):
        raise ValueError(f"{file.shown}: a file of text has no columns; leave out --text-column and --keep-columns")
    if not file.format.is_text or len(files) > 1 or options.document_separator is not None:
        return
    with file.open_text()[0] as stream:
        start = stream.read(READ_FOR_IT).decode("utf-8", "replace")
    found = next((f", as --document-separator {one!r}" for one in SEPARATORS if one in start), "")
    raise ValueError(
        f"{file.shown}: found this one file, which is one document, so nothing would be left to validate with; say "
        f"what separates its documents by --document-separator{found}, or add files"
    )


def _earlier_manifest(config: PrepareConfig) -> dict[str, Any]:
    """The manifest of a set of this data set that is there, perhaps of another tokenizer; {} if there is none."""
    root = Path(config.tokens_root)
    paths = [] if has_scheme(config.tokens_root) else sorted(root.glob(f"{config.dataset}-*/manifest.json"))
    manifests = [read_json(path, "tokens") for path in paths]
    return next((one for one in manifests if one["dataset"] == config.dataset), {})


def earlier_rule(config: PrepareConfig) -> dict[str, Any]:
    """The rule of validation of such a set."""
    found: dict[str, Any] = _earlier_manifest(config).get("prepared", {}).get("validation", {})
    return found


def _earlier_commit(config: PrepareConfig) -> str | None:
    """The commit of the hub that such a set was made from, so that another one is made from the same files."""
    hub = _earlier_manifest(config).get("hub", {"repository": "none"})
    is_same = hub.get("revision") == config.revision and config.source[0].startswith(hub["repository"])
    return str(hub["commit"]) if is_same else None


def hub_facts(files: Sequence[SourceFile], config: PrepareConfig) -> dict[str, Any]:
    """What a manifest says about where its text is from: files of a hub."""
    of_hub = [(file, file.hub) for file in files if file.hub is not None]
    keys = ("name", "bytes", "sha256", "git_sha1")
    listed = [dict(zip(keys, (f.name, f.bytes, hub.sha256, hub.git_sha1), strict=True)) for f, hub in of_hub]
    if not of_hub:
        return {}
    hub = of_hub[0][1]
    where = {"repository": hub.repository, "revision": config.revision, "commit": hub.commit}
    return {"hub": where | {"files": listed}}
