"""The tokenizer of a model on the Hugging Face hub, or in a folder, by the model's name: `--tokenizer Qwen/Qwen3-0.6B`.

    find_tokenizer_file("Qwen/Qwen3-0.6B")            its tokenizer.json in the hub's cache, "Qwen3-0.6B"
    find_tokenizer_file("Qwen/Qwen3-0.6B@v1")         at a branch, tag or commit
    find_tokenizer_file("my/model")                   my/model/tokenizer.json, "model", if there is such a folder
    find_tokenizer_file("gpt2")                       None: without a slash it is no folder, which could be any

Without a network, a file that was fetched before is used. If the file on the hub changes, the tokenizer's fingerprint
does, and a new token set is prepared.
"""

from pathlib import Path

from tokenmill.extras import naming_the_extra
from tokenmill.hub_client import ACCESS, REPOSITORY, endpoint, first_line, token

FILE = "tokenizer.json"


def find_tokenizer_file(spec: str) -> tuple[Path, str] | None:
    """The tokenizer.json of a model, and the tokenizer's name; None if `spec` names no model.

    FileNotFoundError if there is no such model, or no tokenizer.json in it; PermissionError if the hub does not give it
    to this user; ConnectionError if it cannot be fetched.
    """
    if "/" not in spec:
        return None
    folder = Path(spec).expanduser()
    if folder.is_dir():
        if not (folder / FILE).is_file():
            raise FileNotFoundError(f"{spec}: expected a {FILE} in this folder, found none; check --tokenizer")
        return folder / FILE, folder.resolve().name
    repository, _, revision = spec.partition("@")
    if folder.exists() or not REPOSITORY.fullmatch(repository) or spec.endswith((".json", ".pkl")):
        return None
    return _fetched(repository, revision or "main"), repository.partition("/")[2]


def _fetched(repository: str, revision: str) -> Path:
    with naming_the_extra():
        from huggingface_hub import errors, hf_hub_download

    at = f"{repository}@{revision}"
    try:
        path = hf_hub_download(repository, FILE, revision=revision, endpoint=endpoint(), token=token() or False)
    except errors.LocalEntryNotFoundError as error:
        raise ConnectionError(
            f"{at}: no such folder is here, and the Hugging Face hub, which may have this model, could not be reached "
            f"({first_line(error)}); check --tokenizer, or try again with a network"
        ) from error
    except errors.GatedRepoError as error:
        raise PermissionError(f"{at}: the hub gives this model to users whom it knows; {ACCESS}") from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{at}: the model has no such revision; check --tokenizer") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise FileNotFoundError(
            f"{repository}: no such folder is here, and no such model is on the hub; check --tokenizer ({ACCESS})"
        ) from error
    except errors.EntryNotFoundError as error:
        raise FileNotFoundError(
            f"{at}: expected a {FILE}, found none in this model; convert its tokenizer with transformers "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)), and give --tokenizer FOLDER"
        ) from error
    except Exception as error:  # requests', httpx', the disk's
        raise ConnectionError(f"{at}: {FILE} could not be fetched ({first_line(error)}); try again") from error
    return Path(path)
