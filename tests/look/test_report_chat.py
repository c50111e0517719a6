"""The report of a chat set: what is in the loss, and what each choice of long_documents loses, as a
loader finds it.
"""

import itertools
import json
import random
import re

import numpy as np
import pytest
from conversing import random_messages
from making import make_chat_set, run_prepare

from tokenmill import RowLoader, TokenSet, cli
from tokenmill.look.packing_stats import tally, variants
from tokenmill.look.report_page import glance
from tokenmill.look.set_statistics import MOST_SPANS, histogram, look_at_loss, sample
from tokenmill.messages import in_bytes

CHOICES = ("crop", "drop")
pytestmark = pytest.mark.filterwarnings("ignore:.*have no target in their first:UserWarning")
SEQ_LENS = (31, 200)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    rng = np.random.default_rng(0)
    shards = [rng.geometric(1 / mean, 150).tolist() for mean in (20, 60, 40)]
    return make_chat_set(tmp_path_factory.mktemp("made") / "chats", train=shards, val=[[9] * 30])


def test_the_size_on_disk_is_that_of_all_columns(chats):
    size = sum(path.stat().st_size for path in (chats / "shards").iterdir() if is_column(path))
    assert f"{in_bytes(size)} on disk" in glance(TokenSet(chats))


def is_column(path):
    return path.suffix != ".json"


@pytest.mark.parametrize("seq_len", SEQ_LENS)
@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_lost_is_what_an_epoch_of_a_loader_lacks(chats, choice, seq_len):
    token_set = TokenSet(chats)
    shards = [token_set.open(entry) for entry in token_set.split("train")]
    tokens = sum(shard.entry.tokens for shard in shards)
    all_targets = sum(int(shard.target_counts.sum()) for shard in shards)
    loss = look_at_loss(token_set, sample(token_set, "train"), SEQ_LENS)
    lengths = [shard.lengths for shard in shards]
    counted = tally(variants(chat=True)[choice], lengths, seq_len + 1, first_targets=loss.first)

    rows = targets = 0
    settings = {
        "batch_size": 8,
        "seq_len": seq_len,
        "epochs": 1,
        "drop_last": False,
        "long_documents": choice,
    }
    with RowLoader(chats, **settings) as loader:
        for batch in loader:
            rows += len(batch[0])
            targets += int((batch[1] != -100).sum())
    assert loss.lost[choice][seq_len] == pytest.approx(1 - targets / all_targets, abs=1e-12)
    assert loss.targets.sum() == all_targets
    assert (counted.rows, counted.tokens) == (rows, tokens)
    assert counted.row_tokens == counted.kept + counted.repeated, (
        "no piece begins with an inserted BOS"
    )
    assert counted.dropped > 0


def test_targets_and_spans_are_counted_by_conversation(chats):
    token_set = TokenSet(chats)
    loss = look_at_loss(token_set, sample(token_set, "train"), SEQ_LENS)
    targets = []
    spans = []
    for entry in token_set.split("train"):
        shard = token_set.open(entry)
        bits = np.unpackbits(shard.column("mask"), bitorder="little")[: entry.tokens].astype(bool)
        for first, last in itertools.pairwise(shard.offsets.tolist()):
            in_loss = bits[first:last].tolist()
            targets.append(sum(in_loss))
            spans.append(sum(value for value, _ in itertools.groupby(in_loss)))
    assert loss.targets.tolist() == targets
    assert loss.spans.tolist() == spans
    assert loss.by_spans.tolist()[:3] == [spans.count(number) for number in range(3)]
    assert len(loss.by_spans) <= MOST_SPANS + 1
    lengths = np.concatenate([token_set.open(entry).lengths for entry in token_set.split("train")])
    bins = histogram(lengths, loss.targets)
    assert sum(bar.targets for bar in bins) == sum(targets)
    for bar in bins:
        inside = (lengths >= bar.first) & (lengths <= bar.last)
        assert bar.targets == loss.targets[inside].sum()


@pytest.fixture(scope="module")
def page(tmp_path_factory, tokenizer_json):
    """The report of conversations, some longer than a row."""
    folder = tmp_path_factory.mktemp("reported")
    rng = random.Random(3)
    (folder / "chats").mkdir()
    for number in range(2):
        rows = [{"messages": random_messages(rng) * rng.choice((1, 1, 4))} for _ in range(80)]
        (folder / "chats" / f"{number}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows)
        )
    flags = ["--source", "chats", "--val-file", "last", "--chat", "chatml", "--workers", "1"]
    flags += ["--tokenizer", tokenizer_json]
    done = run_prepare(*flags, cwd=folder)
    tokens = folder / done.stdout.splitlines()[-1]
    assert cli.main(["report", str(tokens), "--seq-len", "256"]) == 0
    return tokens / "report.html"


def test_the_page_has_what_each_choice_loses(page, capsys):
    html = page.read_text()
    token_set = TokenSet(page.parent)
    loss = look_at_loss(token_set, sample(token_set, "train"), (256, 512))
    crop = loss.lost["crop"][256]
    drop = loss.lost["drop"][256]
    assert drop > crop > 0
    lengths = [token_set.open(entry).lengths for entry in token_set.split("train")]
    for choice in CHOICES:
        assert f"<td>{loss.lost[choice][256]:.2%}</td>" in html
        assert f"<td>{loss.lost[choice][512]:.2%}</td>" in html
        assert f"<td>{tally(variants(chat=True)[choice], lengths, 257).filler:.2%}</td>" in html
    out = page.with_name("2.html")
    assert cli.main(["report", str(page.parent), "--seq-len", "256", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    share = loss.targets.sum() / np.concatenate(lengths).sum()
    assert re.search(rf"{share:.0%} of the tokens are in the loss", printed)
    assert re.search(rf"targets lost .* {crop:.2%} .* {drop:.2%}", printed)
    assert "concat" not in html, "a packing that chat sets do not have"
    assert list(variants(chat=True)) == list(CHOICES)
