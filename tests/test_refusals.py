"""What a user may get wrong and no other test does: each is refused, with words that say what was
expected.
"""

import io
import json
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conversing import assistant, user
from making import make_text, make_token_set, write_parquet

from tokenmill import Mixture, PrepareConfig, RowLoader, TokenSet, prepare
from tokenmill.chat.conversations import read_conversation
from tokenmill.chat.find_rule import find_chat_rule
from tokenmill.chat.nanochat_turns import nanochat_segments
from tokenmill.checks import bytes_of
from tokenmill.exchange.indexed_files import HEADER, MAGIC, read_megatron, read_parquet
from tokenmill.feed.forecast import forecast
from tokenmill.look.checkpoint_files import positions_in
from tokenmill.look.report import Report
from tokenmill.store.columns import META
from tokenmill.store.set_names import find_token_set
from tokenmill.store.shard_writer import ShardWriter
from tokenmill.tokenize.load import load_any

BAD_CONFIGS = {
    "part must be I/N": {"part": "0/3"},
    "--keep-columns must be names": {"keep_columns": "a,a"},
    "meta and Meta.lang may mean one": {"keep_columns": "meta,Meta.lang"},
    "kept_tokens and tokens may mean one": {"keep_columns": "kept_tokens,tokens"},
    "and --unended-turns go with --chat": {"unended_turns": True},
    "--eot-token is for text": {"eot_token": "<|end|>", "chat": "chatml"},
    "--unended-turns is for templates of a file": {"unended_turns": True, "chat": "chatml"},
    "--text-column and --document-separator are for text": {"text_column": "a", "chat": "chatml"},
    "5 sources have 5 names": {"source": tuple("abcde")},
    "both say what validates": {"val_file": "a", "val_fraction": 0.1},
    "--val-fraction must be from 0.000001": {"val_fraction": 0.0},
    "--val-file is empty": {"val_file": ""},
    "--source names nothing": {"source": " "},
    "--cluster must be one of None, ray, not 'dask'": {"cluster": "dask"},
    "--engine must be one of auto, tiktoken": {"engine": "foo"},
    "--loss must be one of all, last, not 'first'": {"loss": "first", "chat": "chatml"},
}


@pytest.mark.parametrize("said", BAD_CONFIGS)
def test_settings_of_a_preparation(said):
    with pytest.raises(ValueError, match=said):
        PrepareConfig(**{"source": "a"} | BAD_CONFIGS[said])


BAD_FILES = {  # with files a.parquet, b.parquet and c.txt
    "--revision and --no-keep-raw are for repositories": {"revision": "v1"},
    "and --no-keep-raw are for repositories on the hub": {"keep_raw": False},
    "--document-separator is for files of text": {"document_separator": "x"},
    "a file of text has no columns": {"source": "c.txt", "text_column": "b"},
    "the hub takes few commits": {"tokens_root": "hf://datasets/o/n"},
    "expected an address without `#`": {"tokens_root": "s3://bucket/a#b"},
    "found an option; set it for botocore": {"tokens_root": "s3://bucket/a?region=x"},
    "'text' as the name of two columns": {"source": "twice.parquet"},
    "cannot be written as parquet": {"source": "odd.arrow", "keep_columns": "odd"},
}


@pytest.mark.parametrize("said", BAD_FILES)
def test_files_and_folders_of_a_preparation(said, tmp_path, monkeypatch, tokenizer_json):
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "in" / "a.parquet", make_text(20, seed=0))
    (tmp_path / "c.txt").write_text("a b c")
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]), "twice.parquet"
    )
    odd = pa.table({"text": ["a"], "odd": pa.array([None], pa.month_day_nano_interval())})
    with pa.OSFile("odd.arrow", "wb") as file, pa.ipc.new_stream(file, odd.schema) as writer:
        writer.write_table(odd)
    with pytest.raises(Exception, match=said):
        prepare(
            PrepareConfig(
                **{"source": "in", "tokenizer": tokenizer_json, "workers": 1} | BAD_FILES[said]
            )
        )


def nanochat(*messages):
    return lambda folder: nanochat_segments(
        read_conversation({"messages": [*messages]}), "<s>", "all"
    )


def of_file(name, content, read):
    """What writes a file of bytes, or of JSON, and reads it."""

    def of(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(
            content if isinstance(content, bytes) else json.dumps(content).encode()
        )
        read(folder / name)

    return of


def of_parquet(**columns):
    data = io.BytesIO()
    pq.write_table(pa.table(columns), data)
    return of_file(
        "a.parquet", data.getvalue(), lambda path: [*read_parquet(path, np.dtype("<u2"))]
    )


def of_set(look, file=None, change=None):
    """What makes a token set, changes one of its files, and looks at it."""

    def of(folder):
        folder = make_token_set(folder / "sets" / "set", [[3, 5, 4], [6]], [[4]])
        (folder.parent / "begun" / "shards").mkdir(parents=True)
        if file:
            (folder / file).write_bytes(change((folder / file).read_bytes()))
        look(folder)

    return of


def chat_of(path):
    return find_chat_rule(str(path), "all")


def load(path):
    return load_any(str(path))


def first(folder):
    return TokenSet(folder).entries[0]


def offset(at, to):
    def change(data):
        offsets = np.frombuffer(data, "<u8").copy()
        offsets[at] = to
        return offsets.tobytes()

    return change


LOADER = partial(RowLoader, batch_size=1, seq_len=4)
CONFIG = "tokenizer_config.json"
SHARD = "shards/train_0.000"
SYSTEM = {"role": "system", "content": "s"}
CALLS = [{"function": {"name": "f", "arguments": {}}}]
PART = {"type": "text", "text": "a"}
ZIP = b"PK\5\6" + bytes(18)
NO_TOKENS = {"tokens": 10, "sizes": {"set": 0}}
REFUSED = {
    "has no place for tool_calls": nanochat(user("a"), assistant("", tool_calls=CALLS)),
    "expected texts of the system and then of the user": nanochat(SYSTEM, assistant("a")),
    "message 1, not counting the system's, is from user, and nanochat expects": nanochat(
        SYSTEM, user("a"), user("b"), assistant("c")
    ),
    "expected a user's message to be text": nanochat(user([PART]), assistant("b")),
    "a part of type 'tool'; nanochat knows": nanochat(
        user("a"), {"role": "assistant", "content": [PART | {"type": "tool"}]}
    ),
    "must be a number of bytes": lambda folder: bytes_of("cache_bytes", "many"),
    "string without '/'": lambda folder: Mixture({"a/b": 1}, sources={"a/b": "x"}),
    "seq_len must be at least 1": lambda folder: Report("a", seq_len=0),
    "expected a folder on this disk, found an address": lambda folder: TokenSet("s3://bucket/set"),
    "expected a mixture's TOML file, found none": lambda folder: Mixture.load(folder / "none.toml"),
    "found version 2": of_file(
        "a.idx",
        HEADER.pack(MAGIC, 2, 8, 0, 0),
        lambda path: [*read_megatron(path, np.dtype("<u2"))],
    ),
    "expected a column input_ids, of lists of ids": of_parquet(ids=[[1]]),
    "expected ids in every row of input_ids, found nulls": of_parquet(input_ids=[[1], None]),
    "a tokenizer.json with a vocabulary": of_file("t.json", {"model": {"vocab": 3}}, load),
    "with ids from 0 to": of_file("t.json", {"model": {"vocab": {"a": -1}}}, load),
    "found broken JSON": of_file(CONFIG, b"{", chat_of),
    "tokenizer_config.json, found a list": of_file(CONFIG, [], chat_of),
    "expected a chat_template in it": of_file(CONFIG, {}, chat_of),
    "expected nanochat or chatml, a tokenizer_config.json or": lambda folder: chat_of("no.json"),
    "a folder of torch.distributed": of_file("x/a", b"", lambda path: positions_in(path.parent)),
    "is an archive, but not torch.save's": of_file("a.pt", ZIP, positions_in),
    "from 0 to 12, found damage": of_set(
        lambda folder: LOADER(folder).rows, f"{SHARD}.idx", offset(0, 1)
    ),
    "to 12, found damage": of_set(
        lambda folder: next(LOADER(folder)), f"{SHARD}.idx", offset(1, 9)
    ),
    "the shard has no column 'mask'": of_set(
        lambda folder: TokenSet(folder).open(first(folder)).column("mask")
    ),
    "which is not finished: finish it, delete it": of_set(
        lambda folder: find_token_set(folder.parent)
    ),
    "this is the state of get_batch's loaders": of_set(
        lambda folder: LOADER(folder).load_state_dict({"get_batch": "[]"})
    ),
    "write s3:// in place of s3a://": lambda folder: TokenSet("s3a://bucket/set"),
    "sizes must be .* of all sources, web, found none": lambda folder: forecast(
        Mixture({"web": 1}), tokens=1, sizes={}
    ),
    "sizes must be .* of all sources, web, code, found web": lambda folder: forecast(
        Mixture({"a/web": 3, "a/code": 1}), tokens="1M", sizes={"web": 10**6}
    ),
    "file://host/set: expected file:///FOLDER, found a host": lambda folder: TokenSet(
        "file://host/set"
    ),
    "file:///set.b: expected file:///FOLDER": lambda folder: TokenSet("file:///set#b"),
    "has no training tokens": of_set(
        lambda folder: forecast(Mixture({"set": 1}, sources={"set": folder}), **NO_TOKENS)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_called_read_or_opened(said, tmp_path):
    with pytest.raises((ValueError, OSError), match=said):
        REFUSED[said](tmp_path)


def test_a_column_has_as_many_values_as_there_are_documents(tmp_path):
    with ShardWriter(tmp_path, "a", "uint16", columns=[META.suffix]) as writer:
        writer.write(np.arange(4), [2, 2])
        writer.write_column(META.suffix, pa.table({"a": [1]}))
        with pytest.raises(ValueError, match="expected 2 rows, one a document, found 1"):
            writer.finish({})
