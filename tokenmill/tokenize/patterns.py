r"""Split patterns that many tokenizers share: what cuts a text into the pieces that merges happen within.

nanochat's pattern is run by an engine that knows Qwen 2's: they differ in how many digits make a piece. So the engine
gives an id for each digit, and `DigitPairs` joins two digits that follow each other if the vocabulary has an id for
them: a piece of two bytes has only one merge.

    \p{N}   1234567  ->  1 2 3 4 5 6 7        \p{N}{1,2}   1234567  ->  12 34 56 7

The reference encodes documents with `numbers` beyond ASCII, which make such pieces too.
"""

import functools
import unicodedata

import numpy as np

from tokenmill.extras import naming_the_extra

# tiktoken's, as of the pinned version
GPT2_PATTERN = (
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
)
CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
O200K_PATTERN = (
    _CASED % ("*", "+")
    + _CASED % ("+", "*")
    + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# nanochat's (nanochat/tokenizer.py), and that of what train:N makes
NANOCHAT_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"""
    r"""| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
)

# as their tokenizer.json has them: Llama 3's, OLMo 2's and SmolLM3's; Qwen 2's and 3's
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NO_DIGIT = 10


@functools.cache
def numbers() -> np.ndarray:
    """Code points beyond ASCII that are numbers, in Python's Unicode version or that of the newer `regex` package."""
    with naming_the_extra("prepare"):
        import regex
    codes = np.r_[0x80:0xD800, 0xE000:0x110000]
    characters = codes.astype("<u4").tobytes().decode("utf-32-le")
    python_s = (c for c in filter(str.isnumeric, characters) if unicodedata.category(c)[0] == "N")
    return np.array(sorted(map(ord, {*regex.findall(r"\p{N}", characters), *python_s})))


class DigitPairs:
    """Joins the ids of two digits that follow each other. `ranks` is the vocabulary."""

    def __init__(self, ranks: dict[bytes, int]):
        digits = [ranks[b"%d" % digit] for digit in range(10)]
        self._digit_of = np.full(max(ranks.values()) + 1, NO_DIGIT, np.uint8)
        self._digit_of[digits] = range(10)
        self._pair_of = np.array(
            [[ranks.get(b"%d%d" % (a, b), -1) for b in range(10)] for a in range(10)]
        )

    def join(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (num_ids,) and offsets (num_documents + 1,) with pairs joined. Writes into `ids`."""
        digits = self._digit_of.take(ids)
        places = np.flatnonzero(digits != NO_DIGIT)
        if not len(places):
            return ids, offsets
        begins = np.zeros(len(ids) + 1, bool)
        begins[offsets] = True
        first = np.ones(len(places), bool)  # of a run
        first[1:] = (np.diff(places) != 1) | begins[places[1:]]
        number = np.arange(len(places))
        within = number - np.maximum.accumulate(np.where(first, number, 0))
        seconds = places[within % 2 == 1]
        pairs = self._pair_of[digits[seconds - 1], digits[seconds]]
        seconds, pairs = seconds[pairs >= 0], pairs[pairs >= 0]
        ids[seconds - 1] = pairs
        kept = np.ones(len(ids), bool)
        kept[seconds] = False
        return ids[kept], offsets - np.searchsorted(seconds, offsets)
