"""The registry of packings: how each one plans a window, and what the rest of the code needs to know about it.

To add a packing, write a packer (packers.py has three) and add one entry here. From outside the package:

    register_packing(Packing("mine", packer=MyPacker, packs_documents=True, begins_with_bos=True, ...))
    RowLoader(tokens, packing="mine", ...)

No other code asks for the name of a packing; it asks the entry for a property. The registration is per process. A
DataLoader worker that is forked has it; one that is spawned must import the module that registers it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenmill.checks import one_of
from tokenmill.rows.packers import BestFit, Concat, Packer, Random, WindowContent
from tokenmill.rows.whole_documents import WholeDocuments

# (tokens, documents, row_len, long_documents) of a shard -> the fewest rows that it can give, without opening it
FewestRows = Callable[[int, int, int, str], int]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """A way to make rows.

    | field | |
    | --- | --- |
    | name | what users pass as `packing=` |
    | packer | makes the packer of a window from its content; None if `per_rank` |
    | packs_documents | whether a plan's documents are those of the window; else they are slices of the token stream |
    | begins_with_bos | whether every piece begins with BOS, its own or an inserted one; reading rows checks it |
    | joins_shards | whether a row may hold tokens of several shards; else every shard needs enough tokens for a row |
    | keeps_boundaries | whether BOS marks every document boundary in a row, so that batches can have document_ids |
    | shares_a_token | whether consecutive rows share a token, a target of the first and an input of the second |
    | cuts_epoch_once | whether rows reach past their slice: the row length at an epoch's start cuts all its windows |
    | per_rank | whether each rank has an order of its own (nanochat), instead of a part of the global order |
    | fewest_rows | the fewest rows that a shard can give |
    | whole_packer | makes the packer of a window of a chat set, of whole documents; None: chat sets are refused |
    | takes_views | whether it can plan a view's documents, each as often as it counts |
    | variants | label in reports -> the `long_documents` that it stands for |
    | whole_variants | the same, of chat sets |
    """

    name: str
    packer: Callable[[WindowContent], Packer] | None
    packs_documents: bool
    begins_with_bos: bool
    joins_shards: bool
    fewest_rows: FewestRows
    keeps_boundaries: bool = True
    shares_a_token: bool = False
    cuts_epoch_once: bool = False
    per_rank: bool = False
    whole_packer: Callable[[WindowContent], Packer] | None = None
    takes_views: bool = False
    variants: tuple[tuple[str, str], ...] = ()
    whole_variants: tuple[tuple[str, str], ...] = ()

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """(label, long_documents) of each variant that reports compare."""
        return self.variants or ((self.name, "split"),)


def _of_documents(tokens: int, documents: int, row_len: int, long_documents: str) -> int:
    """ "split" keeps every token, "crop" at least one of each document."""
    return (tokens if long_documents == "split" else documents) // row_len


def _of_stream(tokens: int, documents: int, row_len: int, long_documents: str) -> int:
    return max(0, (tokens - 1) // (row_len - 1))


PACKINGS: dict[str, Packing] = {
    packing.name: packing
    for packing in (
        Packing(
            name="best_fit",
            packer=BestFit.of_window,
            packs_documents=True,
            begins_with_bos=True,
            joins_shards=True,
            fewest_rows=_of_documents,
            whole_packer=WholeDocuments.of_window,
            takes_views=True,
            variants=(("best_fit", "split"), ("best_fit, crop", "crop")),
            whole_variants=(("window", "window"), ("crop", "crop"), ("drop", "drop")),
        ),
        Packing(
            name="nanochat",
            packer=None,
            packs_documents=True,
            begins_with_bos=True,
            joins_shards=True,
            fewest_rows=_of_documents,
            per_rank=True,
        ),
        Packing(
            name="concat",
            packer=Concat.of_window,
            packs_documents=False,
            begins_with_bos=False,
            joins_shards=False,
            fewest_rows=_of_stream,
            shares_a_token=True,
            cuts_epoch_once=True,
        ),
        Packing(
            name="random",
            packer=Random.of_window,
            packs_documents=False,
            begins_with_bos=False,
            joins_shards=False,
            fewest_rows=_of_stream,
            keeps_boundaries=False,
        ),
    )
}


def register_packing(packing: Packing) -> None:
    """Registers a packing. Raises ValueError if another packing has its name."""
    if PACKINGS.setdefault(packing.name, packing) is not packing:
        raise ValueError(f"packing {packing.name!r} is registered already; choose another name")


def find_packing(name: str) -> Packing:
    """The packing with this name. Raises ValueError, with the known names, for any other."""
    one_of("packing", name, PACKINGS)
    return PACKINGS[name]
