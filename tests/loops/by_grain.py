"""Grain's pipelines: python by_grain.py GLUE 1 FOLDER, where a token set is. Resume from Grain's own state."""

import sys
from pathlib import Path

import grain
import numpy as np
from absl import flags
from record import Record, say, tell

flags.FLAGS.mark_as_parsed()  # as absl.app.run does; Grain's worker processes want it
GLUE = {"__name__": "__main__"}  # so that they are sent the classes
exec(Path(sys.argv[1]).read_text(), GLUE)


def in_a_process(dataset, workers=1):
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=3))


def in_a_thread(dataset):
    return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=4)


PIPELINES = {
    "plain": lambda rows: rows,
    "map": lambda rows: rows.map(lambda batch: batch | {"inputs": batch["inputs"] + 0}),
    "a thread": in_a_thread,
    "a process": in_a_process,
    "a process and a thread": lambda rows: in_a_thread(in_a_process(rows)),
}


def take(iterator, record, count):
    for _ in range(count):
        record.add(next(iterator)["inputs"])


def rows():
    return GLUE["Rows"](batch_size=2, seq_len=64)


if __name__ == "__main__":
    for name, pipeline in PIPELINES.items():
        unbroken, resumed, iterator = Record(), Record(), iter(pipeline(rows()))
        take(iterator, unbroken, 5)
        state = iterator.get_state()
        take(iterator, unbroken, 7)
        again = iter(pipeline(rows()))
        again.set_state(state)
        take(again, resumed, 7)
        tell(name, unbroken, resumed, 5, 2)
    try:
        next(iter(in_a_process(rows(), workers=2)))
        say("two processes are refused: False")
    except ValueError as error:
        say(f"two processes are refused: {'Cannot slice' in str(error)}")
    assert all(array.dtype == np.int32 for array in next(iter(rows())).values())
