"""Parquet files of a dataset repository on the Hugging Face hub, fetched once into a local folder.

    karpathy/fineweb-edu-100b-shuffle, 46 files  ->  data/raw/karpathy--fineweb-edu-100b-shuffle/shard_00000.parquet ...

`huggingface_hub` downloads, resumes, and takes the token of private repositories as it always does
(HF_TOKEN, `hf auth login`, HF_ENDPOINT). A file that is there is whole, as it was renamed into place,
and is not asked for again.
"""

import re
from pathlib import Path

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def is_repository(source: str) -> bool:
    """Whether a source that is no local path reads as owner/name."""
    return bool(REPOSITORY.fullmatch(source)) and not source.startswith(".") and not source.endswith(".parquet")


def fetch(repository: str, num_files: int, raw_dir: Path, say=print) -> dict[str, Path]:
    """The repository's first num_files parquet files in name order, as name -> local path.

    ConnectionError where the hub does not answer, FileNotFoundError where it has no such
    repository, ValueError where it has too few parquet files.
    """
    folder = raw_dir / repository.replace("/", "--")
    names = _list_parquet_files(repository, folder)[:num_files]
    if len(names) < num_files:
        raise ValueError(f"{repository}: expected {num_files} parquet files, found {len(names)}; lower --num-shards")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        say(f"fetching {len(missing)} of {len(names)} files of {repository} into {folder}")
    for name in missing:
        _download(repository, name, folder)
    return {name: folder / name for name in names}


def _list_parquet_files(repository: str, folder: Path) -> list[str]:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        names = HfApi().list_repo_files(repository, repo_type="dataset")
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(
            f"{repository}: no such local file or folder, and no such dataset repository on the hub "
            "(for a private one, log in with `hf auth login`); check --source"
        ) from error
    except Exception as error:
        raise ConnectionError(
            f"{repository}: the Hugging Face hub could not be reached ({_first_line(error)}); try again with a "
            f"network, or prepare files that are already there: --source {folder}"
        ) from error
    return sorted(name for name in names if name.endswith(".parquet"))


def _download(repository: str, name: str, folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(repository, name, repo_type="dataset", local_dir=folder)
    except Exception as error:
        raise ConnectionError(
            f"{repository}: fetching {name} failed ({_first_line(error)}); "
            "run the same command again: files that are complete are not fetched twice"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
