"""What may be printed of words that are somebody else's: nothing that steers a terminal, no password.

    printed("fetching \\x1b[2Jhttp://me:secret@host/a.parquet")     ␛ for the control character; http://host/a.parquet

Control characters become their pictures (U+2400 and what follows), others that move, hide or turn what stands beside
them their number, as \\x9b.
"""

import re

PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
C1 = {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)}
SHOWN: dict[int, int | str] = {**PICTURES, **C1, **TURNING}
PASSWORD = re.compile(r"://[^/\s@'\"]*@")
SIGNATURE = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]+")


def without_controls(text: str) -> str:
    """The text with every character that would steer a terminal shown instead; lines and tabs stay."""
    return text.translate(SHOWN)


def printed(text: str) -> str:
    """The same, and without what stands before the host of an address, or behind its `?`."""
    return SIGNATURE.sub(r"\1", PASSWORD.sub("://", without_controls(text)))
