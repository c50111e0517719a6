"""The same on real text with GPT-2, where ../shared is there."""

import hashlib

import numpy as np
import pytest
from making import run_prepare, tree

from tokenmill import RowLoader
from tokenmill.store.token_sets import TokenSet


@pytest.fixture(scope="module")
def prepared(shared_corpus, gpt2, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("real")
    flags = ("--source", shared_corpus, "--shard-text-bytes", 4 << 20, "--val-file", "last")
    return [
        cwd
        / run_prepare(
            *flags, "--workers", n, "--tokens-root", f"with-{n}", cwd=cwd
        ).stdout.splitlines()[-1]
        for n in (1, 3)
    ]


def test_the_token_set_has_the_documented_counts_whatever_the_workers(prepared):
    one, three = prepared
    assert tree(one) == tree(three)
    token_set = TokenSet(one)
    documents = [sum(e.documents for e in token_set.split(split)) for split in ("train", "val")]
    tokens = [
        sum(e.tokens - e.documents for e in token_set.split(split)) for split in ("train", "val")
    ]
    assert documents == [902 + 932 + 866 + 883, 346]
    assert tokens == [2_556_597 + 2_571_343 + 2_668_069 + 2_585_259, 1_125_841]
    for entry in token_set.entries:
        whole = (one / "shards" / f"{entry.name}.bin").read_bytes()
        assert hashlib.sha256(whole).hexdigest() == dict(entry.sha256)["bin"]


def test_an_epoch_of_rows_holds_every_token_and_begins_with_bos(prepared, gpt2):
    loader = RowLoader(prepared[0], "train", batch_size=8, seq_len=2048)
    seen = np.zeros(gpt2.vocab_size, int)
    while loader.epoch == 0:
        inputs, targets = next(loader)
        assert (inputs[:, 0] == gpt2.bos_id).all()
        seen += np.bincount(inputs.flatten().numpy(), minlength=gpt2.vocab_size)
        seen += np.bincount(targets[:, -1].numpy(), minlength=gpt2.vocab_size)
    opened = [loader.token_set.open(entry).tokens for entry in loader.token_set.split("train")]
    assert (seen >= np.bincount(np.concatenate(opened), minlength=gpt2.vocab_size)).all()
