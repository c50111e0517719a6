"""Trains a byte-level BPE on texts, with nanochat's split pattern and special tokens."""

from collections.abc import Iterable

from tokenmill.tokenize.chat_rule import NANOCHAT_TOKENS
from tokenmill.tokenize.patterns import NANOCHAT_PATTERN
from tokenmill.tokenize.tokenizer import Tokenizer

# nanochat's special tokens (nanochat/tokenizer.py)
BOS_TOKEN = "<|bos|>"
SPECIAL_TOKENS = (BOS_TOKEN, *NANOCHAT_TOKENS)


def train_tokenizer(texts: Iterable[str], vocab_size: int, name: str) -> Tokenizer:
    """A byte-level BPE of `vocab_size` tokens, trained by rustbpe, with nanochat's special tokens.

    ValueError if there is no room for the 256 bytes and the special tokens, or too little text for
    so many tokens.
    """
    smallest = 256 + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(
            f"expected at least {smallest} tokens, 256 bytes and special tokens, found {vocab_size}"
        )
    import rustbpe  # needed only for training

    trainer = rustbpe.Tokenizer()
    num_ranks = vocab_size - len(SPECIAL_TOKENS)
    trainer.train_from_iterator(iter(texts), num_ranks, pattern=NANOCHAT_PATTERN)
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    if len(ranks) < num_ranks:
        num_tokens = len(ranks) + len(SPECIAL_TOKENS)
        raise ValueError(
            f"the text gives only {num_tokens:,} tokens, expected {vocab_size:,}; train on more "
            "text, or ask for fewer tokens"
        )
    special = {token: len(ranks) + number for number, token in enumerate(SPECIAL_TOKENS)}
    return Tokenizer(name, NANOCHAT_PATTERN, ranks, special, BOS_TOKEN)
