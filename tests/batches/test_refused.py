"""Settings that make no sense are refused when the loader is made, in words that say what to do."""

import numpy as np
import pytest
import torch
from making import make_chat_set, make_token_set
from reference import SEQ_LEN, make_loader

from tokenmill import Mixture, PackedRows, RowLoader
from tokenmill.batches.torch_arrays import find_device


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"batch_size": wrong}, "batch_size must be a whole number")
            for wrong in (0, 2.0, "2", True, None)
        ),
        *(
            ({"seed": wrong}, "seed must be a whole number, not")
            for wrong in (1337.0, np.float64(1337), "1337")
        ),
        *(
            ({"shuffle": wrong}, "shuffle must be True or False, not")
            for wrong in ("False", 1.0, np.array([1, 0]))
        ),
        ({"drop_last": "False"}, "drop_last must be True or False, not 'False'"),
        ({"seq_len": 0}, "seq_len must be a whole number of at least 1, not 0"),
        (
            {"packing": "worst_fit"},
            "packing must be one of best_fit, nanochat, concat, random, not 'worst_fit'",
        ),
        ({"long_documents": "cut"}, "long_documents must be one of"),
        (
            {"long_documents": "drop"},
            "long_documents='drop' is for conversations; with text use 'split' or 'crop'",
        ),
        ({"split": "test"}, "split must be one of train, val, not 'test'"),
        ({"loss": "twice"}, "loss must be one of all, once"),
        ({"loss": "once", "ignore_index": 5}, "ignore_index=5 is a token id of"),
        (
            {"loss": "once", "packing": "concat"},
            "loss='once' is not supported with packing='concat'",
        ),
        (
            {"long_documents": "crop", "packing": "random"},
            "long_documents='crop' is not supported with packing='random'",
        ),
        (
            {"long_documents": "crop", "loss": "skip_cuts"},
            "loss='skip_cuts' is for what comes after an inserted BOS, and",
        ),
        ({"rank": 2, "world_size": 2}, "pass both, rank from 0 to world_size - 1, or none"),
        ({"rank": 1}, "rank=1, world_size=None"),
        (
            {"batch_size": 1000, "epochs": 1},
            "has 22 rows .*fewer than .* batch of 1000 .* pass drop_last=False",
        ),
        (
            {"seq_len": 111, "packing": "concat"},
            "shard train_1.000.* fewer .*than a row.* 60; use packing='best_fit'",
        ),
        ({"packing": "nanochat", "epochs": 1}, "epochs is not supported with packing='nanochat'"),
        ({"packing": "nanochat", "shuffle": False}, "shuffle=False is not supported with"),
        ({"prefetch": -1}, "prefetch must be a whole number of at least 0, not -1"),
        ({"prefetch": 10**9}, "prefetch must be at most 1,000, not 1000000000"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, not 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(token_set, settings, message):
    with pytest.raises(ValueError, match=message):
        RowLoader(token_set, **({"batch_size": 2, "seq_len": SEQ_LEN} | settings))
    if settings.get("batch_size", 2) is not None and settings.get("batch_size") != 1000:
        with pytest.raises(ValueError, match=message):
            next(iter(PackedRows(token_set, **({"batch_size": 2, "seq_len": SEQ_LEN} | settings))))


def test_what_is_no_token_set_is_refused(token_set, tmp_path):
    with pytest.raises(ValueError, match="token set's folder"):
        RowLoader("", batch_size=2, seq_len=SEQ_LEN)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        RowLoader(tmp_path / "nowhere", batch_size=2, seq_len=SEQ_LEN)
    mixture = Mixture({str(token_set): 1})
    for settings, message in (
        ({"epochs": 1}, "epochs is for one token set"),
        ({"view": "good"}, "view='good' is for one token set"),
        (
            {"packing": "nanochat"},
            "a mixture, view or epochs is not supported with packing='nanochat'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            RowLoader(mixture, batch_size=2, seq_len=SEQ_LEN, **settings)


def test_what_documents_that_stay_whole_do_not_support_is_refused(tmp_path):
    chats = make_chat_set(tmp_path / "chats", train=[[30, 9] * 20], val=[[9]])
    with pytest.raises(
        ValueError, match="chats: packing 'concat' is not for chat sets; use 'best_fit'"
    ):
        make_loader(chats, packing="concat")
    with pytest.raises(ValueError, match="longer than"):
        make_loader(chats)
    for index in (0, 5, 999):
        with pytest.raises(ValueError, match=f"ignore_index={index} is a token id of .*chats"):
            make_loader(chats, long_documents="crop", ignore_index=index)
    make_loader(chats, long_documents="crop", ignore_index=1000)


def test_an_endless_loader_needs_no_more_than_a_row(token_set):
    """As a validation split of 1,024 ranks may have less than one batch of all."""
    for rank in (0, 1023):
        loader = make_loader(token_set, split="val", batch_size=1, rank=rank, world_size=1024)
        assert next(loader)[0].shape == (1, SEQ_LEN)
    assert loader.epoch > 200


def test_a_split_without_a_row_is_refused(tmp_path):
    folder = make_token_set(tmp_path / "set", train=[[9, 9]], val=[])
    with pytest.raises(ValueError, match="split 'val' has 0 rows of 16 . 1 tokens"):
        make_loader(folder, split="val")


@pytest.mark.parametrize("device", ["xpu", "mps", "cuda", "cuda:7"])
def test_a_device_that_this_machine_lacks_is_refused_when_the_loader_is_made(token_set, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ValueError, match=f"device '{device}'"):
        make_loader(token_set, device=device)


@pytest.mark.parametrize("device", [None, 1.5, "gpu"])
def test_what_is_no_device_is_refused_and_another_gets_its_index(token_set, device):
    assert [find_device("meta"), find_device("cpu:0")] == [
        torch.empty(0, device="meta").device,
        torch.device("cpu"),
    ]
    with pytest.raises(ValueError, match=f"device {device!r}"):
        make_loader(token_set, device=device)
