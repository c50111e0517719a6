"""A loader that is let go is gone at once, without the garbage collector, and keeps nothing of its caller alive.

Programs that train large models disable the collector (nanochat, lingua, modded-nanogpt). A reference cycle through a
caller's frame would then keep every evaluation's tensors.
"""

import gc
import weakref
from itertools import islice

import pytest
from reference import SEQ_LEN, make_loader
from torch.utils.data import DataLoader

from tokenmill import Mixture, PackedRows, get_batch


class Large:
    """What an evaluation has beside the loader, such as logits."""


@pytest.fixture
def collector_off():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def by_iter(token_set, held):
    loader, large = make_loader(token_set, split="val", epochs=1), Large()
    held += [weakref.ref(loader), weakref.ref(large)]
    for _ in loader:
        pass


def by_break(token_set, held):
    loader, large = make_loader(token_set), Large()
    held += [weakref.ref(loader), weakref.ref(large)]
    for _ in loader:
        break


def by_next(token_set, held):
    loader, large = make_loader(token_set), Large()
    held += [weakref.ref(loader), weakref.ref(large)]
    for _ in range(3):
        next(loader)
    loader.state_dict()


def by_with_state(token_set, held):
    loader, large = make_loader(token_set), Large()
    held += [weakref.ref(loader), weakref.ref(large)]
    list(islice(loader.with_state(), 3))


def by_mixture(token_set, held):
    loader, large = make_loader(Mixture({"web": 1}, sources={"web": token_set})), Large()
    held += [weakref.ref(loader), weakref.ref(large)]
    next(loader)


def by_get_batch(token_set, held):
    large = Large()
    held += [weakref.ref(large)]
    get_batch("val", 2, SEQ_LEN, tokens=token_set)


def by_packed_rows(token_set, held):
    rows, large = PackedRows(token_set, batch_size=2, seq_len=SEQ_LEN), Large()
    loader = iter(rows)
    held += [weakref.ref(rows), weakref.ref(loader), weakref.ref(large)]
    next(loader)


def by_dataloader(token_set, held):
    rows, large = PackedRows(token_set, batch_size=2, seq_len=SEQ_LEN), Large()
    held += [weakref.ref(rows), weakref.ref(large)]
    next(iter(DataLoader(rows, batch_size=None)))


def by_raising(token_set, held):
    loader, large = make_loader(token_set), Large()
    held += [weakref.ref(loader), weakref.ref(large)]
    for number, _ in enumerate(loader):
        if number == 2:
            raise RuntimeError("as an evaluation that runs out of memory")


WAYS = [value for name, value in sorted(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("evaluate", WAYS, ids=[way.__name__ for way in WAYS])
def test_nothing_of_an_evaluation_is_alive_after_it(token_set, collector_off, evaluate):
    held = []
    for _ in range(20):
        try:
            evaluate(token_set, held)
        except RuntimeError:
            assert evaluate is by_raising
    assert len(held) >= 20
    assert not [reference for reference in held if reference() is not None]
