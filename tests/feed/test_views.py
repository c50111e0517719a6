"""A view's documents come as often as they count, and another view holds from the next epoch on."""

from collections import Counter

import numpy as np
import pytest
from making import BOS, make_token_set, source_of
from making_views import make_view
from reference import cursor_of, rows_of

from tokenmill import Mixture
from tokenmill.look.steps import RunRows
from tokenmill.numpy import RowLoader
from tokenmill.rows import windows as window_sizes
from tokenmill.rows.windows import WindowSize
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.store.shards import TEXT_COUNTS
from tokenmill.store.token_sets import TokenSet, write_manifest

LENGTHS = {
    "train": [[5, 3, 40, 7, 2, 9, 16, 17, 1, 12], [3] * 20, [100, 33, 50], [12, 6, 25, 31, 8, 9] * 4],
    "val": [[4, 8, 30, 6]],
}
SOME = {"train_0.000": [3, 0, 1, 2, 0, 1, 1, 0, 1, 5], "train_1.000": [2] * 20, "train_2.000": [0, 4, 1]}
IS_LONG = {f"train_{n}.000": [int(length >= 16) for length in some] for n, some in enumerate(LENGTHS["train"])}


def numbered_set(folder, train=LENGTHS["train"], val=LENGTHS["val"]):
    """A token set in which every token but BOS, 0, is another number."""
    make_token_set(folder, train, val, vocab=65_536)
    number = 1
    for entry in TokenSet(folder).entries:
        path = folder / "shards" / f"{entry.name}.bin"
        tokens = np.fromfile(path, np.uint16)
        tokens[tokens != BOS] = np.arange(number, number + (tokens != BOS).sum())
        number = int(tokens.max()) + 1
        path.write_bytes(tokens.tobytes())  # of the same size; nothing here asks for the checksum
    return folder


def documents_of(folder):
    """(shard, document) of each token of the training split."""
    found, token_set = {}, TokenSet(folder)
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        for document in range(entry.documents):
            begin, end = (int(offset) for offset in shard.offsets[document : document + 2])
            found.update(dict.fromkeys(shard.tokens[begin + 1 : end].tolist(), (entry.name, document)))
    return found


def make(folder, view=None, seq_len=16, state=None, **more):
    epochs = None if isinstance(folder, Mixture) else 1
    settings = {"batch_size": 1, "seq_len": seq_len, "loss": "once", "epochs": epochs} | more
    loader = RowLoader(folder, view=view, **settings)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def rest_of_epoch(loader):
    """How often each token is a target from here to the end of the epoch. With loss="once", filler is none."""
    found = Counter()
    for _, targets in loader:
        found.update(targets[targets >= 0].tolist())
    return found


def rows_of_epoch(loader):
    """The rows of an epoch, as they follow from the position at its end."""
    steps = len(list(loader))
    run = RunRows.of_position(loader.state_dict(), {"": loader.token_set})
    return [row for step in range(steps) for row in run.step(step)]


def times(folder, counts):
    """How often each token should be a target: as often as its document counts, once if it is not among these."""
    found = {}
    for token, (shard, document) in documents_of(folder).items():
        found[token] = counts[shard][document] if shard in counts else 1
    return Counter({token: number for token, number in found.items() if number})


@pytest.fixture
def folder(tmp_path, small_windows):
    """A token set with views."""
    folder = numbered_set(tmp_path / "set")
    make_view(folder, "all", {})
    make_view(folder, "some", SOME)
    make_view(folder, "long", IS_LONG)
    make_view(folder, "short", {shard: [1 - one for one in some] for shard, some in IS_LONG.items()})
    return folder


def mixture_of(folder, **views):
    return Mixture(dict.fromkeys(views, 1), sources=dict.fromkeys(views, folder), views=views)


# ---------------------------------------------------------------------------- one view


@pytest.mark.parametrize("settings", [{}, {"long_documents": "crop"}, {"split": "val"}])
def test_a_view_in_which_all_count_once_has_the_rows_of_the_set(folder, settings):
    whole = [rows_of(batch) for batch in make(folder, loss="all", **settings)]
    assert [rows_of(batch) for batch in make(folder, "all", loss="all", **settings)] == whole


def test_every_document_comes_as_often_as_it_counts(tmp_path, windows):
    folder = numbered_set(tmp_path / "set")
    make_view(folder, "some", SOME)
    loader = make(folder, "some")
    for _ in range(2):
        assert rest_of_epoch(loader) == times(folder, SOME)


def begun(folder):
    """A loader in the second window of an epoch of view "some", and the targets before it."""
    dealt, loader = Counter(), make(folder, "some")
    while not cursor_of(loader.state_dict()).window:
        _, targets = next(loader)
        dealt.update(targets[targets >= 0].tolist())
    return loader, dealt


def test_another_view_holds_from_the_next_epoch_on(folder):
    loader, dealt = begun(folder)
    for other, counts in (("long", IS_LONG), (None, {})):
        changed = make(folder, other, seq_len=20, state=loader.state_dict())
        assert dealt + rest_of_epoch(changed) == times(folder, SOME)
        assert rest_of_epoch(changed) == times(folder, counts)


def test_a_view_of_a_set_that_grew_is_made_again_and_holds_from_the_next_epoch_on(folder):
    (loader, dealt), before = begun(folder), times(folder, SOME)
    grow(folder, [7, 9, 11, 30])
    with pytest.raises(ValueError, match="view .some. is of manifest .*, and the set has grown or changed since"):
        make(folder, "some")
    counts = SOME | {"train_9.000": [1, 3, 0, 1]}
    make_view(folder, "some", counts)
    again = make(folder, "some", state=loader.state_dict())
    assert dealt + rest_of_epoch(again) == before
    assert rest_of_epoch(again) == times(folder, counts)


def grow(folder, lengths):
    """Adds a training shard of these lengths to a numbered set."""
    token_set = TokenSet(folder)
    records = [(token_set.record(entry), entry.split) for entry in token_set.entries]
    with ShardWriter(folder, "train_9.000", "uint16") as writer:
        tokens = np.arange(40_000, 40_000 + sum(lengths))
        tokens[np.cumsum([0, *lengths[:-1]])] = BOS
        writer.write(tokens, lengths)
        facts = {"fingerprint": "f" * 64, "source": source_of("train_9.parquet", len(lengths))}
        records.append((writer.finish(dict.fromkeys(TEXT_COUNTS, 0) | facts), "train"))
    write_manifest(folder, "synthetic", token_set.tokenizer, records)


def test_copies_are_in_different_windows_if_there_are_many(tmp_path, monkeypatch):
    """Of 3,000 documents that count 2, in 47 windows, fewer than 1 in 20 comes twice in one window."""
    monkeypatch.setattr(window_sizes, "DEFAULT_WINDOW_SIZE", WindowSize(slice=64, window=1024))
    folder = numbered_set(tmp_path / "set", [[8] * 1000] * 3, [[8] * 4])
    make_view(folder, "twice", {f"train_{n}.000": [2] * 1000 for n in range(3)})
    seen, windows = Counter(), set()
    for row in rows_of_epoch(make(folder, "twice", seq_len=65, batch_size=8, drop_last=False)):
        windows.add(row.window)
        begun = [piece for piece in row.pieces if not (piece.filler or piece.start)]
        seen.update((row.window, piece.shard.entry.name, piece.document) for piece in begun)
    assert len(windows) == 47
    assert sum(number > 1 for number in seen.values()) < 150


# ---------------------------------------------------------------------------- mixtures


def test_views_of_one_set_are_sources_of_one_mixture(folder):
    loader, documents = make(mixture_of(folder, a="short", b="long")), documents_of(folder)
    seen = {0: set(), 1: set()}
    for _ in range(60):
        _, targets = next(loader)
        seen[int(loader.row_sources[0])].update(documents[token] for token in targets[targets >= 0].tolist())
    assert all(seen.values())
    for number, is_long in enumerate((0, 1)):
        assert all(IS_LONG[shard][document] == is_long for shard, document in seen[number])


def test_a_position_of_one_view_continues_as_that_view_in_a_mixture(folder):
    loader = make(folder, "long")
    next(loader)
    mixed = make(mixture_of(folder, a="short", b="long"), state=loader.state_dict())
    assert {name: usage.rows for name, usage in mixed.seen().items()} == {"a": 0, "b": 1}
    with pytest.raises(ValueError, match="2 sources of the mixture"):
        make(mixture_of(folder, a="short", b="some"), state=loader.state_dict())


# ---------------------------------------------------------------------------- what is refused


def test_views_that_make_no_sense_are_refused(folder):
    make_view(folder, "none", {shard: [0] * len(some) for shard, some in IS_LONG.items()})
    make_view(folder, "again", IS_LONG)
    for ask, told in [
        (lambda: make(folder, "long", packing="concat", loss="all"), "packing 'concat'.* view"),
        (lambda: make(folder, "none"), r"view 'none': split 'train' has 0 rows of 16 \+ 1 tokens"),
        (lambda: make(mixture_of(folder, a="long", b="long")), "sources 'a' and 'b' have the same documents"),
        (lambda: make(mixture_of(folder, a="long", b="again")), "have the same documents"),
        (lambda: Mixture({"a": 1}, sources={"a": folder}, views={"c": "long"}), "views names 'c', which is not a sou"),
        (lambda: make(mixture_of(folder, a="long"), "long"), r"view='long' is for one token set"),
    ]:
        with pytest.raises(ValueError, match=told):
            ask()
    with pytest.raises(FileNotFoundError, match="expected a view 'nope', found again, all, long, none, short, some"):
        make(mixture_of(folder, a="nope"))


def test_a_former_view_that_was_deleted_is_needed_in_the_middle_of_an_epoch_alone(folder):
    loader = make(folder, "long")
    begin = loader.state_dict()
    next(loader)
    for path in (folder / "views").glob(f"{TokenSet(folder).viewed('long').view_digest}.*"):
        path.unlink()
    make(folder, "short", state=begin)
    with pytest.raises(
        FileNotFoundError, match="expected a view .*, if it is a digest that a position names, put its file back"
    ):
        make(folder, "short", state=loader.state_dict())
