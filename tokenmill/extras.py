"""Optional packages: which extra brings which, said in one line where one is missing.

`pip install tokenmill` brings what training needs, numpy and torch. What else there is to do needs more:

    pip install 'tokenmill[prepare]'      to make token sets of text
    pip install 'tokenmill[report]'       to look at token sets
    pip install 'tokenmill[remote]'       token sets, and text, in S3, GCS, on the Hugging Face hub
    pip install 'tokenmill[ray]'          to prepare on a Ray cluster

Every wing may know this module, and it knows none. pyproject.toml has the same lists; a test compares them.
"""

import contextlib
from collections.abc import Iterator

# the packages by the names that they are imported by
EXTRAS = {
    "prepare": {
        "fastokens",
        "fsspec",
        "gigatoken",
        "huggingface_hub",
        "multiprocess",
        "orjson",
        "pyarrow",
        "regex",
        "rich",
        "rustbpe",
        "tiktoken",
        "tokenizers",
        "tqdm",
        "tyro",
    },
    "report": {"jinja2", "multiprocess", "regex", "rich", "tiktoken", "tyro"},
    "remote": {"boto3", "fsspec", "gcsfs", "huggingface_hub", "rich", "s3fs", "tyro", "urllib3"},
    "ray": {"ray"},
}


def what_to_install(module: str | None, extra: str | None = None) -> str | None:
    """The line for a missing package, of `extra` where that brings it; None where no extra does.

    A module within a package that is there is no missing package, but a broken one.
    """
    found = [name for name in (extra, *EXTRAS) if name in EXTRAS and module in EXTRAS[name]]
    return f"{module} is not installed; {pip_line(found[0])}" if found else None


def pip_line(extra: str) -> str:
    """How an extra is installed."""
    in_a_clone = f"pip install '.[{extra}]', or `. .venv/bin/activate` after `make demo`"
    return f"pip install 'tokenmill[{extra}]' (in a clone: {in_a_clone})"


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed; says what to install."""


@contextlib.contextmanager
def naming_the_extra(extra: str | None = None) -> Iterator[None]:
    """Says, where a module of an extra is missing, what to install: MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if advice := what_to_install(error.name, extra):
            raise MissingExtra(advice, name=error.name) from error
        raise
