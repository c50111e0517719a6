"""tokenizer.json files of every kind, small, as Hugging Face's library trains and writes them."""

import json

import numpy as np
import pyarrow as pa
import tokenizers
from making import make_text
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenmill.tokenize.encoder import Encoder
from tokenmill.tokenize.proofs import Proof

TEXTS = make_text(300, seed=0)  # what they are trained on; benchmarks/engines.py has more,
FACTOR = 1  # and vocabularies so many times as large
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPECIAL = ["<unk>", "<s>", "</s>"]
NEWER_MARKS = [  # which gigatoken 0.10.0 and tokenizers 0.23.3 order differently
    "\u0c15\u0c4d\u0c3c",  # Telugu: a virama, and the nukta of Unicode 14
    "\u0e81\u0eb8\u0eba",  # Lao: a sign of Unicode 12
    "e\u1ac0\u0e48",  # a mark of Unicode 13, and one that is as old as Unicode
    "\u1ab1\u1ac3",  # Unicode 7 and 14
]


def bpe(pre_tokenizer, normalizer=None, **more):
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer:
        theirs.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700 * FACTOR, special_tokens=SPECIAL, initial_alphabet=alphabet, **more
    )
    theirs.train_from_iterator(TEXTS, trainer)
    return theirs


def letters(normalizer=None, add_prefix_space=False):
    """Of the 256 bytes alone: it is loaded in a quarter of a second, and needs no training."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    theirs = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space, use_regex=False)
    theirs.decoder = decoders.ByteLevel()
    if normalizer:
        theirs.normalizer = normalizer
    theirs.add_special_tokens(SPECIAL)
    return theirs


def llama2():
    """SentencePiece's BPE with byte fallback, as Llama 2's and Gemma's are converted."""
    theirs = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    theirs.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900 * FACTOR, special_tokens=SPECIAL + fallback, show_progress=False
    )
    theirs.train_from_iterator(TEXTS, trainer)
    whole = json.loads(theirs.to_str())
    whole["added_tokens"] = whole["added_tokens"][:3]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(whole))
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    theirs.decoder = decoders.Sequence(steps)
    return theirs


def unigram():
    """As T5's."""
    theirs = tokenizers.Tokenizer(models.Unigram())
    theirs.normalizer = normalizers.NFKC()
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500 * FACTOR, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(TEXTS, trainer)
    return theirs


def word_piece():
    """As BERT's."""
    theirs = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    theirs.normalizer, theirs.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    theirs.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=500 * FACTOR, special_tokens=SPECIAL, show_progress=False
    )
    theirs.train_from_iterator(TEXTS, trainer)
    return theirs


def with_added_tokens():
    theirs = bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))
    theirs.add_tokens(["grinder", "  "])
    return theirs


def cut_and_padded():
    theirs = bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())
    theirs.enable_truncation(5)
    theirs.enable_padding(length=30)
    theirs.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", None, [("<s>", 1), ("</s>", 2)]
    )
    return theirs


SPLITS = [r"\p{N}{1,3}", "[一-龥]+", r"[!-/]| ?[\p{L}\p{M}]+|\s+"]
KINDS = {
    "nfc": lambda: bpe(
        pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()
    ),  # NeoX, Qwen
    "digits": lambda: bpe(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    ),
    "splits": lambda: bpe(
        pre_tokenizers.Sequence(
            [*(pre_tokenizers.Split(Regex(one), "isolated") for one in SPLITS), BYTES]
        )
    ),
    "llama2": llama2,
    "unigram": unigram,
    "word_piece": word_piece,
    "added": with_added_tokens,
    "cut": cut_and_padded,
}


def by_gigatoken(tokenizer, code_points=()) -> Encoder:
    """The engine without its proof, which takes seconds: a test compares what it asks about."""
    return Encoder(tokenizer, "gigatoken", Proof(np.array(code_points, int)))


def require_same(theirs, encoder, texts) -> None:
    """That an encoder gives the library's ids of each text, behind BOS."""
    tokens, lengths, _ = encoder.encode(pa.array(texts, pa.large_string()))
    actual = np.split(tokens, np.cumsum(lengths)[:-1])
    expected = theirs.encode_batch_fast(texts, add_special_tokens=False)
    for text, ids, right in zip(texts, actual, expected, strict=True):
        assert ids[1:].tolist() == right.ids, ascii(text)
