"""Which targets are in the loss: chat sets' masks, padding, mixtures with text, loss=."""

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from making import BOS, make_chat_set, make_token_set

from tokenmill import Mixture
from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.store.token_sets import TokenSet

IGNORED = -100
pytestmark = pytest.mark.filterwarnings("ignore:.*these are left out:UserWarning")


def lengths(count: int, longest: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, longest, count).tolist()


@pytest.fixture(scope="module")
def chat_set(tmp_path_factory):
    train = [lengths(60, 60, 1), lengths(80, 30, 2), lengths(3, 300, 3)]
    return make_chat_set(tmp_path_factory.mktemp("chat") / "chat", train, [lengths(20, 60, 4)])


@pytest.fixture(scope="module")
def text_set(tmp_path_factory):
    train = [lengths(60, 90, 5), lengths(30, 400, 6)]
    return make_token_set(tmp_path_factory.mktemp("text") / "text", train, [[50]], 7)


def conversations_of(folder):
    """(tokens, mask) of each conversation: the mask as the column has it, bit by bit."""
    token_set = TokenSet(folder)
    conversations = []
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        data = shard.column("mask")
        tokens = shard.tokens.tolist()
        offsets = shard.offsets.tolist()
        mask = [bool(data[k // 8] >> (k % 8) & 1) for k in range(entry.tokens)]
        conversations += [
            (tokens[a:b], mask[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)
        ]
    return conversations


def in_loss(inputs, targets) -> list[int]:
    """The targets that are in the loss, which are the tokens that follow their inputs."""
    known = targets[:, :-1] != IGNORED
    assert (inputs[:, 1:][known] == targets[:, :-1][known]).all()
    return targets[targets != IGNORED].tolist()


def mixture_of(chat_set, text_set, **weights):
    return Mixture(weights or {"chat": 2, "text": 1}, sources={"chat": chat_set, "text": text_set})


# ---------------------------------------------------------------------------- chats


@pytest.mark.parametrize("long_documents", ["drop", "crop"])
@pytest.mark.parametrize("seq_len", [16, 63, 300])
def test_every_token_of_the_mask_that_is_kept_is_a_target_exactly_once(
    chat_set, long_documents, seq_len
):
    expected = Counter()
    counted = Counter()
    for ids, mask in conversations_of(chat_set):
        kept = len(ids)
        if kept > seq_len + 1:
            kept = seq_len + 1 if long_documents == "crop" else 0
        expected.update(id for id, learned in zip(ids[:kept], mask[:kept], strict=True) if learned)
    settings = {"epochs": 1, "drop_last": False, "long_documents": long_documents}
    loader = RowLoader(chat_set, batch_size=3, seq_len=seq_len, **settings)
    for inputs, targets in loader:
        counted.update(pairs := in_loss(inputs, targets))
        assert loader.targets == len(pairs)
    assert counted == expected


def test_a_row_is_whole_conversations_with_their_masks_and_then_padding(chat_set):
    """Row by row, against a slow reading of the columns."""
    masks = {tuple(ids): mask for ids, mask in conversations_of(chat_set)}
    seen = Counter()
    with RowLoader(chat_set, batch_size=4, seq_len=299, epochs=1, drop_last=False) as loader:
        rows = chain.from_iterable(zip(*batch, strict=True) for batch in loader)
        for row, wanted in rows:
            starts = [*np.flatnonzero(row == BOS), len(row)]
            assert starts[0] == 0
            for first, last in zip(starts[:-1], starts[1:], strict=True):
                ids = tuple(row[first:last].tolist())
                in_row = wanted[first:last].tolist()
                same_ids = (
                    [ids_and_next for ids_and_next in masks if ids_and_next[:-1] == ids]
                    if last == len(row)
                    else [ids]
                )
                if same_ids:  # else it is padding, which comes last
                    mask = masks[same_ids[0]]
                    learned = [
                        id if is_learned else IGNORED
                        for id, is_learned in zip(same_ids[0], mask, strict=True)
                    ]
                    assert in_row == [*learned[1:], IGNORED][: len(in_row)], (
                        "BOS of what follows is not in the loss"
                    )
                    seen[same_ids[0]] += 1
                elif ids not in masks:
                    assert set(in_row) == {IGNORED}
    assert set(seen.values()) == {1}


def test_a_conversation_without_a_target_in_what_is_kept_is_left_out_with_a_warning(tmp_path):
    folder = make_chat_set(tmp_path / "chat", [[30, 30, 8, 8, 8, 8, 30]], [[9]], seed=0)
    first = [mask.index(True) if any(mask) else 10**9 for _, mask in conversations_of(folder)]
    assert first == [7, 12, 10**9, 2, 10**9, 7, 1]
    with pytest.warns(
        UserWarning,
        match="of 7 conversations, 3 have no target in their first 9 tokens; these are left",
    ):
        loader = RowLoader(folder, batch_size=1, seq_len=8, epochs=1, long_documents="crop")
    dealt = list(loader)
    run = RunRows.of_position(loader.state_dict(), {"": TokenSet(folder)})
    documents = []
    for row in chain.from_iterable(map(run.step, range(len(dealt)))):
        documents += [piece.document for piece in row.pieces if not piece.is_padding]
    assert sorted(documents) == [n for n, place in enumerate(first) if place < 9]
    assert all((targets != IGNORED).any() for _, targets in dealt), "no row without a target"


# ---------------------------------------------------------------------------- mixtures


def test_text_in_a_mixture_is_in_the_loss_throughout(chat_set, text_set):
    loader = RowLoader(mixture_of(chat_set, text_set), batch_size=8, seq_len=299)
    assert loader.sources == ("chat", "text")
    for inputs, targets in islice(loader, 6):
        assert ((targets == IGNORED).any(1) == (loader.row_sources == 0)).all()
        is_text = loader.row_sources == 1
        assert (inputs[is_text][:, 1:] == targets[is_text][:, :-1]).all()


# ---------------------------------------------------------------------------- text, once


def test_once_makes_every_token_of_text_a_target_exactly_once(text_set):
    token_set = TokenSet(text_set)
    expected = Counter()
    for entry in token_set.split("train"):
        tokens = token_set.open(entry).tokens
        expected.update(tokens[tokens != BOS].tolist())
    for seq_len in (7, 64, 500):
        counted = Counter()
        loader = RowLoader(
            text_set, batch_size=2, seq_len=seq_len, loss="once", epochs=1, drop_last=False
        )
        for inputs, targets in loader:
            counted.update(pairs := in_loss(inputs, targets))
            assert loader.targets == len(pairs)
        assert counted == expected


# ---------------------------------------------------------------------------- text, skip_cuts


@pytest.mark.parametrize("seq_len", [7, 64, 500])
def test_skip_cuts_leaves_out_16_targets_after_each_inserted_bos_and_no_other(text_set, seq_len):
    """Target by target, from the pieces of each row."""
    settings = {"batch_size": 2, "seq_len": seq_len, "epochs": 1, "drop_last": False}
    everything = RowLoader(text_set, **settings)
    skipping = RowLoader(text_set, loss="skip_cuts", **settings)
    batches = list(islice(skipping, 100))
    run = RunRows.of_position(skipping.state_dict(), {"": TokenSet(text_set)})
    num_cuts = 0
    for step, (inputs, targets) in enumerate(batches):
        same_inputs, all_targets = next(everything)
        assert (inputs == same_inputs).all()
        for row, found, tokens in zip(run.step(step), targets, all_targets, strict=True):
            expected = []
            for piece in row.pieces:
                num_cuts += piece.bos
                since = -1 if piece.bos else 16
                for _ in range(piece.bos + piece.length):
                    expected.append(since < 0 or since >= 16)
                    since += 1
            assert np.array_equal(found, np.where(expected[1:], tokens, IGNORED))
    assert num_cuts or seq_len == 500
    assert skipping.targets == (batches[-1][1] != IGNORED).sum()
