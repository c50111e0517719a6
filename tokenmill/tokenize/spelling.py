"""How the vocabulary of a tokenizer.json spells bytes.

In GPT-2's characters ("Ġthe"), as <0x0A>, with a mark for a space ("▁the"), or plainly.
"""

import json
import re
from typing import Any

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how byte fallback spells a byte
LOW_LINE = "\u2581"  # that SentencePiece writes for a space


def _byte_characters() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 for itself, the rest from U+0100 on."""
    byte_of = {chr(byte): byte for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    no_character = [byte for byte in range(256) if chr(byte) not in byte_of]
    for number, byte in enumerate(no_character):
        byte_of[chr(256 + number)] = byte
    return byte_of


BYTE_OF = _byte_characters()
TRANSLATION = str.maketrans({character: chr(byte) for character, byte in BYTE_OF.items()})


def spells_bytes(parts: dict[str, Any]) -> bool:
    """Whether tokens are spelled in GPT-2's characters for bytes."""
    steps = [parts.get(part) for part in ("pre_tokenizer", "decoder", "normalizer")]
    return '"ByteLevel"' in json.dumps(steps)


class Spelling:
    """What the names of tokens stand for, by the parts of a tokenizer.json."""

    def __init__(self, parts: dict[str, Any]):
        steps = [parts.get(part) for part in ("pre_tokenizer", "decoder", "normalizer")]
        text = json.dumps(steps, ensure_ascii=False)
        model = parts["model"]
        self._by_byte = spells_bytes(parts)
        self._has_low_lines = '"Metaspace"' in text or LOW_LINE in text
        self._prefix = ""  # of what continues a word
        if not self._by_byte:
            self._prefix = model.get("continuing_subword_prefix") or ""
        self._end = model.get("end_of_word_suffix") or ""  # a space follows the word

    def bytes_of(self, name: str) -> bytes:
        if self._by_byte and BYTE_OF.keys() >= set(name):
            return name.translate(TRANSLATION).encode("latin-1")
        byte = BYTE.fullmatch(name)
        if byte:
            return bytes([int(byte[1], 16)])
        text = name.removeprefix(self._prefix)
        if self._end and text.endswith(self._end):
            text = f"{text.removesuffix(self._end)} "
        if self._has_low_lines:
            text = text.replace(LOW_LINE, " ")
        return text.encode()
