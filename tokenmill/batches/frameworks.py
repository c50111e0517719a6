"""What a framework does around a dataset that makes its own batches and knows its rank, told by the frames that call.

    DataLoader(PackedRows(batch_size=2), batch_size=8)         batches of batches
    accelerator.prepare(DataLoader(PackedRows(...)))           of several ranks: rank 0's rows dealt to all, or halved
    trainer.fit(model, DataLoader(PackedRows(...)))            Lightning's checkpoint has no position of a DataLoader

    trainer.fit(model, RowLoader(...))                         and one that is a batch ahead of what is endless
    trainer.fit(model, RowLoader(..., epochs=1))               epochs as long as the first one
    Trainer(ignore_data_skip=True) of Hugging Face, resumed    row 0 again

None of them asks, and all end with exit status 0. The first two are refused, the others are warned of.
"""

from types import FrameType
from typing import Any

from tokenmill.batches.callers import frames, warn

FITS = ("loops.fit_loop", "loops.training_epoch_loop")  # Lightning's, which comes under two names
EVALUATES = "loops.evaluation_loop"
COMBINES = "utilities.combined_loader"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _self(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def require_no_batches_of(batch_size: int) -> None:
    """ValueError where a DataLoader would make batches of what are batches already."""
    if any(getattr(_self(f), "auto_collation", False) for f in frames() if _module(f).endswith("_utils.fetch")):
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


def warn_of_lost_position(epochs: int | None, broken_off: bool = False) -> None:
    """Warns where Lightning's checkpoints will have no position, or one that is a batch ahead, and of Trainer's.

    `broken_off` where the iteration before this one was not gone through.
    """
    _warn_of_trainer()
    called = [(frame, _module(frame)) for frame in frames()]
    names = [name for _, name in called]
    combined = [frame for frame, name in called if name.endswith(COMBINES)]
    loops = [name for name in names if "lightning" in name and name.endswith((*FITS, EVALUATES))]
    if not (combined and loops) or loops[0].endswith(EVALUATES):
        return
    in_dataloader = any(name.startswith("torch.utils.data") for name in names)
    if in_dataloader and not any(name.startswith("torchdata.stateful_dataloader") for name in names):
        warn(
            "Lightning's checkpoints do not say where a DataLoader stands, so that a run which is resumed begins with "
            "row 0 again: give it a RowLoader, and the Trainer limit_train_batches=N (docs/clients.md)"
        )
    elif epochs is None and not any(map(_has_limit, combined)):
        warn(
            "Lightning fetches a batch ahead of what has no len, so that a run which is resumed misses a batch of each "
            "rank: give the Trainer limit_train_batches=N, as long as its epochs may be (docs/clients.md)"
        )
    elif broken_off:
        warn(
            "Lightning gives every epoch as many batches as the first one had, and the last one had more, which were "
            "left out: give no epochs, and the Trainer limit_train_batches=N (docs/clients.md)"
        )


def _warn_of_trainer() -> None:
    """Of Hugging Face's, which resumes by reading batches again unless it is told not to."""
    for frame in frames():
        trainer = _self(frame) if _module(frame) == "transformers.trainer" else None
        skips = getattr(getattr(trainer, "args", None), "ignore_data_skip", False)
        if skips and getattr(getattr(trainer, "state", None), "global_step", 0) > 0:
            warn(
                "with ignore_data_skip=True this Trainer, which is resumed, begins with row 0 again: leave it out, or "
                "save the loader's position too (docs/clients.md)"
            )
            return


def _has_limit(frame: FrameType) -> bool:
    """Whether Lightning ends its epochs itself, after so many batches."""
    limits = getattr(_self(frame), "limits", None) or []
    return any(limit is not None and limit != float("inf") for limit in limits)
