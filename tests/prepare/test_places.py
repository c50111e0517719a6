"""Where a document is said to be is where it is, whatever lines of its file are no document."""

import json
import re

import pytest
from making import run_prepare

from tokenmill import Documents, TokenSet

TEXT = [json.dumps({"text": name * 60}) for name in ("alpha ", "beta ", "gamma ")]
ANSWERS = [
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": name * 60}]
    for name in ("alpha ", "beta ", "gamma ")
]
CHATS = [json.dumps({"messages": messages}) for messages in ANSWERS]
UNLEARNED = json.dumps({"messages": [ANSWERS[0][0], ANSWERS[0][1] | {"train": 0}]})
GAPS = {  # what may be between documents: the forms that may have it, and whether it is broken
    "none": (None, "text chat", False),
    "blank": ("", "text chat", False),
    "white space": (" \t", "text chat", False),
    "null": ('{"text": null}', "text", False),
    "empty": ('{"text": ""}', "text", False),
    "broken": ("{", "text chat", True),
    "a refused conversation": (UNLEARNED, "chat", False),
    "a broken conversation": ('{"messages": 3}', "chat", True),
}


@pytest.mark.parametrize("skip_broken", [False, True])
@pytest.mark.parametrize("form", ["text", "chat"])
def test_the_line_of_a_document_is_that_of_the_file_or_none(
    skip_broken, form, tokenizer_json, tmp_path
):
    """In a file, and a shard, of about 1,100 bytes for each gap."""
    documents = TEXT if form == "text" else CHATS
    (tmp_path / "in").mkdir()
    files = {}
    for gap, (line, forms, is_broken) in GAPS.items():
        if form in forms and is_broken == skip_broken:
            lines = documents
            if line is not None:
                lines = [documents[0], line, documents[1], line, line, documents[2]]
            files[f"{gap}.jsonl"] = lines
            (tmp_path / "in" / f"{gap}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "val.jsonl").write_text(documents[0])
    flags = ["--source", "in", "--val-file", tmp_path / "val.jsonl", "--tokenizer", tokenizer_json]
    flags += ["--workers", 1, "--shard-text-bytes", 1000]
    flags += ["--chat", "chatml"] if form == "chat" else []
    flags += ["--skip-broken"] if skip_broken else []
    done = run_prepare(*flags, cwd=tmp_path)
    token_set = TokenSet(tmp_path / done.stdout.splitlines()[-1])
    sources = {entry.sources for entry in token_set.split("train")}
    assert sources == {(name,) for name in files}
    for document in Documents(token_set):
        named = re.search(r"^(.*\.jsonl) line ([\d,]+)", document.source)
        assert named or not document.source.startswith("none")
        if named:
            name = re.search("alpha|beta|gamma", document.text)
            assert name[0] in files[named[1]][int(named[2]) - 1]
