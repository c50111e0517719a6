"""Text in another encoding than UTF-8 is refused by its name, in every format of text."""

import gzip

import pytest

from tokenmill.text.documents import read_unit
from tokenmill.text.formats import ReadOptions
from tokenmill.text.plan import Unit
from tokenmill.text.source_file import SourceFile

ROWS = {
    "txt": "first line of text, and 水車\n",
    "md": "# first line of text\n",
    "jsonl": '{"text": "first line of text"}\n' * 9,
    "csv": "text,label\nfirst line of text,1\n",
}
MARKED = {
    "UTF-16": ("utf-16", b""),
    "UTF-16 in the other order": ("utf-16-be", b"\xfe\xff"),
    "UTF-32": ("utf-32", b""),
    "UTF-32 in the other order": ("utf-32-be", b"\0\0\xfe\xff"),
    "GB18030": ("gb18030", b"\x84\x31\x95\x33"),
}


def read(tmp_path, name, data, **options):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    file = SourceFile(name, str(path), path.stat().st_size)
    unit = Unit((file,), 0, 1)
    batches = read_unit(unit, ReadOptions(**options))
    return [text for batch in batches for text in batch.texts.to_pylist()]


@pytest.mark.parametrize("form", [*ROWS, "txt.gz", "csv.gz"])
@pytest.mark.parametrize("kind", MARKED)
def test_a_mark_of_another_encoding_is_named(form, kind, tmp_path):
    encoding, mark = MARKED[kind]
    data = mark + ROWS[form.removesuffix(".gz")].encode(encoding)
    with pytest.raises(ValueError, match=f"a.{form}: expected text in UTF-8, found {kind[:6]}"):
        read(tmp_path, f"a.{form}", data, skip_broken=True)


@pytest.mark.parametrize("form", ROWS)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_nul_bytes_of_another_encoding_without_its_mark_are_refused(form, encoding, tmp_path):
    with pytest.raises(ValueError, match=f"a.{form}: expected text in UTF-8, found NUL bytes"):
        read(tmp_path, f"a.{form}", ROWS[form].encode(encoding), skip_broken=True)


def test_utf_8_with_its_mark_and_a_few_nul_characters_is_text(tmp_path):
    text = "a first line\0 of text"
    assert read(tmp_path, "a.txt", b"\xef\xbb\xbf" + text.encode()) == [text]
