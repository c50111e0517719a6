"""The settings that every source of a run has in common."""

from typing import NamedTuple

from tokenmill.feed.table import Loss
from tokenmill.rows.packing import LongDocuments
from tokenmill.rows.plan import Packing


class Order(NamedTuple):
    """What determines the rows of every source: the settings that cannot change within a run.

    `packing` is that of text. `long_chats` says what happens to conversations that are longer than
    a row.
    """

    split: str
    packing: Packing
    seed: int
    long_chats: LongDocuments = "split"
    loss: Loss = "all"
