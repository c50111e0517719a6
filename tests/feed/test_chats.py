"""Which targets are in the loss: masks of chat sets, padding, mixtures with text, and loss="once"."""

from collections import Counter
from itertools import islice

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
    token_set, found = TokenSet(folder), []
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        data, tokens, offsets = shard.column("mask"), shard.tokens.tolist(), shard.offsets.tolist()
        mask = [bool(data[k // 8] >> (k % 8) & 1) for k in range(entry.tokens)]
        found += [(tokens[a:b], mask[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    return found


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
    expected, found = Counter(), Counter()
    for ids, mask in conversations_of(chat_set):
        kept = (
            len(ids)
            if len(ids) <= seq_len + 1
            else (seq_len + 1 if long_documents == "crop" else 0)
        )
        expected.update(id for id, learned in zip(ids[:kept], mask[:kept], strict=True) if learned)
    settings = {"epochs": 1, "drop_last": False, "long_documents": long_documents}
    loader = RowLoader(chat_set, batch_size=3, seq_len=seq_len, **settings)
    for inputs, targets in loader:
        found.update(some := in_loss(inputs, targets))
        assert loader.targets == len(some)
    assert found == expected


def test_a_row_is_whole_conversations_with_their_masks_and_then_padding(chat_set):
    """Row by row, against a slow reading of the columns."""
    masks, seen = {tuple(ids): mask for ids, mask in conversations_of(chat_set)}, Counter()
    with RowLoader(chat_set, batch_size=4, seq_len=299, epochs=1, drop_last=False) as loader:
        for row, wanted in (
            (one, other) for batch in loader for one, other in zip(*batch, strict=True)
        ):
            starts = [*np.flatnonzero(row == BOS), len(row)]
            assert starts[0] == 0
            for first, last in zip(starts[:-1], starts[1:], strict=True):
                ids, found = tuple(row[first:last].tolist()), wanted[first:last].tolist()
                whole = [one for one in masks if one[:-1] == ids] if last == len(row) else [ids]
                if whole:  # else it is padding, which comes last
                    mask = masks[whole[0]]
                    learned = [
                        id if own else IGNORED for id, own in zip(whole[0], mask, strict=True)
                    ]
                    assert found == [*learned[1:], IGNORED][: len(found)], (
                        "BOS of what follows is not in the loss"
                    )
                    seen[whole[0]] += 1
                elif ids not in masks:
                    assert set(found) == {IGNORED}
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
    shown = [
        row
        for step in range(len(dealt))
        for row in RunRows.of_position(loader.state_dict(), {"": TokenSet(folder)}).step(step)
    ]
    pieces = [piece for row in shown for piece in row.pieces if not piece.is_padding]
    assert sorted(piece.document for piece in pieces) == [
        n for n, place in enumerate(first) if place < 9
    ]
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
    token_set, expected = TokenSet(text_set), Counter()
    for entry in token_set.split("train"):
        tokens = token_set.open(entry).tokens
        expected.update(tokens[tokens != BOS].tolist())
    for seq_len in (7, 64, 500):
        found = Counter()
        loader = RowLoader(
            text_set, batch_size=2, seq_len=seq_len, loss="once", epochs=1, drop_last=False
        )
        for inputs, targets in loader:
            found.update(some := in_loss(inputs, targets))
            assert loader.targets == len(some)
        assert found == expected


# ---------------------------------------------------------------------------- what is refused
