"""What a framework does around a dataset that makes its own batches and knows its rank, told by the frames that call.

    DataLoader(PackedRows(batch_size=2), batch_size=8)         batches of batches
    accelerator.prepare(DataLoader(PackedRows(...)))           of several ranks: rank 0's rows dealt to all, or halved
    trainer.fit(model, DataLoader(PackedRows(...)))            Lightning's checkpoint has no position of a DataLoader

    trainer.fit(model, RowLoader(...))                         and one that is a batch ahead of what is endless
    trainer.fit(model, RowLoader(..., epochs=1))               epochs as long as the first one
    Trainer(ignore_data_skip=True) of Hugging Face, resumed    row 0 again

None of them asks, and all end with exit status 0. The first two are refused, the others are warned of.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any

from tokenmill.batches.callers import frames, warn

RECIPE = "give it a RowLoader, and the Trainer limit_train_batches=N (docs/clients.md)"
FITS = ("loops.fit_loop", "loops.training_epoch_loop")  # Lightning's, which comes under two names
EVALUATES = "loops.evaluation_loop"
COMBINES = "utilities.combined_loader"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _self(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def require_no_batches_of(dataset: object, batch_size: int) -> None:
    """ValueError where a DataLoader would make batches of what are batches already."""
    fetchers = (_self(frame) for frame in frames() if _module(frame) == "torch.utils.data._utils.fetch")
    fetcher = next((found for found in fetchers if found is not None), None)  # the one that asks
    of = getattr(fetcher, "dataset", None)
    asks = of is dataset or dataset in getattr(of, "datasets", ())  # itself, or in a ChainDataset
    if asks and getattr(fetcher, "auto_collation", False):
        raise ValueError(
            f"PackedRows(batch_size={batch_size}) makes batches itself, and this DataLoader would make batches of "
            "these: write DataLoader(..., batch_size=None), or leave out PackedRows' batch_size"
        )


def require_undivided(world_size: int) -> None:
    """ValueError where Accelerate would deal a rank's own rows among the ranks once more."""
    dividing = {"DataLoaderDispatcher", "IterableDatasetShard"}
    found = [type(_self(f)).__name__ for f in frames() if _module(f) == "accelerate.data_loader"]
    if world_size > 1 and dividing & set(found):
        raise ValueError(
            f"accelerator.prepare would deal this rank's rows among all {world_size} ranks, and PackedRows gives each "
            "rank its own already, so that the others' rows would be lost: leave the DataLoader out of prepare (in a "
            "Trainer return it from get_train_dataloader)"
        )


def warn_of_lost_position(epochs: int | None, leaves_out_some: Callable[[], bool] = lambda: False) -> None:
    """Warns where Lightning trains and its checkpoints will have no position, or one that is a batch ahead.

    And where its epochs leave out rows, or begin with row 0 each. `leaves_out_some` tells whether the iteration that
    was left had another batch.
    """
    called = [(frame, _module(frame)) for frame in frames()]
    names = [name for _, name in called]
    loops = [frame for frame, name in called if "lightning" in name and name.endswith((*FITS, EVALUATES))]
    if not any(name.endswith(COMBINES) for name in names) or not loops or _module(loops[0]).endswith(EVALUATES):
        return
    in_dataloader = any(name.startswith("torch.utils.data") for name in names)
    is_stateful = any(name.startswith("torchdata.stateful_dataloader") for name in names)
    limited = getattr(getattr(_self(loops[0]), "trainer", None), "limit_train_batches", None) not in (None, 1.0)
    if in_dataloader and not is_stateful:
        warn(
            "Lightning's checkpoints do not say where a DataLoader stands, so that a run which is resumed begins with "
            f"row 0 again: {RECIPE}"
        )
    elif in_dataloader and limited:
        warn(f"each of Lightning's epochs, which limit_train_batches ends, begins with row 0 of this again: {RECIPE}")
    elif epochs is None and not limited:
        warn(
            "Lightning fetches a batch ahead of what has no len, so that a run which is resumed misses a batch of each "
            f"rank: {RECIPE}"
        )
    elif epochs is not None and not limited and leaves_out_some():
        warn(
            "Lightning gives every epoch as many batches as the first one had, and the last one had more, which were "
            f"left out: {RECIPE}, without epochs"
        )


def warn_of_skipped_data(split: str) -> None:
    """Warns where Hugging Face's Trainer was resumed, and is told not to read again what was trained on."""
    called = [(frame, _module(frame)) for frame in frames()]
    for frame, name in called:
        trainer = _self(frame) if name == "transformers.trainer" else None
        evaluates = any(f.f_code.co_name in ("evaluate", "evaluation_loop") for f, n in called if n == name)
        skips = getattr(getattr(trainer, "args", None), "ignore_data_skip", False)
        if skips and "resume_from_checkpoint" in frame.f_locals and split == "train" and not evaluates:
            if frame.f_locals["resume_from_checkpoint"]:
                warn(
                    "with ignore_data_skip=True this Trainer, which is resumed, begins with row 0 again: leave it out, "
                    "or save the loader's position too (docs/clients.md)"
                )
            return
