"""Chat sets from the command line: prepared, verified, shown, converted, continued; or refused."""

import io
import json
import random
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from conversing import TOOLS, random_messages, slow_encode
from json_kinds import letters
from making import ROOT, run_prepare
from making_views import make_view
from rich.console import Console

from tokenmill import RowLoader, Tokenizer, TokenSet, cli
from tokenmill.chat.find_rule import with_rule
from tokenmill.look.report_text import left_out
from tokenmill.look.show import Show, show
from tokenmill.look.verify import verify
from tokenmill.tokenize.chat_rule import ChatRule
from tokenmill.tokenize.load import load_any


def write_jsonl(path, rows) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


@pytest.fixture(scope="module")
def rows():
    rng = random.Random(5)
    return [{"messages": random_messages(rng)} for _ in range(240)]


@pytest.fixture(scope="module")
def source(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats") / "chats"
    folder.mkdir()
    for number in range(4):
        write_jsonl(folder / f"chat_{number}.jsonl", rows[60 * number : 60 * number + 60])
    return folder


@pytest.fixture(scope="module")
def chat_set(source, tokenizer_json, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    flags = (
        "--source",
        source,
        "--val-file",
        "last",
        "--chat",
        "chatml",
        "--tokenizer",
        tokenizer_json,
    )
    done = run_prepare(*flags, "--workers", "2", "--shard-text-bytes", "20000", cwd=folder)
    assert "tokens are in the loss" in done.stdout
    return folder / done.stdout.splitlines()[-1]


def documents_of(folder):
    token_set = TokenSet(folder)
    for entry in token_set.entries:
        shard = token_set.open(entry)
        bits = np.unpackbits(shard.column("mask"), bitorder="little")[: entry.tokens]
        for first, last in zip(
            shard.offsets[:-1].tolist(), shard.offsets[1:].tolist(), strict=True
        ):
            yield shard.tokens[first:last].tolist(), bits[first:last].tolist()


def test_every_conversation_is_there_with_its_ids_and_mask(chat_set, rows):
    tokenizer = Tokenizer.of_set(TokenSet(chat_set))
    expected = [slow_encode(tokenizer, row) for row in rows]
    assert list(documents_of(chat_set)) == expected
    assert verify(chat_set) == {}


OWN = """{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|end|>
{% else %}<|assistant|>{% generation %}{{ m.content }}<|end|>{% endgeneration %}
{% endif %}{% endfor %}"""


@pytest.mark.parametrize("kind", ["tokenmill's", "Hugging Face's"])
def test_tokens_that_are_added_are_special_everywhere(kind, tokenizer_json, tmp_path):
    former = Tokenizer.load(tokenizer_json)
    if kind != "tokenmill's":
        tokenizer_json = tmp_path / "theirs.json"
        letters().save(str(tokenizer_json))
        former = load_any(str(tokenizer_json), "<s>")
    (tmp_path / "own.jinja").write_text(OWN)
    texts = ["<|end|> a", "b"]
    turns = [{"role": r, "content": t} for r, t in zip(("user", "assistant"), texts, strict=True)]
    write_jsonl(tmp_path / "a.jsonl", [{"messages": turns}] * 20)
    flags = ("--source", "a.jsonl", "--chat", "own.jinja", "--tokenizer", tokenizer_json)
    flags += ("--val-fraction", 1e-6)
    added = ["<|user|>", "<|assistant|>", "<|end|>"]
    done = run_prepare(
        *flags, "--bos-token", former.bos_token, "--add-tokens", ", ".join(added), cwd=tmp_path
    )
    folder = tmp_path / done.stdout.splitlines()[-1]
    tokenizer = Tokenizer.of_set(TokenSet(folder))
    user, assistant, end = range(former.vocab_size, former.vocab_size + 3)
    assert tokenizer.special_tokens == former.special_tokens | dict(
        zip(added, (user, assistant, end), strict=True)
    )
    newline, question, answer = (former.encode(text).tolist() for text in ("\n", *texts))
    expected = [former.bos_id, user, *question, end, *newline, assistant, *answer, end]
    ids, _ = next(documents_of(folder))
    assert ids == expected
    assert tokenizer.decode(ids[1:4]).startswith("<|user|><|")
    assert verify(folder) == {}
    assert "all shards are made" in run_prepare(folder, "--dry-run", cwd=tmp_path).stdout
    again = run_prepare(*flags, "--add-tokens", former.bos_token, cwd=tmp_path, check=False)
    assert "cannot be added, as it is a token already" in again.stderr


def test_tokens_that_a_template_writes_and_the_tokenizer_lacks_are_told(tokenizer_json, tmp_path):
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    write_jsonl(tmp_path / "a.jsonl", [{"messages": turns}])
    computed = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    for template, added, lacking in (
        (OWN, "<|user|>,<|end|>", "<|assistant|>"),
        (computed, "<|user|>,<|assistant|>,<|end|>", "<|system|>"),
    ):
        (tmp_path / "own.jinja").write_text(template)
        flags = ["--source", "a.jsonl", "--chat", "own.jinja", "--tokenizer", tokenizer_json]
        done = run_prepare(*flags, "--add-tokens", added, "--dry-run", cwd=tmp_path)
        assert f"writes {lacking}, which" in done.stderr


BROKEN = {"messages": [{"role": "alien", "content": "a"}]}


def test_a_broken_row_is_an_error_with_its_line_or_counted(rows, tokenizer_json, tmp_path):
    folder = tmp_path / "chats"
    folder.mkdir()
    unlearned = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": 0},
        ]
    }
    write_jsonl(folder / "a.jsonl", [*rows[:3], BROKEN, unlearned])
    write_jsonl(folder / "b.jsonl", rows[5:8])
    flags = ("--source", folder, "--chat", "chatml", "--tokenizer", tokenizer_json)
    done = run_prepare(*flags, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "a.jsonl: line 4: message 0: unknown role 'alien'" in done.stderr
    done = run_prepare(*flags, "--skip-broken", cwd=tmp_path)
    broken = "1 broken conversation (the first in a.jsonl, line 4: message 0: unknown role 'alien'"
    assert f"left out, or repaired: {broken}" in done.stdout
    assert "left out, or repaired: 1 conversation: no token of it is in the loss" in done.stdout
    folder = tmp_path / done.stdout.splitlines()[-1]
    assert any(
        "1 conversation: no token of it is in the loss (the first in a.jsonl: line 5)" in sentence
        for sentence in left_out(TokenSet(folder))
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (
        manifest["documents"],
        manifest["broken_conversations"],
        manifest["refused_conversations"],
    ) == (6, 1, 1)


def test_show_tells_what_is_in_the_loss_and_padding(chat_set):
    console = Console(
        record=True, width=200, soft_wrap=True, highlight=False, markup=False, force_terminal=True
    )
    show(Show(tokens=str(chat_set), row="0", seq_len=400), console)
    output = console.export_text(clear=False)
    assert "tokens are in the loss: document" in output
    assert "tokens of padding, which are not in the loss" in output
    underlined = "".join(console.export_text(styles=True).split("\x1b[0m"))
    assert "\x1b[4" in underlined
    piped = Console(
        record=True, width=200, soft_wrap=True, highlight=False, markup=False, file=io.StringIO()
    )
    show(Show(tokens=str(chat_set), row="0", seq_len=400), piped)
    assert re.search(r"<\|im_start\|>assistant\n\[\[[^]]*<\|im_end\|>\]\]\n", piped.export_text())


def test_convert_writes_labels_and_masks_and_prepare_takes_them(chat_set, tokenizer_json, tmp_path):
    assert cli.main(["convert", "out", "parquet", str(chat_set), str(tmp_path / "out")]) == 0
    rows = [
        row
        for path in sorted((tmp_path / "out").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    expected = list(documents_of(chat_set))
    assert sorted((row["input_ids"], row["assistant_masks"]) for row in rows) == sorted(expected)
    for row in rows:
        pairs = zip(row["input_ids"], row["assistant_masks"], strict=True)
        assert row["labels"] == [id if bears else -100 for id, bears in pairs]
    entries = TokenSet(chat_set).entries
    copy = shutil.copytree(chat_set, tmp_path / "copy")
    make_view(
        copy, "odd", {entry.name: [n % 2 for n in range(entry.documents)] for entry in entries}
    )
    assert (
        cli.main(["convert", "out", "parquet", str(copy), str(tmp_path / "odd"), "--view", "odd"])
        == 0
    )
    rows = [
        row
        for path in (tmp_path / "odd").glob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    assert len(rows) == sum(entry.documents // 2 for entry in entries)
    assert all((row["input_ids"], row["assistant_masks"]) in expected for row in rows)
    files = sorted(map(str, (tmp_path / "out").glob("*.parquet")))
    flags = ("--tokenizer", tokenizer_json, "--name", "back", "--val-fraction", "0.1")
    assert cli.main(["convert", "in", "parquet", *files, *flags]) == 1, "the mask would be lost"
    flags = ("--source", tmp_path / "out", "--chat", "chatml", "--tokenizer", tokenizer_json)
    done = run_prepare(*flags, "--val-file", "val-*.parquet", cwd=tmp_path)
    assert sorted(documents_of(tmp_path / done.stdout.splitlines()[-1])) == sorted(expected)


def test_a_mask_that_is_left_out_is_said(chat_set, tmp_path, capsys):
    for layout, more, message in (
        ("nanogpt", [], "nanogpt"),
        ("parquet", ["--eos"], "parquet with EOS"),
    ):
        assert (
            cli.main(["convert", "out", layout, str(chat_set), str(tmp_path / layout), *more]) == 0
        )
        shards = len(TokenSet(chat_set).entries)
        assert (
            f"left out: column mask of {shards} shards, as {message} has no place for it"
            in capsys.readouterr().err
        )


def test_the_lines_that_preparing_ends_with_train(source, tokenizer_json, tmp_path):
    """Also where conversations are longer than a row."""
    flags = (
        "--source",
        source,
        "--val-file",
        "last",
        "--chat",
        "chatml",
        "--tokenizer",
        tokenizer_json,
    )
    lines = run_prepare(*flags, "--workers", "1", cwd=tmp_path).stdout.splitlines()
    first = lines.index("train on it:")
    code = "\n".join(lines[first + 1 : lines.index("look at it:")]).replace(
        "seq_len=1024", "seq_len=64"
    )
    assert 'long_documents="crop"' in code
    done = warm.run(
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}\nprint(loader.targets)",
        cwd=tmp_path,
    )
    assert int(done.stdout) > 0, done.stderr


def test_jsonl_parquet_and_datasets_give_the_same_ids_or_refuse(tokenizer, tmp_path):
    """Arrow gives every struct the fields of all: what may be missing there is no conversation."""
    import datasets

    call = {
        "type": "function",
        "function": {"name": "f", "arguments": {"city": "Bonn", "unit": None, "n": 2**60}},
    }
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "required": None}},
    }
    rows = [
        {"messages": [{"role": role, "content": f"{n}"} for role in ("user", "assistant")]}
        for n in range(200)
    ]
    for row in rows[::2]:
        row["messages"].insert(1, {"role": "assistant", "content": None, "tool_calls": [call]})
        row["messages"].insert(2, {"role": "tool", "content": "sun"})
    rows = [row | {"tools": [tool]} for row in rows]
    text = datasets.Value("string")
    json_type = datasets.Json()
    inner = {"name": text, "arguments": json_type}
    message = {"role": text, "content": text, "tool_calls": [{"type": text, "function": inner}]}
    made = datasets.Dataset.from_list(
        rows, features=datasets.Features({"messages": [message], "tools": json_type})
    )
    made.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "parquet").mkdir()
    made.to_parquet(str(tmp_path / "parquet" / "a.parquet"))
    (tmp_path / "t.jinja").write_text(TOOLS)
    replace(with_rule(tokenizer, ChatRule.named("chatml", "all")), chat=None).save(
        tmp_path / "tokenizer.json"
    )
    for name in ("jsonl", "texts"):
        (tmp_path / name).mkdir()
    write_jsonl(tmp_path / "jsonl" / "a.jsonl", rows)
    write_jsonl(
        tmp_path / "texts" / "a.jsonl", [row | {"tools": json.dumps(row["tools"])} for row in rows]
    )
    sets = []
    for name in ("jsonl", "texts", "saved", "parquet"):
        flags = ("--source", name, "--chat", "t.jinja", "--val-fraction", 0.2)
        done = run_prepare(*flags, cwd=tmp_path)
        sets.append(sorted(documents_of(tmp_path / done.stdout.splitlines()[-1])))
    assert sets[0] == sets[1] == sets[2] == sets[3]
    assert len(sets[0]) == 200
    (tmp_path / "structs").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "structs" / "a.parquet")
    done = run_prepare("--source", "structs", *flags[2:], cwd=tmp_path, check=False)
    assert (
        "row 0 of row group 0: a field of arguments or tools is null, or is missing: in Arrow"
        in done.stderr
    )


def test_text_and_chat_of_one_tokenizer_are_mixed(chat_set, source, tokenizer_json, tmp_path, rows):
    from tokenmill import Mixture

    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(2):
        (texts / f"{number}.txt").write_text("some text " * 500)
    done = run_prepare(
        "--source", texts, "--tokenizer", chat_set / "tokenizer.json", cwd=tmp_path, check=False
    )
    assert "is of a chat set; name the tokenizer that the set was made with" in done.stderr
    done = run_prepare("--source", texts, "--tokenizer", tokenizer_json, cwd=tmp_path)
    text = tmp_path / done.stdout.splitlines()[-1]
    with RowLoader(
        Mixture({"chat": 1, "text": 1}, sources={"chat": chat_set, "text": text}),
        batch_size=4,
        seq_len=400,
    ) as loader:
        _, targets = next(loader)
    assert (targets == -100).any(1).tolist().count(True) == 2
