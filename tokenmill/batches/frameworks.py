"""What a framework does around a dataset that makes its own batches and knows its rank, told by the frames that call.

    DataLoader(PackedRows(batch_size=2), batch_size=8)         batches of batches
    accelerator.prepare(DataLoader(PackedRows(...)))           of several ranks: rank 0's rows dealt to all, or halved
    trainer.fit(model, DataLoader(PackedRows(...)))            Lightning's checkpoint has no position of a DataLoader

None of them asks the dataset, and all end with exit status 0. The first two are refused, the last is warned of.
"""

import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

FITS = ("loops.fit_loop", "loops.training_epoch_loop")  # Lightning's, which comes under two names
EVALUATES = "loops.evaluation_loop"


def _frames() -> Iterator[FrameType]:
    """Those that called, the innermost first; of a worker that was forked, its parent's too."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _self(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def require_no_batches_of(batch_size: int) -> None:
    """ValueError where a DataLoader would make batches of what are batches already."""
    if any(getattr(_self(f), "auto_collation", False) for f in _frames() if _module(f).endswith("_utils.fetch")):
        raise ValueError(
            f"PackedRows(batch_size={batch_size}) makes batches itself, and this DataLoader would make batches of "
            "these: write DataLoader(..., batch_size=None), or leave out PackedRows' batch_size"
        )


def require_undivided(world_size: int) -> None:
    """ValueError where Accelerate would deal a rank's own rows among the ranks once more."""
    dividing = {"DataLoaderDispatcher", "IterableDatasetShard"}
    found = [type(_self(f)).__name__ for f in _frames() if _module(f) == "accelerate.data_loader"]
    if world_size > 1 and dividing & set(found):
        raise ValueError(
            f"accelerator.prepare would deal this rank's rows among all {world_size} ranks, and PackedRows gives each "
            "rank its own already, so that the others' rows would be lost: leave the DataLoader out of prepare (in a "
            "Trainer return it from get_train_dataloader)"
        )


def warn_of_lost_position() -> None:
    """Warns where Lightning trains over a plain DataLoader, which has no position to save or to go to."""
    names = [_module(frame) for frame in _frames()]
    loops = [name for name in names if "lightning" in name and name.endswith((*FITS, EVALUATES))]
    stateful = any(name.startswith("torchdata.stateful_dataloader") for name in names)
    if loops and not loops[0].endswith(EVALUATES) and not stateful:
        warnings.warn(
            "Lightning's checkpoints do not say where a DataLoader stands, so that a run which is resumed begins with "
            "row 0 again: give it a RowLoader(..., epochs=1), or torchdata's StatefulDataLoader over "
            "PackedRows(..., epochs=1) (docs/clients.md)",
            stacklevel=3,
        )
