"""Characters that a tokenizer has no token for: they are lost from the text.

    lost = LostCharacters(tokenizer)
    lost.unknown                   "éï": some of the letters, digits and signs without a token
    lost.among(["naïve café"])     ("ïé", 10): what these texts lose, of how many characters

A vocabulary without byte fallback, or with a byte-level alphabet that is not whole, drops such
characters, or writes its unknown token for them. The library says nothing, so each character is
encoded by itself, once, and its tokens are looked at. In models of words, a letter by itself tells
nothing, and whole texts are encoded.
"""

import unicodedata
from collections.abc import Iterable
from itertools import islice

import numpy as np

from tokenmill.threads import cached_property
from tokenmill.tokenize.huggingface import HuggingFace, without_hidden
from tokenmill.tokenize.libraries import naming_the_library
from tokenmill.tokenize.spelling import LOW_LINE, spells_bytes
from tokenmill.tokenize.tokenizer import Tokenizer

LAST_PLANES = 0x40000  # from here on, Unicode has no letter, digit or sign
OF_WORDS = ("WordPiece", "WordLevel")  # models that know words, and not their letters
UTF8_BYTES = {*range(0xC0), *range(0xC2, 0xF5)}  # that are in valid UTF-8


class LostCharacters:
    """Looks for the characters that a tokenizer has no token for."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._is_lost_alone: dict[str, bool] = {}

    @cached_property
    def unknown(self) -> str:
        """Characters without a token, among one or more of every 256 code points."""
        if not isinstance(self._tokenizer, HuggingFace):
            return ""  # tiktoken's have all bytes
        characters = filter(self._is_lost, _characters_of_all_blocks())
        return "".join(characters)

    @property
    def keeps_white_space(self) -> bool:
        """Whether a space, two of them, a line break and nothing have different ids."""
        if not isinstance(self._tokenizer, HuggingFace):
            return True
        texts = ["a b", "a  b", "a\nb", "ab"]
        ids = {tuple(self._tokenizer.encode(text).tolist()) for text in texts}
        return len(ids) == len(texts)

    def among(self, texts: Iterable[str]) -> tuple[str, int]:
        """What the ids of texts lack: letters, digits and signs; and of how many characters.

        Texts are not read where nothing can be lost.
        """
        if not self.unknown:
            return "", 0
        lost = ""
        num_characters = 0
        for text in texts:
            lost += self._of_text(text)
            num_characters += len(text)
        return lost, num_characters

    def _of_text(self, text: str) -> str:
        tokenizer = self._theirs
        normalizer = tokenizer.encoding_of_texts.normalizer
        if normalizer:
            text = normalizer.normalize_str(text)
        if tokenizer.parts["model"].get("type") in OF_WORDS:
            return self._outside_of_tokens(text)
        lost = set(filter(self._is_lost, set(text)))
        return "".join(character for character in text if character in lost) if lost else ""

    def _is_lost(self, character: str) -> bool:
        """Whether a character by itself has no token: then, but in words, none of its copies."""
        if character not in self._is_lost_alone:
            self._is_lost_alone[character] = bool(self._outside_of_tokens(character))
        return self._is_lost_alone[character]

    def _outside_of_tokens(self, text: str) -> str:
        """The letters, digits and signs of a text that are in no token, or in the unknown one."""
        text = without_hidden(text)
        tokenizer = self._theirs
        with naming_the_library(tokenizer.library, tokenizer.name):
            encoded = tokenizer.encoding_of_texts.encode(text, add_special_tokens=False)
        is_kept = np.zeros(len(text), bool)
        for id, (begin, end) in zip(encoded.ids, encoded.offsets, strict=True):
            if id in self._writing_ids:
                is_kept[begin:end] = True
        lost = []
        for character, kept in zip(text, is_kept.tolist(), strict=True):
            is_whole = kept and self._missing_bytes.isdisjoint(character.encode())
            if not is_whole and _is_visible(character):
                lost.append(character)
        return "".join(lost)

    @property
    def _theirs(self) -> HuggingFace:
        assert isinstance(self._tokenizer, HuggingFace)
        return self._tokenizer

    @cached_property
    def _writing_ids(self) -> set[int]:
        """The ids that stand for more than white space, without the unknown token."""
        tokenizer = self._theirs
        model = tokenizer.parts["model"]
        unknown = tokenizer.vocab.get(model.get("unk_token"), model.get("unk_id"))
        return {id for id, token in tokenizer.tokens.items() if token.strip() and id != unknown}

    @cached_property
    def _missing_bytes(self) -> set[int]:
        """The bytes that a byte-level vocabulary lacks, so that characters lose a part."""
        if not spells_bytes(self._theirs.parts):
            return set()
        single = {token[0] for token in self._theirs.tokens.values() if len(token) == 1}
        return UTF8_BYTES.difference(single)


def _is_visible(character: str) -> bool:
    """Whether it is a letter, digit or sign, and not what SentencePiece writes for a space."""
    return unicodedata.category(character)[0] in "LNPS" and character != LOW_LINE


def _characters_of_all_blocks() -> list[str]:
    """Latin-1, and of each 256 code points the first letter, digit or sign."""
    characters = [chr(code) for code in range(0x21, 0x100)]
    for first in range(0x100, LAST_PLANES, 0x100):
        block = map(chr, range(first, first + 0x100))
        characters += islice(filter(_is_visible, block), 1)
    return characters
