"""Random histories of a set at an address whose server has every fault: `make torture`.

A history is a few operations, each with other faults of the server: reading rows, show, pull, push, preparing into a
bucket, with kills, evictions and files of the cache that vanish. Each operation gives what it gives without faults, or
an error in words. At its end, the faults end, and then all of them must succeed: nothing wrong was kept, nothing is
stuck.
"""

import contextlib
import ctypes
import io
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import warm
from elsewhere import MIB, SMALL, WINDOW, lengths
from faulty_server import READING, WRITING, FaultyServer
from making import (
    ROOT,
    give_small_files,
    give_tokenizer,
    make_text,
    make_token_set,
    run_prepare,
    tree,
    wait_until,
    write_parquet,
)

from tokenmill import RowLoader, cli
from tokenmill.remote import backends, caches, fetcher, http_backend, retry
from tokenmill.rows import windows
from tokenmill.tokenize.tokenizer import Tokenizer, train_tokenizer

REAL = ("shards", "manifest", "tokenizer", "token_bytes")  # of what a push sends
ERRORS = (OSError, ValueError)
PATCHES = [
    (retry, "PATIENCE_SECONDS", 2.0),
    (retry, "FIRST_PAUSE", 0.01),
    (retry, "LONGEST_PAUSE", 0.1),
    (retry, "WARN_SECONDS", 60.0),
    (http_backend, "SILENCE_SECONDS", 0.2),
    (http_backend, "RANGE_SECONDS", 0.6),
    (fetcher, "WAIT_SECONDS", 20.0),
    (windows, "DEFAULT_WINDOW_SIZE", SMALL),
]
PREAMBLE = (
    f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
    "import histories, itertools\nhistories.be_impatient()\n"
)


def be_impatient() -> None:
    """As the tests of single faults are, so that a stall ends in a second."""
    for module, name, value in PATCHES:
        setattr(module, name, value)


class World:
    """What is the same for all histories: a set of 8 MB, a corpus, and what comes of them without faults."""

    def __init__(self, folder: Path, tokenizer: Path):
        self.folder, self.tokenizer = folder, tokenizer
        for number in range(2):
            write_parquet(folder / "corpus" / f"{number}.parquet", make_text(documents=60, seed=number))
        self.flags = ["--source", str(folder / "corpus"), "--tokenizer", str(tokenizer), "--workers", "1"]
        self.flags += ["--shard-text-bytes", "20000", "--name", "text"]
        done = run_prepare(*self.flags, "--tokens-root", folder / "tokens", cwd=folder)
        self.text = folder / done.stdout.splitlines()[-1]
        train = [lengths(size, seed) for seed, size in enumerate((1_800_000, 200_000, 1_500_000))]
        self.set = make_token_set(folder / "web", train=train, val=[[50] * 40], vocab=400)
        give_tokenizer(self.set, Tokenizer.load(tokenizer))
        shutil.rmtree(self.set / "manifests")  # of another tokenizer
        (self.set / "manifests").mkdir()
        give_small_files(self.set, self.text)
        self._rows: dict[tuple, list[torch.Tensor]] = {}

    def rows(self, packing: str, seed: int) -> list[torch.Tensor]:
        """The local set's batches."""
        key = (packing, seed)
        if key not in self._rows:
            self._rows[key] = read_rows(self.set, packing, seed)
        return self._rows[key]


def read_rows(tokens, packing: str, seed: int, count: int = 60, **more) -> list[torch.Tensor]:
    settings = {"batch_size": 8, "seq_len": 512, "packing": packing, "seed": seed} | more
    with RowLoader(tokens, **settings) as loader:
        return [inputs.clone() for inputs, _ in itertools.islice(loader, count)]


class History:
    """One history. `trail` says what was done, for the message of an error."""

    def __init__(self, world: World, folder: Path, seed: int):
        self.world, self.folder, self.rng = world, folder, random.Random(seed)
        self.server = FaultyServer(random.Random(seed + 1))
        self.cache, self.trail, self.counts = folder / "cache", list[str](), Counter()
        self.put("web", world.set)

    def put(self, name: str, folder: Path) -> None:
        self.server.files |= {f"b/{name}/{path}": data for path, data in tree(folder).items() if path.startswith(REAL)}

    def address(self, name: str = "web") -> str:
        return self.rng.choice([f"s3://b/{name}", f"{self.server.url}/b/{name}"])

    def run(self, operations: int) -> None:
        os.environ.update(self.server.environment(), TOKENMILL_CACHE=str(self.cache))
        backends._backends.clear()  # of the history before, whose server is gone
        doings = [self.read, self.read, self.read_and_kill, self.show, self.pull, self.pull_and_kill, self.push]
        doings += [self.prepare, self.harm_the_cache, self.evict]
        with self.server:
            for _ in range(operations):
                names = self.rng.sample([*READING, *WRITING], self.rng.randint(1, 4))
                self.server.faults = {name: self.rng.choice([0.02, 0.1, 0.4]) for name in names}
                doing = self.rng.choice(doings)
                self.trail.append(f"{doing.__name__} {self.server.faults}")
                self.attempt(doing)
            self.server.end_faults()
            # whoever waits for what is being fetched shares its error: let those end that began with faults
            ours = [cache for cache in caches._caches.values() if cache.folder.is_relative_to(self.cache)]
            wait_until(lambda: not any(cache.claims._taken for cache in ours))
            retry.PATIENCE_SECONDS = 60.0  # as the machine may be busy
            self.trail.append("without faults")
            for doing in (self.read, self.show, self.pull, self.push, self.prepare):
                doing()
            self.counts.update(self.server.counts)

    def attempt(self, doing: Callable[[], None]) -> None:
        try:
            doing()
            self.counts[f"{doing.__name__} done"] += 1
        except ERRORS as error:
            if not str(error):
                raise AssertionError("an error without words") from error
            self.counts[f"{doing.__name__} refused"] += 1

    # ------------------------------------------------------------------------ operations

    def read(self, more: int | None = None) -> None:
        packing, seed = self.rng.choice(["best_fit", "concat", "random"]), self.rng.randrange(3)
        found = read_rows(self.address(), packing, seed, cache_dir=self.cache, cache_bytes=more or 100 * MIB)
        expected = self.world.rows(packing, seed)
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected)), (packing, seed)

    def evict(self) -> None:
        self.read(2 * WINDOW // 3 * 2)

    def read_and_kill(self) -> None:
        code = f"{PREAMBLE}histories.read_rows({self.address()!r}, 'best_fit', 0, cache_dir={str(self.cache)!r})"
        self.kill(warm.Command("-c", code))

    def show(self) -> None:
        row = str(self.rng.randrange(40))
        here = self.told(["show", str(self.world.set), "--row", row, "--seq-len", "512"])
        there = self.told(["show", self.address(), "--row", row, "--seq-len", "512"])
        assert there[1:] == here[1:], "but for the first line, which names the set"

    def told(self, words: list[str]) -> list[str]:
        """What a command prints. OSError with its error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(words)
        if status:
            assert err.getvalue().startswith("error: "), err.getvalue()
            assert "Traceback" not in err.getvalue()
            raise OSError(err.getvalue())
        return out.getvalue().splitlines()

    def pull(self) -> None:
        folder = self.folder / "pulled"
        self.told(["pull", self.address(), str(folder)])
        expected = {path: data for path, data in tree(self.world.set).items() if path.startswith(REAL)}
        found = tree(folder)
        assert found == expected, {
            name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
        }
        if self.rng.random() < 0.5:
            shutil.rmtree(folder)

    def pull_and_kill(self) -> None:
        words = ["pull", self.address(), str(self.folder / "pulled")]
        self.kill(warm.Command("-c", f"{PREAMBLE}from tokenmill import cli; sys.exit(cli.main({words!r}))"))

    def push(self) -> None:
        name = f"pushed{self.rng.randrange(2)}"
        self.told(["push", str(self.world.set), f"s3://b/{name}"])
        for path, data in tree(self.world.set).items():
            if path.startswith(REAL):
                assert self.server.files[f"b/{name}/{path}"] == data, path

    def prepare(self) -> None:
        words = ["prepare", *self.world.flags, "--tokens-root", "s3://b/prepared"]
        code = f"{PREAMBLE}from tokenmill import cli; sys.exit(cli.main({words!r}))"
        command = warm.Command("-c", code, cwd=self.folder, to_the_end=True)
        if self.server.faults and self.rng.random() < 0.4:
            return self.kill(command)
        done = command.done(120)
        if done.returncode:
            raise OSError(done.stderr)
        expected = {path: data for path, data in tree(self.world.text).items() if path.startswith(REAL)}
        for path, data in expected.items():
            assert self.server.files[f"b/prepared/{self.world.text.name}/{path}"] == data, path
        return None

    def kill(self, command: warm.Command) -> None:
        time.sleep(self.rng.uniform(0.0, 1.2))
        command.kill()

    def harm_the_cache(self) -> None:
        """As tmpwatch, an impatient user, or another process without locks does."""
        files = [path for path in self.cache.rglob("*") if path.is_file()]
        if not files:
            return
        path = self.rng.choice(files)
        way = self.rng.choice(["delete", "delete the folder", "punch"])
        if way == "delete":
            path.unlink()
        elif way == "delete the folder":
            shutil.rmtree(path.parent)
        elif path.suffix == ".bin":
            with open(path, "r+b") as file:
                ctypes.CDLL(None).fallocate(file.fileno(), 3, ctypes.c_int64(0), ctypes.c_int64(MIB))


def torture(world: World, histories: int, seed: int, operations: int = 6, say=lambda text: None) -> Counter:
    """Runs histories; what was done in all of them. AssertionError, with the seed, if one is wrong."""
    counts = Counter()
    for number in range(histories):
        be_impatient()
        with tempfile.TemporaryDirectory() as name:
            history = History(world, Path(name), seed + number)
            try:
                history.run(operations)
            except BaseException as error:
                raise AssertionError(f"history {seed + number}: {history.trail}") from error
            counts += history.counts
        counts["histories"] += 1
        say(f"{number + 1} histories")
    return counts


def main(histories: int, seed: int) -> None:
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "bpe400.json"
        train_tokenizer(make_text(documents=200, seed=0), 400, "bpe400").save(path)
        counts = torture(World(Path(name), path), histories, seed, say=lambda text: print(text, flush=True))
        for what, count in sorted(counts.items()):
            print(f"{count:8,} {what}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32))
