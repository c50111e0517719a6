"""A RowLoader on a device with streams, its thread and all, returns the batches of the CPU, whatever happens to it.

The device is simulated_device.py. test_stream_transfer.py has the histories without a thread, which can be repeated
exactly; here threads run as they like.
"""

import random

import pytest
from making import make_token_set
from reference import make_loader
from simulated_device import OutOfMemory, SimulatedDevice, Simulation, Stream

from tokenmill.batches import torch_transfer

BATCHES = 40


@pytest.fixture(scope="module")
def wide_set(tmp_path_factory):
    """Its ids go past 32,767, where a signed number would be negative."""
    return make_token_set(tmp_path_factory.mktemp("wide") / "set", [[100] * 50, [7] * 300], [[50]], vocab=40_000)


@pytest.fixture(scope="module")
def expected(wide_set):
    """The batches of the CPU, and the position before each."""
    loader, batches, states = make_loader(wide_set, documents=True), [], []
    for _ in range(BATCHES + 1):
        states.append(loader.state_dict())
        batches.append(next(loader))
    return batches, states


class Use:
    """A loader on a simulated device, and a caller that does with its batches what callers do."""

    def __init__(self, wide_set, expected, seed, monkeypatch):
        self.path, self.monkeypatch, self.random = wide_set, monkeypatch, random.Random(seed)
        self.batches, self.states = expected
        self.simulation = Simulation(seed)
        self.device = SimulatedDevice(self.simulation)
        monkeypatch.setattr(torch_transfer, "find_accelerator", lambda _: self.device.accelerator)
        self.streams = [self.device.default, Stream(self.device)]
        self.settings = {"device": "meta", "documents": True, "prefetch": self.random.choice([0, 1, 2, 4])}
        self.loaders = [[make_loader(wide_set, **self.settings), 0] for _ in range(2)]  # each and its next batch
        self.held, self.sums = [], []

    def run(self, steps):
        for _ in range(steps):
            self.random.choice(
                [self.next, self.next, self.next, self.use, self.drop, self.move, self.renew, self.fail]
            )()
        self.use()
        self.held.clear()
        for loader, _ in self.loaders:
            loader.close()
        for total, stream, number in self.sums:
            with self.device.on(stream):
                assert int(total.cpu()) == total_of(self.batches[number])
        self.simulation.finish()
        return len(self.sums)

    def next(self):
        self.take(self.random.choice(self.loaders), self.random.choice(self.streams))

    def take(self, chosen, stream):
        loader, number = chosen
        if number == BATCHES:
            return
        with self.device.on(stream):
            try:
                batch = next(loader)
            except OutOfMemory:  # of this batch, or of one that was made ahead
                self.device.copies_until_error = None
                assert loader.state_dict() == self.states[number]
                batch = next(loader)
            self.held.append((batch, stream, number))
        chosen[1] += 1
        assert loader.state_dict() == self.states[number + 1]

    def use(self):
        for batch, stream, number in self.held:
            with self.device.on(stream):
                self.sums.append((total_of(batch), stream, number))

    def drop(self):
        self.use()
        self.held.clear()

    def move(self):
        chosen = self.random.choice(self.loaders)
        chosen[1] = self.random.randrange(BATCHES)
        chosen[0].load_state_dict(self.states[chosen[1]])

    def renew(self):
        """Closes a loader while its thread runs, and makes another in its place."""
        chosen = self.random.choice(self.loaders)
        chosen[0].close()
        chosen[0] = make_loader(self.path, **self.settings)
        chosen[0].load_state_dict(self.states[chosen[1]])

    def fail(self):
        """A copy fails in a loader's thread, which `next` raises; the next call goes on."""
        self.device.copies_until_error = self.random.randrange(3)


def total_of(batch):
    inputs, targets, ids = batch
    return (inputs * 3 + targets * 5 + ids).sum()


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_those_of_the_cpu_whatever_happens_to_the_loader(wide_set, expected, seed, monkeypatch):
    assert Use(wide_set, expected, seed, monkeypatch).run(60)


@pytest.mark.slow
def test_more_loaders_and_callers(wide_set, expected, monkeypatch):
    assert sum(Use(wide_set, expected, seed, monkeypatch).run(60) for seed in range(100, 250)) > 1_500
