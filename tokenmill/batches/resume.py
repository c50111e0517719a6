"""Whether a position fits a loader, and the run that continues from it.

    order = order_of(config, sets)                                what cannot change within a run
    run, _ = resumed(position, config, setting, sets, order)      the run of a position, with this loader's settings

What may change: ranks, batch size, weights, sources and stages; seq_len with best_fit; a set that has grown, and its
view, from the next epoch on. Anything else is a ValueError.
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.mixture import ONE_SET, ids_fingerprint
from tokenmill.feed.source import Order, Source
from tokenmill.rows.plan import Packing
from tokenmill.rows.position import read_position
from tokenmill.rows.run import Documents, Run, Setting, past_of
from tokenmill.store.token_sets import TokenSet

Sets = Mapping[str, TokenSet]
LONG_CHATS = "long_documents of chats"


def order_of(config: LoaderConfig, sets: Sets) -> Order:
    """What determines the rows of every source. In a mixture with chats, long_documents is about these alone."""
    has_chats = any(one.is_chat for one in sets.values())
    if config.long_documents == "drop" and not has_chats:
        raise ValueError(
            "long_documents='drop' is for conversations; with text use 'split' or 'crop'"
        )
    packing = Packing(
        config.packing, "split" if has_chats else config.long_documents, config.shuffle
    )
    return Order(
        config.split,
        packing,
        config.order_seed,
        config.long_documents if has_chats else "split",
        config.loss,
    )


def setting_of(config: LoaderConfig, sets: Sets, world_size: int) -> Setting:
    """The setting of a run that begins."""
    mixture, sizes = config.mixture, (config.batch_size, world_size, config.seq_len)
    caps = dict(mixture.max_epochs) if config.split == "train" else {}
    documents = {name: Documents(one.digest, one.view_digest, name) for name, one in sets.items()}
    return Setting(*sizes, mixture.stages, caps, documents, config.epochs, config.drop_last)


def identity_of(config: LoaderConfig, setting: Setting, sets: Sets, order: Order) -> dict[str, Any]:
    """What must match for a position to mean the same row."""
    name, long_documents, shuffle, _ = order.packing
    identity: dict[str, Any] = {
        "tokenizer": ids_fingerprint(next(iter(sets.values()))),
        "split": config.split,
    }
    identity |= {"packing": name, "long_documents": long_documents, "shuffle": shuffle}
    identity |= {"seed": order.seed, "loss": order.loss}
    if any(one.is_chat for one in sets.values()):
        identity[LONG_CHATS] = order.long_chats
    if name == "nanochat":  # each rank has an order of its own
        own = {
            "seq_len": setting.seq_len,
            "world_size": setting.world_size,
            "manifest": sets[ONE_SET].digest,
        }
        return identity | own
    return identity


def resumed(
    state: Any, config: LoaderConfig, setting: Setting, sets: Sets, order: Order
) -> tuple[Run, dict[str, Any]]:
    """The run that continues from a position, and its identity. ValueError if the position does not fit."""
    if isinstance(state, Mapping) and "get_batch" in state:
        raise ValueError(
            "this is the state of get_batch's loaders; pass it to tokenmill.load_state_dict"
        )
    run, found = read_position(state)
    own = identity_of(config, setting, sets, order)
    for mine, others in (
        (own, found),
        (found, own),
    ):  # chats that join or leave a run change nothing of its text
        if LONG_CHATS in others:
            mine.setdefault(LONG_CHATS, others[LONG_CHATS])
    for key in {**own, **found}:
        if found.get(key) != own.get(key):
            raise ValueError(
                f"this position does not fit: {key} is {found.get(key)!r} in the position, {own.get(key)!r} here; "
                "load it with the settings and token sets that it was saved with"
            )
    run = _with_our_names(run, config, sets)
    orders = {
        name: docs.order for leg in run.legs for name, docs in leg.setting.sets.items()
    }  # as it joined the run
    setting = setting._replace(
        sets={n: docs._replace(order=orders.get(n, n)) for n, docs in setting.sets.items()}
    )
    until = run.now.until if setting.epochs else None
    if setting.epochs and (run.setting.epochs != setting.epochs or until is None):
        until = (run.now.cursors[ONE_SET].epoch // setting.epochs + 1) * setting.epochs
    was, run = run.setting.seq_len, run.go_on(setting, run.now._replace(until=until))
    for name, one in sets.items() if config.packing != "nanochat" else ():
        source, (epoch, window, row) = (
            Source(name, one, order, run.legs, counts_only=True),
            run.now.cursors[name],
        )
        if window >= source.count_windows(epoch):
            raise ValueError(
                f"{one.display_name} has no window {window} in epoch {epoch}, where this position is"
            )
        if config.packing != "best_fit" and was != setting.seq_len and (window or row):
            raise ValueError(
                f"rows of packing {config.packing!r} cannot change their length within an epoch, from {was} to "
                f"{setting.seq_len}; begin an epoch with set_epoch, or use the same seq_len"
            )
        if past_of(run.legs, name, epoch, window)[0]:
            source.count_window(epoch, window)  # ValueError if the rows that were used do not exist
    return run, own


def _with_our_names(run: Run, config: LoaderConfig, sets: Sets) -> Run:
    """The run with the sources' names of this loader. ValueError if a source is missing, or is another set."""
    theirs = run.setting.sets
    if config.is_one_set and ONE_SET not in theirs:
        raise ValueError(
            f"this position is of a mixture of {', '.join(theirs)}, but this is one token set; load it into a Mixture"
        )
    if ONE_SET in theirs and not config.is_one_set:
        manifest, view, _ = theirs[ONE_SET]
        known = [name for name, one in sets.items() if one.knows(manifest)]
        same = [name for name in known if sets[name].view_digest == view] or known
        if len(same) != 1:
            raise ValueError(
                f"this position is of a token set with manifest {manifest}, view {view or 'none'}, which {len(same)} "
                f"sources of the mixture are or were: {', '.join(sets)}"
            )
        run = _renamed(run, ONE_SET, same[0])
    for name, (manifest, *_) in {
        k: v for leg in run.legs for k, v in leg.setting.sets.items()
    }.items():
        if name in sets and not sets[name].knows(manifest):
            raise ValueError(
                f"{f'source {name!r} of ' if name else ''}this position is of a token set with manifest {manifest}, "
                f"which {sets[name].display_name} never had; name the set that it was"
            )
        if name in theirs and name not in sets and name not in config.mixture.removed:
            raise ValueError(
                f"this position has a source {name!r}, but the mixture has only {', '.join(sets)}; add it by this "
                f"name, on which the order of its rows depends, or, to take it out, list it in removed=[{name!r}]"
            )
    return run


def _renamed(value: Any, old: str, new: str) -> Any:
    """A run, or a part of one, in which a source has another name."""
    if isinstance(value, Mapping):
        return {new if key == old else key: _renamed(one, old, new) for key, one in value.items()}
    if not isinstance(value, tuple | list):
        return value
    parts = [_renamed(one, old, new) for one in value]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
