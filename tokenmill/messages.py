"""What messages are made of: amounts for people, and text from elsewhere that is safe to print.

    counted(1200, "shard"), in_bytes(13_800_000)      1,200 shards, 13.8 MB
    in_time(7500)                                     2 h 5 min
    sanitize("\\x1b[2Jhttps://host/a?sig=secret")     ␛ for the control character; https://host/a

Nothing in a sanitized text controls a terminal: control characters are replaced with their symbols
(U+2400 and following), and other characters that move, hide or reorder text with their code, as
\\x9b. URLs have no signatures.
"""

import re

PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
C1 = {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
REORDERING_CODES = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
REORDERING = {code: f"\\u{code:04x}" for code in REORDERING_CODES}
SHOWN: dict[int, int | str] = {**PICTURES, **C1, **REORDERING}
USER = re.compile(r":/{1,2}[^/\s'\"]*@")  # a Path of a URL has one slash
# also of "GET /a.bin?sig=...", as urllib3 names them
QUERY = re.compile(r"(://[^\s?'\"]*|\s/[^\s?'\"]*)\?[^\s'\"]+")
MINUTE = 60
HOUR = 3_600


def redact(text: str) -> str:
    """Removes what is before the host of a URL, and what is after its `?`."""
    return QUERY.sub(r"\1", USER.sub("://", text))


def escape_controls(text: str) -> str:
    """Replaces every character that would control a terminal; keeps newlines and tabs."""
    return text.translate(SHOWN)


def sanitize(text: str) -> str:
    """Does both."""
    return redact(escape_controls(text))


def first_line(error: BaseException) -> str:
    """The first line of an error, or its name; at most 300 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def counted(count: int, what: str) -> str:
    """1, "shard" -> "1 shard"; 1200, "shard" -> "1,200 shards"."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {what}{plural}"


def in_bytes(count: float) -> str:
    """812 -> "812 bytes", 13_800_000 -> "13.8 MB"; a kB is 1,000 bytes."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return counted(round(count), "byte")


def in_time(seconds: float) -> str:
    """7.4 -> "7 s", 200 -> "3 min 20 s", 7500 -> "2 h 5 min"."""
    total = round(seconds)
    if total < MINUTE:
        return f"{total} s"
    if total < HOUR:
        minutes, rest = divmod(total, MINUTE)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(total, HOUR)
    minutes = rest // MINUTE
    return f"{hours:,} h {minutes} min"
