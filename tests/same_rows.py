"""Whether this tree deals the rows that another commit dealt, and goes on from its positions.

    python tests/same_rows.py --commit 41c3cfa --cases 200 --seed 0

Each case is a loader of random settings over random token sets: a set or a mixture, some ranks, some calls; then its
position goes to a loader of other settings, which deals some more. The other commit's code runs in a process of its
own, from an archive of it. Compared are all rows, and those that this tree deals from the other commit's positions.
"""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SETS = ("web", "code", "math")
GRAINS = [(16, 64), (16, 128), (1 << 20, 1 << 28)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--commit", default="41c3cfa")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deal", nargs=2, metavar=("CASES", "OUT"), help="what the other process does")
    given = parser.parse_args()
    if given.deal:
        deal_all(Path(given.deal[0]), Path(given.deal[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), given.commit, given.cases, given.seed)


def compare(folder: Path, commit: str, count: int, seed: int) -> None:
    from making import make_token_set

    rng = random.Random(seed)
    for number, name in enumerate(SETS):
        train = [[rng.randint(1, 60) for _ in range(rng.randint(3, 25))] + [40] for _ in range(rng.randint(1, 4))]
        make_token_set(folder / "sets" / name, train=train, val=[[20] * 8], seed=number)
    cases = [random_case(rng, folder / "sets") for _ in range(count)]
    (folder / "cases.json").write_text(json.dumps(cases))
    data = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder / "other", filter="data")
    theirs = run(folder / "other", folder / "cases.json", folder / "theirs")
    for case, (_, state, _) in zip(cases, theirs, strict=True):
        case["state"] = state
    ours = run(ROOT, folder / "cases.json", folder / "ours")
    (folder / "cases.json").write_text(json.dumps(cases))
    resumed = run(ROOT, folder / "cases.json", folder / "resumed")
    rows = wrong = refused = 0
    for case, their, our, again in zip(cases, theirs, ours, resumed, strict=True):
        same = same_rows(their[0], our[0]) and same_rows(their[2], our[2]) and same_rows(their[2], again[2])
        rows += sum(len(part) for part in their[0] + their[2] if not isinstance(part, str))
        refused += any(isinstance(part, str) for part in their[0] + their[2])
        if not same:
            wrong += 1
            print(json.dumps(case | {"state": None}), *(summary(one) for one in (their, our, again)), sep="\n  ")
    print(f"{count} cases, {rows:,} rows, {refused} cases with an error that both say; {wrong} differ")
    sys.exit(bool(wrong))


def same_rows(ones: list, others: list) -> bool:
    return len(ones) == len(others) and all(
        one == other if isinstance(one, str) or isinstance(other, str) else np.array_equal(one, other)
        for one, other in zip(ones, others, strict=True)
    )


def summary(dealt: tuple) -> str:
    return str([part if isinstance(part, str) else part.shape for part in dealt[0] + dealt[2]])


def random_case(rng: random.Random, sets: Path) -> dict:
    settings: dict = {
        "batch_size": rng.randint(1, 5),
        "seq_len": rng.choice([5, 8, 16, 33]),
        "packing": rng.choice(["best_fit", "best_fit", "concat", "random", "nanochat"]),
        "long_documents": rng.choice(["split", "split", "crop"]),
        "shuffle": rng.random() < 0.8,
        "seed": rng.choice([1337, 7]),
        "split": rng.choice(["train", "train", "train", "val"]),
        "prefetch": rng.choice([0, 2]),
    }
    mixed = settings["packing"] != "nanochat" and rng.random() < 0.5
    case: dict = {"settings": settings, "world_size": rng.choice([1, 1, 2, 3]), "grain": rng.choice(GRAINS)}
    if mixed:
        names = rng.sample(SETS, rng.randint(1, 3))
        weights = {str(sets / name): rng.randint(1, 9) for name in names}
        stages: list = [[0, weights]]
        if settings["split"] == "train" and rng.random() < 0.5:
            stages.append([rng.randint(1, 60) * settings["seq_len"], {path: rng.randint(1, 9) for path in weights}])
        caps = {path: rng.choice([0.5, 1, 1.5, 3]) for path in weights if rng.random() < 0.3}
        on_cap = rng.choice(["error", "retire", "spread"])
        case["mixture"] = {"weights": stages, "max_epochs": caps, "on_cap": on_cap, "tokens": 5_000}
    else:
        case["tokens"] = str(sets / rng.choice(SETS))
        if settings["packing"] != "nanochat" and rng.random() < 0.5:
            settings |= {"epochs": rng.choice([1, 2]), "drop_last": rng.random() < 0.5}
        if settings["packing"] != "nanochat" and rng.random() < 0.3:
            settings["skip_rows"] = [f"0:0:{first}-{first + rng.randint(0, 2)}" for first in (0, 4)]
    case["calls"], case["more"] = rng.choice([0, 1, 3, 10, 40]), rng.choice([1, 5, 30])
    case["change"] = {"batch_size": rng.randint(1, 5)}
    if settings["packing"] != "nanochat" and rng.random() < 0.4:
        case["change"]["seq_len"] = rng.choice([5, 8, 16, 33])
    case["ranks_after"] = case["world_size"] if settings["packing"] == "nanochat" else rng.choice([1, 2])
    return case


def run(tree: Path, cases: Path, out: Path) -> list[tuple]:
    """(rows of each rank, state, rows of each rank after it) of each case."""
    out.mkdir()
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--deal", str(cases), str(out)]
    subprocess.run(command, cwd=out, env=environment, check=True)
    found = []
    for number in range(len(json.loads(cases.read_text()))):
        said = json.loads((out / f"{number}.json").read_text())
        with np.load(out / f"{number}.npz") as arrays:
            parts = [
                [part if isinstance(part, str) else arrays[f"{k}_{i}"] for i, part in enumerate(said[k])] for k in "ab"
            ]
        found.append((parts[0], said["state"], parts[1]))
    return found


# ---------------------------------------------------------------------------- in either tree


def deal_all(cases: Path, out: Path) -> None:
    for number, case in enumerate(json.loads(cases.read_text())):
        set_window(*case["grain"])
        before, state = deal(case, case["settings"], case["world_size"], None, case["calls"])
        state = case.get("state") or state
        after: list = []
        if state is not None:
            after, _ = deal(case, case["settings"] | case["change"], case["ranks_after"], state, case["more"])
        named = {"a": before, "b": after}
        arrays = {
            f"{k}_{i}": one for k, many in named.items() for i, one in enumerate(many) if not isinstance(one, str)
        }
        np.savez(out / f"{number}.npz", **arrays)
        said = {k: [one if isinstance(one, str) else None for one in many] for k, many in named.items()}
        (out / f"{number}.json").write_text(json.dumps(said | {"state": state}))


def set_window(size: int, window: int) -> None:
    try:
        from tokenmill.feed import window_plans
        from tokenmill.rows.windows import WindowSize

        window_plans.DEFAULT_WINDOW_SIZE = WindowSize(size, window)
    except ImportError:
        from tokenmill.batches import plans  # type: ignore[attr-defined]  # of 41c3cfa
        from tokenmill.rows.windows import Grain  # type: ignore[attr-defined]

        plans.GRAIN = Grain(size, window)


def deal(case: dict, settings: dict, world_size: int, state: dict | None, calls: int) -> tuple[list, dict | None]:
    """The rows of each rank, an error's kind last, and the state after them of the first."""
    from tokenmill import Mixture, RowLoader

    found: list = []
    states: list[dict | None] = []
    for rank in range(world_size):
        rows: list[np.ndarray] = []
        try:
            tokens = case.get("tokens") or Mixture(**case["mixture"])
            if state is not None:
                settings = {key: value for key, value in settings.items() if key != "skip_rows"}
            with RowLoader(tokens, rank=rank, world_size=world_size, **settings) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for _ in range(calls):
                    inputs, targets = next(loader)
                    rows.append(np.concatenate([inputs.numpy(), targets[:, -1:].numpy()], axis=1))
                states.append(loader.state_dict())
        except (ValueError, StopIteration) as error:
            found.append(type(error).__name__)
            if isinstance(error, StopIteration):
                states.append(loader.state_dict())
        found += [np.concatenate(rows)] if rows else []
    return found, states[0] if states else None


if __name__ == "__main__":
    main()
