"""How to read a rendering: which form of each text is in it, as it is, stripped, or escaped within JSON.

ways_to_read("<a>Hi</a>", ["<a>", "</a>"], [" Hi "])      ["Hi"]
"""

import json
from collections.abc import Callable, Iterator, Sequence


def ways_to_read(real: str, literals: Sequence[str], texts: Sequence[str]) -> Iterator[list[str]]:
    """The ways to read a rendering as literals[0], a form of texts[0], literals[1] ...: the forms of each way."""
    if not real.startswith(literals[0]):
        return
    # (how many texts are read, where in `real`, their forms)
    open_ways: list[tuple[int, int, list[str]]] = [(0, len(literals[0]), [])]
    while open_ways:
        number, at, chosen = open_ways.pop()
        if number == len(texts):
            if at == len(real):
                yield chosen
            continue
        literal = literals[number + 1]
        for form in reversed(forms_at(texts[number], real, at)):
            end = at + len(form)
            if real.startswith(form, at) and real.startswith(literal, end):
                open_ways.append((number + 1, end + len(literal), [*chosen, form]))


FORMS: tuple[Callable[[str], str], ...] = (
    str,
    str.strip,
    str.lstrip,
    str.rstrip,
    lambda text: text.strip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: text.rstrip("\n"),
)
ESCAPES: tuple[Callable[[str], str], ...] = (
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: repr(text)[1:-1],
    lambda text: json.dumps(json.dumps(text, ensure_ascii=False)[1:-1], ensure_ascii=False)[1:-1],
)


def forms_at(text: str, real: str, at: int) -> list[str]:
    """What templates make of a text: stripped, and escaped within JSON. Some that `real` does not have at `at` are left
    out.

    Where an escaped text differs from the text, it has a backslash first. So if the text itself is there, and has no
    backslash, no escaped text is.
    """
    forms = [change(text) for change in FORMS] if text != text.strip() else [text, text]
    if "\\" not in text and real.startswith(text, at):
        return list(dict.fromkeys(forms))
    return list(dict.fromkeys([*forms, *(escape(form) for form in (forms[0], forms[1]) for escape in ESCAPES)]))
