"""Whether a position fits a loader, and the run that continues from it.

    order = order_of(config, sets)                              what cannot change within a run
    run, _ = resumed(position, config, setting, sets, order)    the run, with this loader's settings

What may change: ranks, batch size, weights, sources and stages; seq_len with best_fit; a set that
has grown, and its view, from the next epoch on. Anything else is a ValueError.
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.feed.compatible_sets import ids_fingerprint
from tokenmill.feed.config import LoaderConfig
from tokenmill.feed.dealers import Sets, dealer_of
from tokenmill.feed.mixture import ONE_SET
from tokenmill.feed.order import Order
from tokenmill.rows.plan import Packing
from tokenmill.rows.position import read_position
from tokenmill.rows.run import Documents, Point, Run, Setting
from tokenmill.store.set_names import set_with_manifest

LONG_CHATS = "long_documents of chats"


def order_of(config: LoaderConfig, sets: Sets) -> Order:
    """What determines the rows of every source.

    In a mixture with chats, long_documents is about these alone.
    """
    has_chats = any(token_set.is_chat for token_set in sets.values())
    if config.long_documents == "drop" and not has_chats:
        raise ValueError(
            "long_documents='drop' is for conversations; with text use 'split' or 'crop'"
        )
    of_text = "split" if has_chats else config.long_documents
    if config.loss == "skip_cuts" and of_text == "crop":
        raise ValueError(
            "loss='skip_cuts' is for what comes after an inserted BOS, and long_documents='crop' "
            "inserts none; leave out one of them"
        )
    of_chats = config.long_documents if has_chats else "split"
    packing = Packing(config.packing, of_text, config.shuffle)
    return Order(config.split, packing, config.order_seed, of_chats, config.loss)


def setting_of(config: LoaderConfig, sets: Sets, world_size: int) -> Setting:
    """The setting of a run that begins."""
    mixture = config.mixture
    documents = {}
    for name, token_set in sets.items():
        documents[name] = Documents(token_set.digest, token_set.view_digest, name)
    return Setting(
        batch_size=config.batch_size,
        world_size=world_size,
        seq_len=config.seq_len,
        stages=mixture.stages,
        caps=dict(mixture.max_epochs) if config.split == "train" else {},
        sets=documents,
        epochs=config.epochs,
        drop_last=config.drop_last,
    )


def identity_of(config: LoaderConfig, setting: Setting, sets: Sets, order: Order) -> dict[str, Any]:
    """What must match for a position to mean the same row."""
    identity: dict[str, Any] = {
        "tokenizer": ids_fingerprint(next(iter(sets.values()))),
        "split": config.split,
        "packing": order.packing.name,
        "long_documents": order.packing.long_documents,
        "shuffle": order.packing.shuffle,
        "seed": order.seed,
        "loss": order.loss,
    }
    if any(token_set.is_chat for token_set in sets.values()):
        identity[LONG_CHATS] = order.long_chats
    return identity | dealer_of(sets, order).must_match(setting)


def resumed(
    state: Any, config: LoaderConfig, setting: Setting, sets: Sets, order: Order
) -> tuple[Run, dict[str, Any]]:
    """The run that continues from a position, and its identity.

    ValueError if the position does not fit.
    """
    if isinstance(state, Mapping) and "get_batch" in state:
        raise ValueError(
            "this is the state of get_batch's loaders; pass it to tokenmill.load_state_dict"
        )
    run, saved = read_position(state)
    identity = identity_of(config, setting, sets, order)
    _require_same(saved, identity)
    run = _with_our_names(run, config, sets)
    former_seq_len = run.setting.seq_len
    until = _until(run, setting)
    run = run.go_on(_with_orders_of(run, setting), run.now._replace(until=until))
    dealer_of(sets, order).require_place(run, former_seq_len)
    return run, identity


def _require_same(saved: dict[str, Any], identity: dict[str, Any]) -> None:
    """ValueError if what must match differs.

    Chats that join or leave a run change nothing of its text, so both get what the other one has.
    """
    long_chats = identity.get(LONG_CHATS, saved.get(LONG_CHATS))
    if long_chats is not None:
        identity.setdefault(LONG_CHATS, long_chats)
        saved.setdefault(LONG_CHATS, long_chats)
    for key in {**identity, **saved}:
        if saved.get(key) != identity.get(key):
            raise ValueError(
                f"this position does not fit: {key} is {saved.get(key)!r} in the position, "
                f"{identity.get(key)!r} here; load it with the settings and token sets that it was "
                "saved with"
            )


def _last_documents(run: Run) -> dict[str, Documents]:
    """The documents of every source that the run ever had."""
    documents: dict[str, Documents] = {}
    for leg in run.legs:
        documents |= leg.setting.sets
    return documents


def _with_orders_of(run: Run, setting: Setting) -> Setting:
    """The setting, with the names in the order of rows that sources had when they joined."""
    documents = _last_documents(run)
    sets = dict(setting.sets)
    for name in sets.keys() & documents.keys():
        sets[name] = sets[name]._replace(order=documents[name].order)
    return setting._replace(sets=sets)


def _until(run: Run, setting: Setting) -> int | None:
    """The epoch before which the position's iteration ends."""
    epochs = setting.epochs
    if not epochs:
        return None
    if run.setting.epochs == epochs and run.now.until is not None:
        return run.now.until
    return (run.now.cursors[ONE_SET].epoch // epochs + 1) * epochs


def _with_our_names(run: Run, config: LoaderConfig, sets: Sets) -> Run:
    """The run with the sources' names of this loader.

    ValueError if a source is missing, or is another set.
    """
    in_position = run.setting.sets
    if config.is_one_set and ONE_SET not in in_position:
        listed = ", ".join(in_position)
        raise ValueError(
            f"this position is of a mixture of {listed}, but this is one token set; load it into a "
            "Mixture"
        )
    if ONE_SET in in_position and not config.is_one_set:
        run = _renamed(run, ONE_SET, _name_of_one_set(in_position[ONE_SET], sets))
    for name, documents in _last_documents(run).items():
        if name in sets and not sets[name].knows(documents.manifest):
            source = f"source {name!r} of " if name else ""
            folder = set_with_manifest(documents.manifest)
            where = f", {folder}" if folder is not None else ""
            raise ValueError(
                f"{source}this position is of a token set with manifest {documents.manifest}, "
                f"which {sets[name].display_name} never had; name the set that it was{where}"
            )
        is_expected = name in sets or name not in run.setting.sets
        if not is_expected and name not in config.mixture.removed:
            listed = ", ".join(sets)
            raise ValueError(
                f"this position has a source {name!r}, but the mixture has only {listed}; add it "
                "by this name, on which the order of its rows depends, or, to take it out, list it "
                f"in removed=[{name!r}]"
            )
    return run


def _name_of_one_set(documents: Documents, sets: Sets) -> str:
    """The name of a mixture's source that was alone in a run."""
    known = [name for name, token_set in sets.items() if token_set.knows(documents.manifest)]
    same_view = [name for name in known if sets[name].view_digest == documents.view]
    names = same_view or known
    if len(names) != 1:
        view = documents.view or "none"
        raise ValueError(
            f"this position is of a token set with manifest {documents.manifest}, view {view}, "
            f"which {len(names)} sources of the mixture are or were: {', '.join(sets)}"
        )
    return names[0]


def _renamed(run: Run, former: str, name: str) -> Run:
    """A run in which a source has another name."""

    def in_names(by_name: Mapping[str, Any]) -> dict[str, Any]:
        return {name if key == former else key: value for key, value in by_name.items()}

    def in_point(point: Point) -> Point:
        return point._replace(
            weights=in_names(point.weights),
            cursors=in_names(point.cursors),
            rows=in_names(point.rows),
        )

    legs = []
    for leg in run.legs:
        setting = leg.setting
        stages = [stage._replace(weights=in_names(stage.weights)) for stage in setting.stages]
        setting = setting._replace(
            stages=stages, caps=in_names(setting.caps), sets=in_names(setting.sets)
        )
        legs.append(leg._replace(begin=in_point(leg.begin), setting=setting))
    return Run(tuple(legs), in_point(run.now))
