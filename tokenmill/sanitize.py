"""Makes text from elsewhere safe to print: nothing in it controls a terminal, and URLs have no signatures.

    sanitize("fetching \\x1b[2Jhttps://host/a.parquet?sig=secret")     ␛ for the control character; https://host/a.parquet

Control characters are replaced with their symbols (U+2400 and following). Other characters that move, hide or reorder
text are replaced with their code, as \\x9b.
"""

import re

PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
C1 = {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
REORDERING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)}
SHOWN: dict[int, int | str] = {**PICTURES, **C1, **REORDERING}
USER = re.compile(r":/{1,2}[^/\s'\"]*@")  # a Path of a URL has one slash
QUERY = re.compile(r"(://[^\s?'\"]*|\s/[^\s?'\"]*)\?[^\s'\"]+")  # also of "GET /a.bin?sig=...", as urllib3 names them


def redact(text: str) -> str:
    """Removes what is before the host of a URL, and what is after its `?`."""
    return QUERY.sub(r"\1", USER.sub("://", text))


def escape_controls(text: str) -> str:
    """Replaces every character that would control a terminal; keeps newlines and tabs."""
    return text.translate(SHOWN)


def sanitize(text: str) -> str:
    """Does both."""
    return redact(escape_controls(text))
