"""Texts on which tokenizer libraries have disagreed: what an engine is compared on before it is used.

`hard_texts` are long pieces, runs and spelled tokens. `random_texts` are random sequences of what normalizers and split
patterns treat specially: combining marks, Hangul, Indic syllables, emoji, compatibility characters, spaces and digits.
"""

import functools
import random
import unicodedata
from collections.abc import Iterable

LATIN = "aAeEiIoOuUnNcCsSyYzZıİſßÅåÀéñçǅΩωαΑςσֿאבﻻاأ"
COMPATIBLE = "ﬁﬃ①½²㎏ｱﾞＡｶﾟ㈱…™ªⅣﷺ豈ｶ゙が゚"
PLAIN = " \t\n\r\u00a0\u2003\u3000\u200b\ufeff0123456789٣४aAzZ'`.,!?-_/\\(\"«—水車éΩя"
PIECES = ["'s", "'LL", "'ſ", "\r\n", "  ", "e\u0301", "\u0f73", "\u2126", "\u212b", "\U0001d15f", "<0x41>", "\u2581"]
EMOJI = "😀👩👨🏽🏿❤⚕☠♀0#🏴🇩🇪\U000e0067\U000e007f\u200d\ufe0f\ufe0e\u20e3"


def hard_texts(tokens: Iterable[str]) -> list[str]:
    """Long pieces, runs and numbers of every kind, combined characters, and texts that spell these tokens."""
    units = [*" \n\t\u00a0aA1!é水😀\u0301", "\r\n", " \n", "ab", "12a", "...", "'s", "'S"]
    units += ["1²", "٣4", "½", "1 ", "e\u0301", "\u1100\u1161"]
    runs = [unit * count for unit in units for count in (*range(1, 12), 100, 1000)]
    long = [unit * 5000 for unit in units]
    spelled = [form.format(token) for token in tokens for form in ("x {0} y{0}", "{0}", "a{0}b", "{0}\u0301", "1{0}2")]
    return [*runs, *long, *(f"a{run}b" for run in runs), *(f"a {run}1" for run in runs), *spelled, "\x011\x01"]


def random_texts(count: int, seed: int) -> list[str]:
    """Random texts of up to 24 characters, the same for the same seed and Unicode version of Python."""
    rng = random.Random(seed)
    pools = _pools()
    texts = []
    for _ in range(count):
        some = rng.choices(pools, k=2)
        texts.append("".join(rng.choice(rng.choice(some)) for _ in range(rng.randint(1, 24))))
    return texts


@functools.cache
def _pools() -> list[list[str]]:
    marks: dict[int, list[str]] = {}
    indic: dict[int, list[str]] = {}
    for code in range(0x300, 0x20000):
        character = chr(code)
        kind = unicodedata.category(character)
        if combining := unicodedata.combining(character):
            marks.setdefault(combining, []).append(character)
        if kind[0] in "LM" and (0x900 <= code < 0x1100 or 0x1700 <= code < 0x1D00 or 0x11000 <= code < 0x12000):
            indic.setdefault(code >> 7, []).append(character)
    all_marks = [mark for some in marks.values() for mark in some]
    jamo = [chr(code) for code in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3), 0x115F)]
    hangul = jamo + [chr(0xAC00 + number * 28) for number in range(0, 399, 19)] + ["각", "힣", "ㅏ", "\ua960", "\ud7b0"]
    scripts = [some for some in indic.values() if len(some) > 20]
    latin = [*LATIN, *(mark for some in marks.values() for mark in some[:3])]
    others = [[*EMOJI], [*COMPATIBLE, *LATIN], [*PLAIN, *PIECES], [*PLAIN]]
    return [[*LATIN, *all_marks], latin, all_marks, hangul, *others, *scripts]
