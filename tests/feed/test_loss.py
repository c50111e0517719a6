"""Which targets bear loss: masks of chat sets, padding, windows, mixtures with text, and loss="once"."""

import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from making import make_chat_set, make_token_set

from tokenmill import Mixture, RowLoader
from tokenmill.store.token_sets import TokenSet

IGNORED = -100
WAYS = ("drop", "crop", "window")


def lengths(count: int, longest: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, longest, count).tolist()


@pytest.fixture(scope="module")
def chat_set(tmp_path_factory):
    train = [lengths(60, 60, 1), lengths(80, 30, 2), lengths(3, 300, 3)]
    return make_chat_set(tmp_path_factory.mktemp("chat") / "chat", train, [lengths(20, 60, 4)])


@pytest.fixture(scope="module")
def text_set(tmp_path_factory):
    return make_token_set(
        tmp_path_factory.mktemp("text") / "text", [lengths(60, 90, 5), lengths(30, 400, 6)], [[50]], 7
    )


def masks_of(folder, split="train"):
    """(shard, first token, ids, mask) of each document: mask as the column has it, bit by bit."""
    token_set, found = TokenSet(folder), []
    for entry in token_set.split(split):
        shard = token_set.open(entry)
        data = shard.column("mask")
        mask = [bool(data[k // 8] >> (k % 8) & 1) for k in range(entry.tokens)]
        offsets = shard.offsets.tolist()
        for first, last in zip(offsets[:-1], offsets[1:], strict=True):
            found.append((shard.tokens[first:last].tolist(), mask[first:last]))
    return found


def supervised(inputs, targets) -> list[int]:
    """The targets that bear loss, which are the tokens that follow their inputs."""
    assert torch.equal(inputs[:, 1:][targets[:, :-1] != IGNORED], targets[:, :-1][targets[:, :-1] != IGNORED])
    return targets[targets != IGNORED].tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seq_len", [16, 63, 300])
def test_every_supervised_token_that_is_kept_is_a_target_exactly_once(chat_set, way, seq_len):
    expected = Counter()
    for ids, mask in masks_of(chat_set):
        kept = len(ids) if way == "window" or len(ids) <= seq_len + 1 else (seq_len + 1 if way == "crop" else 0)
        expected += Counter(id for id, bears in zip(ids[:kept], mask[:kept], strict=True) if bears)
    found, counted = Counter(), 0
    more = {"epochs": 1, "drop_last": False, "long_documents": way, "prefetch": 0}
    with RowLoader(chat_set, batch_size=3, seq_len=seq_len, **more) as loader:
        for inputs, targets in loader:
            found += Counter(some := supervised(inputs, targets))
            assert loader.targets == len(some)
            counted += len(some)
    assert found == expected
    assert counted == expected.total()


def test_a_row_is_whole_conversations_with_their_masks_and_padding(chat_set):
    """Row by row, against a slow reading of the columns."""
    documents = {tuple(ids): mask for ids, mask in masks_of(chat_set)}
    with RowLoader(chat_set, batch_size=4, seq_len=299, epochs=1, drop_last=False, documents=True) as loader:
        assert loader.token_set.bos_id == 0
        for inputs, targets, numbers in loader:
            for row, wanted, own in zip(inputs.tolist(), targets.tolist(), numbers.tolist(), strict=True):
                starts = [i for i in range(len(row)) if i == 0 or own[i] != own[i - 1]]
                for first, last in zip(starts, [*starts[1:], len(row)], strict=True):
                    ids, found = row[first:last], wanted[first:last]
                    if tuple(ids) in documents:  # its targets, but that of its last token, which is another's BOS
                        mask = documents[tuple(ids)]
                        expected = [id if bears else IGNORED for id, bears in zip(ids[1:], mask[1:], strict=True)]
                        assert found[:-1] == expected
                        if last < len(row):
                            assert found[-1] == IGNORED, "BOS of the next document bears no loss"
                    elif last < len(row):
                        raise AssertionError("neither a conversation nor padding at the end")


def test_ignore_index_is_what_the_caller_names(chat_set):
    settings = {"batch_size": 4, "seq_len": 300, "seed": 3}
    with RowLoader(chat_set, **settings) as usual, RowLoader(chat_set, ignore_index=-1, **settings) as other:
        for (_, targets), (_, others) in islice(zip(usual, other, strict=True), 5):
            assert torch.equal(torch.where(targets == IGNORED, -1, targets), others)


def test_targets_are_the_global_batch_s_on_every_rank(chat_set, text_set):
    for tokens in (chat_set, Mixture({"chat": 2, "text": 1}, sources={"chat": chat_set, "text": text_set})):
        many = {"batch_size": 2, "seq_len": 300, "prefetch": 0}
        ranks = [RowLoader(tokens, rank=rank, world_size=3, **many) for rank in range(3)]
        with RowLoader(tokens, batch_size=6, seq_len=300, prefetch=0) as alone:
            for _ in range(12):
                batches = [next(loader) for loader in ranks]
                inputs, targets = next(alone)
                assert torch.equal(torch.cat([own for _, own in batches]), targets)
                bears = int((targets != IGNORED).sum())
                assert [loader.targets for loader in ranks] == [bears] * 3 == [alone.targets] * 3
        for loader in ranks:
            loader.close()


def test_text_in_a_mixture_is_supervised_throughout(chat_set, text_set):
    mixture = Mixture({"chat": 1, "text": 1}, sources={"chat": chat_set, "text": text_set})
    with RowLoader(mixture, batch_size=8, seq_len=299, sources=True) as loader:
        assert loader.sources == ("chat", "text")
        for inputs, targets, sources in islice(loader, 6):
            ignored = (targets == IGNORED).any(1)
            assert torch.equal(ignored, sources == 0)
            assert torch.equal(inputs[sources == 1][:, 1:], targets[sources == 1][:, :-1])


def test_weights_by_targets_are_shares_of_the_targets(chat_set, text_set):
    sources = {"chat": chat_set, "text": text_set}
    mixture = Mixture({"chat": 3, "text": 1}, sources=sources, weights_by="targets")
    found = Counter()
    with RowLoader(mixture, batch_size=8, seq_len=299, sources=True) as loader:
        for _, targets, of in islice(loader, 300):
            for source, name in enumerate(loader.sources):
                found[name] += int((targets[of == source] != IGNORED).sum())
    assert abs(found["chat"] / found.total() - 3 / 4) < 0.02  # padding is not taken into account
    assert mixture == Mixture(mixture.description["stages"][0][1], sources=sources), "weights of tokens, made whole"
    assert mixture != Mixture({"chat": 3, "text": 1}, sources=sources)
    with pytest.raises(ValueError, match="weights_by must be one of"):
        Mixture({"chat": 3, "text": 1}, sources=sources, weights_by="loss")


def test_a_file_says_that_weights_are_shares_of_targets(chat_set, text_set, tmp_path):
    (tmp_path / "mixture.toml").write_text(
        f'weights_by = "targets"\n[sources]\nchat = {{path = "{chat_set}"}}\ntext = {{path = "{text_set}"}}\n'
        "[weights]\nchat = 3\ntext = 1\n"
    )
    sources = {"chat": chat_set, "text": text_set}
    expected = Mixture({"chat": 3, "text": 1}, sources=sources, weights_by="targets")
    assert Mixture.load(tmp_path / "mixture.toml") == expected


def test_once_makes_every_token_of_text_a_target_exactly_once(text_set):
    token_set, expected = TokenSet(text_set), Counter()
    for entry in token_set.split("train"):
        tokens = token_set.open(entry).tokens
        expected += Counter(tokens[tokens != token_set.bos_id].tolist())
    for seq_len in (7, 64, 500):
        found = Counter()
        with RowLoader(text_set, batch_size=2, seq_len=seq_len, loss="once", epochs=1, drop_last=False) as loader:
            for inputs, targets in loader:
                found += Counter(some := supervised(inputs, targets))
                assert loader.targets == len(some)
        assert found == expected


def test_all_is_every_target(text_set):
    with RowLoader(text_set, batch_size=2, seq_len=64) as loader:
        inputs, targets = next(loader)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert loader.targets == 128


def test_resumed_on_other_ranks_lengths_and_batch_sizes_every_target_comes_once(chat_set):
    """Random histories of an epoch: each supervised token is a target exactly once, whatever changes in between."""
    expected = Counter(id for ids, mask in masks_of(chat_set) for id, bears in zip(ids, mask, strict=True) if bears)
    for seed in range(25):
        rng, state, found, ended = random.Random(seed), None, Counter(), False
        while not ended:
            world, size = rng.randint(1, 3), rng.randint(1, 4)
            more = {"epochs": 1, "drop_last": False, "long_documents": "window", "prefetch": rng.choice([0, 2])}
            settings = {"batch_size": size, "seq_len": rng.choice([16, 40, 64, 120]), "seed": seed} | more
            ranks = [RowLoader(chat_set, rank=rank, world_size=world, **settings) for rank in range(world)]
            for loader in ranks:
                if state is not None:
                    loader.load_state_dict(state)
            for _ in range(rng.randint(1, 12)):
                batches = [next(loader, None) for loader in ranks]
                if batches[0] is None:
                    ended = True
                    break
                total = [token for batch in batches for token in supervised(*batch)]
                assert all(loader.targets == len(total) for loader in ranks)
                found += Counter(total)
            state = rng.choice(ranks).state_dict()
            for loader in ranks:
                loader.close()
        assert found == expected, f"seed {seed}"


REFUSED = [
    ({"packing": "concat"}, "is a chat set, whose conversations stay whole, which packing 'concat' does not do"),
    ({"packing": "random"}, "is a chat set, whose conversations stay whole, which packing 'random' does not do"),
    ({"packing": "nanochat"}, "is a chat set, whose conversations stay whole, which packing 'nanochat' does not do"),
    ({"seq_len": 100}, r"1 of 143 conversations are longer than a row of 100 \+ 1 tokens, the longest with 243"),
    ({"loss": "none"}, "loss must be one of"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_what_does_not_fit_a_chat_set_is_refused_when_the_loader_is_made(chat_set, more, message):
    with pytest.raises(ValueError, match=message):
        RowLoader(chat_set, **{"batch_size": 2, "seq_len": 300} | more)


@pytest.mark.parametrize("packing", ["concat", "random", "nanochat"])
def test_once_is_refused_where_rows_do_not_have_every_token_once(text_set, packing):
    with pytest.raises(ValueError, match="loss='once' is not supported with packing"):
        RowLoader(text_set, batch_size=2, seq_len=64, packing=packing, loss="once")


@pytest.mark.parametrize("way", ["drop", "window"])
def test_ways_of_conversations_are_refused_for_text_alone(text_set, way):
    with pytest.raises(ValueError, match=f"long_documents='{way}' is for chat sets"):
        RowLoader(text_set, batch_size=2, seq_len=64, long_documents=way)


def test_a_chat_set_is_read_at_an_address_as_it_is_here(chat_set, tmp_path):
    from file_server import FileServer

    settings = {"batch_size": 3, "seq_len": 300, "epochs": 1, "long_documents": "window"}
    with (
        FileServer.of(chat_set) as server,
        RowLoader(chat_set, **settings) as here,
        RowLoader(f"{server.url}/set", cache_dir=tmp_path, **settings) as there,
    ):
        for one, other in zip(here, there, strict=True):
            assert all(map(torch.equal, one, other))
            assert here.targets == there.targets
