"""Makes docs/api.md, the reference of all public names, from their signatures and docstrings: `make docs`

python docs/api_page.py
"""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tokenmill.jax
import tokenmill.numpy

PAGE = Path(__file__).resolve().parent / "api.md"
PARTS = {
    "Training": ("get_batch", "state_dict", "load_state_dict", "RowLoader", "PackedRows"),
    "NumPy and JAX": (
        "tokenmill.numpy.RowLoader",
        "tokenmill.numpy.document_ids",
        "tokenmill.numpy.position_ids",
        "tokenmill.jax.RowLoader",
        "tokenmill.jax.document_ids",
        "tokenmill.jax.position_ids",
        "tokenmill.jax.rank_in_sharding",
    ),
    "Mixtures": ("Mixture", "proportional", "forecast"),
    "Document boundaries": ("document_ids", "position_ids", "cu_seqlens", "document_mask"),
    "Token sets": ("find_token_set", "TokenSet", "Documents", "Tokenizer"),
    "Preparing": ("prepare", "PrepareConfig", "PRESETS", "PreparationError"),
}
HEAD = """# API

All public names, as `from tokenmill import NAME` gives them, and those of `tokenmill.numpy` and `tokenmill.jax`; made
from their docstrings by `make docs`. Everything else may change without a word in the changelog.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [f"## {title}\n\n" + "\n".join(map(entry, names)) for title, names in PARTS.items()]
    return "\n".join([HEAD, *parts])


def entry(name: str) -> str:
    """A public name: what it is called with, and what its docstring says."""
    named = functools.reduce(getattr, name.removeprefix("tokenmill.").split("."), tokenmill)
    if isinstance(named, dict):
        return f"### {name}\n\nThe presets of `tokenmill prepare`: {', '.join(f'`{key}`' for key in named)}.\n"
    if not inspect.isclass(named):
        return f"### {name}\n\n{called(name, named)}\n{told(named)}\n"
    if dataclasses.is_dataclass(named) and (table := fields(named)):
        return f"### {name}\n\n{told(named)}\n{table}\n"
    of_base = () if "." in name else named.__bases__  # the methods of all RowLoaders are told once
    return f"### {name}\n\n{called(name, named)}\n{told(named)}\n{''.join(members(name, named, *of_base))}"


def called(name: str, function: object) -> str:
    """A signature, of a long one each parameter on a line of its own."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    words, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(plain(str(parameter)))
    back = signature.return_annotation
    end = "" if back in (signature.empty, None) else f" -> {plain(inspect.formatannotation(back))}"
    line = f"{name}({', '.join(words)}){end}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"
    return f"```py\n{line}\n```\n"


def plain(annotated: str) -> str:
    """An annotation as one reads it."""
    annotated = re.sub(r"(^|: )'([\w\[\]., |]+)'", r"\1\2", annotated)  # one that was written as a text
    return re.sub(
        r"\b(?:typing|collections\.abc|numpy|pathlib|torch|jax(?:\.\w+)*|tokenmill(?:\.\w+)+)\.(?=[A-Z])", "", annotated
    )


def told(named: object) -> str:
    return inspect.getdoc(named) + "\n"


def members(title: str, *kinds: type) -> Iterator[str]:
    """The methods and properties of tokenmill's classes that have a docstring of their own."""
    found = [item for kind in kinds if kind.__module__.startswith("tokenmill") for item in vars(kind).items()]
    for name, member in found:
        function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
        if name.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        if function is not member and not isinstance(member, classmethod | staticmethod):
            yield f"#### {title}.{name}\n\n{told(function)}\n"
        else:
            yield f"#### {title}.{name}()\n\n{called(name, function)}\n{told(function)}\n"


def fields(named: type) -> str:
    """A table of a dataclass's fields, whose comments are what they mean; nothing where one has none."""
    found = re.findall(r"^    (\w+): ([^=#\n]+?)(?: = (.+?))?  # (.+)$", inspect.getsource(named), re.MULTILINE)
    if {name for name, *_ in found} != {field.name for field in dataclasses.fields(named)}:
        return ""
    rows = [
        f"| `{name}` | `{kind}` | {f'`{default}`' if default else ''} | {text} |" for name, kind, default, text in found
    ]
    table = ["| field | type | default | |", "| --- | --- | --- | --- |", *rows]
    return "\n".join(table).replace(" | None`", " or None`") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
