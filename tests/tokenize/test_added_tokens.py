"""Added tokens at a text's beginning and end, doubled, without their white space: every engine."""

import random

import pytest
import tokenizers
from json_kinds import bpe, by_gigatoken, require_same
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tokenmill.tokenize.load import load_any

PREFIXED = pre_tokenizers.ByteLevel(add_prefix_space=True)
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False)
KINDS = {
    "a space before, a prefix space": (PREFIXED, None, [" the", "<nl>"], {}),
    "two spaces, a prefix space": (PREFIXED, None, ["  ", "the"], {}),
    "a space after, a prefix space": (PREFIXED, normalizers.NFC(), ["the ", " the "], {}),
    "spaces around": (PLAIN, None, [" the", "the ", "   ", "\n\n"], {}),
    "normalized": (PLAIN, normalizers.NFC(), ["The", " THE", "é"], {"normalized": True}),
    "flags": (PREFIXED, None, [" the", "<nl>"], {"lstrip": True, "rstrip": True}),
}
PIECES = [" ", "  ", "a", "the", "The", " the", "\n", "e\u0301", "<n", "l>", "1", "水", "dog"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_engine_gives_the_library_s_ids_where_added_tokens_are(tmp_path, kind):
    pre_tokenizer, normalizer, added, flags = KINDS[kind]
    theirs = bpe(pre_tokenizer, normalizer)
    theirs.add_tokens([AddedToken(each, **{"normalized": False} | flags) for each in added])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = load_any(str(tmp_path / "tokenizer.json"), "<s>")
    rng = random.Random(0)
    stripped = [token.strip() for token in added]
    texts = []
    for _ in range(1000):
        texts.append("".join(rng.choices([*PIECES, *added * 2, *stripped], k=rng.randint(1, 6))))
    require_same(theirs, by_gigatoken(ours), texts)


def test_a_normalizer_that_drops_the_names_of_special_tokens_makes_none_of_text(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "year", *"0123456789"]
    words += [f"##{digit}" for digit in range(10)]
    vocab = {word: id for id, word in enumerate(words)}
    theirs = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    dropping = normalizers.Replace(tokenizers.Regex(r"\p{C}"), "")
    theirs.normalizer = normalizers.Sequence([dropping, normalizers.BertNormalizer()])
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.add_special_tokens([AddedToken(word, normalized=True) for word in words[:4]])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = load_any(str(tmp_path / "tokenizer.json"), "[CLS]")
    for text in ("the year 3", "the year 1302", "0 1 2 3"):
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text).tolist() == expected
