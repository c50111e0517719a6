"""Optional packages: which extra contains which, and a one-line error when one is missing.

`pip install tokenmill` installs only numpy, which is enough for tokenmill.numpy. Everything else needs more:

    pip install 'tokenmill[torch]'        to train with torch: RowLoader, PackedRows, get_batch
    pip install 'tokenmill[jax]'          to train with JAX: tokenmill.jax
    pip install 'tokenmill[prepare]'      to make token sets from text
    pip install 'tokenmill[prepare,chat]' to make token sets from conversations
    pip install 'tokenmill[report]'       to inspect token sets
    pip install 'tokenmill[remote]'       token sets and text in S3, in GCS, and on the Hugging Face Hub
    pip install 'tokenmill[view]'         to choose and repeat documents by rules
    pip install 'tokenmill[ray]'          to prepare on a Ray cluster

Every wing may import this module; it imports none. pyproject.toml has the same lists, and a test compares them.
"""

import contextlib
from collections.abc import Iterator

# the packages of each extra, by their import names
EXTRAS = {
    "prepare": {
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
    "chat": {"jinja2"},
    "report": {"jinja2", "multiprocess", "regex", "rich", "tiktoken", "tyro"},
    "remote": {"fsspec", "gcsfs", "huggingface_hub", "rich", "s3fs", "tyro", "urllib3"},
    "view": {"duckdb", "pyarrow", "rich", "tyro"},
    "ray": {"ray"},
    "torch": {"torch"},
    "jax": {"jax"},
}
PART_OF = {"botocore": "s3fs"}  # whose versions fit each other
IN_A_CLONE = {"prepare", "chat", "report", "view", "torch"}  # what `make demo` installs, from requirements.txt
INSTEAD = {"torch": "; or use RowLoader and position_ids of tokenmill.numpy or tokenmill.jax, which do not need torch"}


def what_to_install(module: str | None, extra: str | None = None) -> str | None:
    """The message for a missing package, which prefers `extra` if that contains it; None if no extra does.

    A missing module inside an installed package means that the package is broken, so there is no message for it.
    """
    package = PART_OF.get(module or "", module)
    found = [name for name in (extra, *EXTRAS) if name in EXTRAS and package in EXTRAS[name]]
    return f"{module} is not installed; {pip_line(found[0])}{INSTEAD.get(module or '', '')}" if found else None


def pip_line(extra: str) -> str:
    """The command that installs an extra."""
    in_a_clone = f"pip install '.[{extra}]'"
    if extra in IN_A_CLONE:
        in_a_clone += ", or `. .venv/bin/activate` after `make demo`"
    return f"pip install 'tokenmill[{extra}]' (in a clone: {in_a_clone})"


class MissingExtra(ModuleNotFoundError):
    """A package of an extra is not installed. The message says what to install."""


@contextlib.contextmanager
def naming_the_extra(extra: str | None = None) -> Iterator[None]:
    """Raises MissingExtra, which says what to install, instead of ModuleNotFoundError for a module of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if advice := what_to_install(error.name, extra):
            raise MissingExtra(advice, name=error.name) from error
        raise
