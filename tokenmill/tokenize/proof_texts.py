"""Texts on which an engine is compared with the reference.

`hard_texts` are long pieces, runs and spelled tokens. `random_texts` are sequences of what
normalizers and split patterns treat specially: combining marks, Hangul, emoji, digits.
"""

import functools
import random
import unicodedata
from collections.abc import Iterable

LATIN = "aAeEiIoOuUnNcCsSyYzZıİſßÅåÀéñçǅΩωαΑςσֿאבﻻاأ"
COMPATIBLE = "ﬁﬃ①½²㎏ｱﾞＡｶﾟ㈱…™ªⅣﷺ豈ｶ゙が゚"
PLAIN = " \t\n\r\u00a0\u2003\u3000\u200b\ufeff0123456789٣४aAzZ'`.,!?-_/\\(\"«—水車éΩя"
# fmt: off
PIECES = [
    "'s", "'LL", "'ſ", "\r\n", "  ", "e\u0301", "\u0f73", "\u2126",
    "\u212b", "\U0001d15f", "<0x41>", "\u2581",
]
# fmt: on
EMOJI = "😀👩👨🏽🏿❤⚕☠♀0#🏴🇩🇪\U000e0067\U000e007f\u200d\ufe0f\ufe0e\u20e3"
JAMO = [*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3), 0x115F]
INDIC = (range(0x900, 0x1100), range(0x1700, 0x1D00), range(0x11000, 0x12000))
SPELLED = (
    "x {0} y{0}",
    "{0}",
    "a{0}b",
    "{0}\u0301",
    "1{0}2",
    "{0}{0}",
    "{0} {0}",
    "b {0}a",
    "a{0} ",
)
COUNTS = (*range(1, 12), 100, 1000)  # of a run
LONG = 5000


def hard_texts(tokens: Iterable[str]) -> list[str]:
    """Long pieces, runs and numbers of every kind, combined characters, and spelled tokens."""
    units = [*" \n\t\u00a0aA1!é水😀\u0301", "\r\n", " \n", "ab", "12a", "...", "'s", "'S"]
    units += ["1²", "٣4", "½", "1 ", "e\u0301", "\u1100\u1161"]
    runs = []
    for unit in units:
        runs += [unit * count for count in COUNTS]
    texts = list(runs)
    texts += [unit * LONG for unit in units]
    texts += [f"a{run}b" for run in runs]
    texts += [f"a {run}1" for run in runs]
    before = ""
    for token in tokens:
        for spelled in dict.fromkeys((token, token.lstrip(), token.rstrip(), token.strip())):
            texts += [form.format(spelled) for form in SPELLED]
            texts += [f"{spelled} b", f"{before}{spelled}", f"{spelled}{before}c"]
        before = token
    return [*texts, "\x011\x01"]


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of up to 24 characters, the same for a seed and Python's version of Unicode."""
    rng = random.Random(seed)
    pools = _pools()
    texts = []
    for _ in range(count):
        two_pools = rng.choices(pools, k=2)
        length = rng.randint(1, 24)
        characters = [rng.choice(rng.choice(two_pools)) for _ in range(length)]
        texts.append("".join(characters))
    return texts


@functools.cache
def _pools() -> list[list[str]]:
    by_class: dict[int, list[str]] = {}  # marks, by their class of combining
    by_block: dict[int, list[str]] = {}  # letters and marks of Indic scripts
    for code in range(0x300, 0x20000):
        character = chr(code)
        combining = unicodedata.combining(character)
        if combining:
            by_class.setdefault(combining, []).append(character)
        is_letter = unicodedata.category(character)[0] in "LM"
        if is_letter and any(code in codes for codes in INDIC):
            by_block.setdefault(code >> 7, []).append(character)
    marks = []
    latin = list(LATIN)
    for of_class in by_class.values():
        marks += of_class
        latin += of_class[:3]
    syllables = [0xAC00 + number * 28 for number in range(0, 399, 19)]
    hangul = [*map(chr, JAMO + syllables), "각", "힣", "ㅏ", "\ua960", "\ud7b0"]
    scripts = [characters for characters in by_block.values() if len(characters) > 20]
    mixed = [[*EMOJI], [*COMPATIBLE, *LATIN], [*PLAIN, *PIECES], [*PLAIN]]
    return [[*LATIN, *marks], latin, marks, hangul, *mixed, *scripts]
