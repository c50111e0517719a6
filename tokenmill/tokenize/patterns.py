r"""Split patterns that many tokenizers share: they cut a text into pieces, within which it merges.

nanochat's pattern is run by an engine that knows Qwen 2's: they differ in how many digits make a
piece. So the engine gives an id for each digit, and `DigitPairs` joins two digits that follow each
other if the vocabulary has an id for them: a piece of two bytes has only one merge.

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
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
)
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
NO_PAIR = -1


@functools.cache
def numbers() -> np.ndarray:
    """Code points beyond ASCII that are numbers, in Python's Unicode, or that of `regex`."""
    with naming_the_extra("prepare"):
        import regex
    codes = np.r_[0x80:0xD800, 0xE000:0x110000]
    characters = codes.astype("<u4").tobytes().decode("utf-32-le")
    numbers = set(regex.findall(r"\p{N}", characters))
    for character in filter(str.isnumeric, characters):
        if unicodedata.category(character)[0] == "N":
            numbers.add(character)
    return np.array(sorted(map(ord, numbers)))


class DigitPairs:
    """Joins the ids of two digits that follow each other. `ranks` is the vocabulary."""

    def __init__(self, ranks: dict[bytes, int]):
        ids = [ranks[b"%d" % digit] for digit in range(10)]
        self._digit_of = np.full(max(ranks.values()) + 1, NO_DIGIT, np.uint8)
        self._digit_of[ids] = range(10)
        pairs = [ranks.get(b"%02d" % number, NO_PAIR) for number in range(100)]
        self._pair_of = np.array(pairs).reshape(10, 10)

    def join(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids (num_ids,) and offsets (num_documents + 1,) with pairs joined. Writes into `ids`."""
        digits = self._digit_of.take(ids)
        places = np.flatnonzero(digits != NO_DIGIT)
        if not len(places):
            return ids, offsets
        is_begin = np.zeros(len(ids) + 1, bool)  # of a document
        is_begin[offsets] = True
        is_first = np.ones(len(places), bool)  # of a run of digits
        is_first[1:] = (np.diff(places) != 1) | is_begin[places[1:]]
        numbers = np.arange(len(places))
        run_begins = np.maximum.accumulate(np.where(is_first, numbers, 0))
        is_second = (numbers - run_begins) % 2 == 1
        seconds = places[is_second]
        pairs = self._pair_of[digits[seconds - 1], digits[seconds]]
        is_pair = pairs != NO_PAIR
        joined = seconds[is_pair]
        ids[joined - 1] = pairs[is_pair]
        is_kept = np.ones(len(ids), bool)
        is_kept[joined] = False
        return ids[is_kept], offsets - np.searchsorted(joined, offsets)
