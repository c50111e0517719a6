"""The name of a file says its format and its compression."""

import pytest

from tokenmill.text.formats import ReadOptions, format_of, stem_of
from tokenmill.text.source_file import SourceFile, naming_file


@pytest.mark.parametrize(
    ("name", "format", "compression", "stem"),
    [
        ("web/a.parquet", "parquet", None, "web/a"),
        ("a.JSONL.GZ", "jsonl", "gzip", "a"),
        ("a.ndjson.zst", "jsonl", "zstd", "a"),
        ("a.json.gz", "jsonl", "gzip", "a"),
        ("a.json", "json", None, "a"),
        ("a.b.txt", "txt", None, "a.b"),
        ("notes.MD.gz", "md", "gzip", "notes"),
        ("a.csv", "csv", None, "a"),
        ("a.csv.gz", "csv", "gzip", "a"),
        ("data-00000-of-00001.arrow", "arrow", None, "data-00000-of-00001"),
        ("a.parquet.gz", None, "gzip", "a.parquet.gz"),
        ("a.toy", None, None, "a.toy"),
        ("txt", None, None, "txt"),
    ],
)
def test_a_name_says_the_format(name, format, compression, stem):
    entry = format_of(name)
    assert (entry.name if entry else None, stem_of(name)) == (format, stem)
    assert SourceFile(name, "/a", 1).compression == compression


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.md.gz"])
def test_a_format_without_conversations_says_so(name):
    file = SourceFile(name, f"/{name}", 1)
    with pytest.raises(ValueError, match="has no conversations; write them as jsonl"):
        file.format.read(file, 0, 1, ReadOptions(conversations=True))


def test_a_file_that_is_gone_is_no_lack_of_memory():
    class Gone(FileNotFoundError):
        """As the libraries of buckets raise."""

    naming = naming_file(SourceFile("a.jsonl", "/a.jsonl", 1))
    with pytest.raises(FileNotFoundError, match="no such file any more"), naming:
        raise Gone("a")
