"""Where a document is said to be is where it is, whatever lines of its file are no document."""

import json
import re

import pytest

from tokenmill import Documents, PrepareConfig, prepare

TEXT = [json.dumps({"text": name * 9}) for name in ("alpha ", "beta ", "gamma ")]
ANSWERS = [
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": name * 9}]
    for name in ("alpha ", "beta ", "gamma ")
]
CHATS = [json.dumps({"messages": messages}) for messages in ANSWERS]
UNLEARNED = json.dumps({"messages": [ANSWERS[0][0], ANSWERS[0][1] | {"train": 0}]})
GAPS = {
    "none": (None, False),
    "blank": ("", False),
    "white space": (" \t", False),
    "null": ('{"text": null}', False),
    "empty": ('{"text": ""}', False),
    "broken": ("{", True),
    "a refused conversation": (UNLEARNED, False),
    "a broken conversation": ('{"messages": 3}', True),
}


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("form", ["text", "chat"])
def test_the_line_of_a_document_is_that_of_the_file_or_none(gap, form, tokenizer_json, tmp_path):
    line, skip_broken = GAPS[gap]
    if "conversation" in gap and form == "text" or gap in ("null", "empty") and form == "chat":
        pytest.skip("of the other form")
    documents = TEXT if form == "text" else CHATS
    lines = documents
    if line is not None:
        lines = [documents[0], line, documents[1], line, line, documents[2]]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "val.jsonl").write_text(documents[0])
    folder, *_ = prepare(
        PrepareConfig(
            source=path,
            val_file=str(tmp_path / "val.jsonl"),
            tokens_root=str(tmp_path / "tokens"),
            tokenizer=tokenizer_json,
            chat="chatml" if form == "chat" else None,
            skip_broken=skip_broken,
            workers=1,
        )
    )
    for document in Documents(folder):
        named = re.search(r"line ([\d,]+)", document.source)
        assert named is not None or line is not None
        if named:
            name = re.search("alpha|beta|gamma", document.text)
            assert name[0] in lines[int(named[1]) - 1]
