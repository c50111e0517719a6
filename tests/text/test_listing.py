"""What a folder holds is read, told or refused: nothing is lost, or read twice."""

import os
import re
import shlex
import socket

import fsspec
import pytest
from making import write_parquet

from tokenmill.text.listing import list_sources, name_of_source


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "a"}\n')


def names_of(*sources):
    return [file.name for file in list_sources(list(map(str, sources))).files]


def left_out(*sources):
    return list_sources(list(map(str, sources))).left_out


def test_files_of_a_folder_a_glob_and_a_url_come_in_name_order(tmp_path, monkeypatch):
    write(tmp_path, "b.jsonl", "a.jsonl", "sub/c.jsonl", "sub/a.ndjson", ".cache/hidden.jsonl")
    for source in (
        tmp_path,
        f"{tmp_path}/**/*.*json*",
        f"file://{tmp_path}",
        f"file://{tmp_path}/**/*.*json*",
    ):
        assert names_of(source) == ["a.jsonl", "b.jsonl", "sub/a.ndjson", "sub/c.jsonl"], source
    assert names_of(tmp_path / "a.jsonl") == names_of(f"file://{tmp_path}/a.jsonl") == ["a.jsonl"]
    monkeypatch.chdir(tmp_path.parent)
    assert names_of(f"{tmp_path.name}/sub/*.jsonl") == ["c.jsonl"], "no repository on the hub"
    (file,) = list_sources([str(tmp_path / "a.jsonl")]).files
    assert (file.path, file.bytes, file.is_local) == (
        os.path.realpath(tmp_path / "a.jsonl"),
        14,
        True,
    )


def test_a_glob_at_a_url_names_its_files():
    fs = fsspec.filesystem("memory")
    for name in ("a.jsonl", "b.jsonl", "c.txt", "sub/d.jsonl"):
        fs.pipe(f"/corpus-of-globs/{name}", b'{"text": "a"}\n')
    assert names_of("memory://corpus-of-globs/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names_of("memory://corpus-of-globs/**/*.jsonl") == ["a.jsonl", "b.jsonl", "sub/d.jsonl"]
    with pytest.raises(FileNotFoundError, match="found no file"):
        list_sources(["memory://corpus-of-globs/*.parquet"])


def test_links_are_followed_and_what_several_names_lead_to_is_read_once(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    corpus = tmp_path / "corpus"
    write(elsewhere, "sub/c.jsonl")
    write(corpus, "a.jsonl", "deep/b.jsonl")
    (corpus / "linked").symlink_to(elsewhere)
    (corpus / "again.jsonl").symlink_to(corpus / "a.jsonl")
    (corpus / "deep" / "up").symlink_to(corpus)
    (corpus / "deep2").symlink_to(corpus / "deep")
    assert names_of(corpus) == ["a.jsonl", "deep/b.jsonl", "linked/sub/c.jsonl"]
    assert "again.jsonl: the same file as a.jsonl" in left_out(corpus)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        where = os.getcwd()
        os.chdir(path.parent)  # the path of a socket may have 107 bytes
        server.bind(path.name)
        os.chdir(where)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        make_socket,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("gone"),
    ],
    ids=["pipe", "socket", "device", "broken link"],
)
def test_only_regular_files_are_sources(make, tmp_path):
    write(tmp_path, "a.jsonl", "c.jsonl")
    make(tmp_path / "b.jsonl")
    for source in (tmp_path, f"{tmp_path}/*.jsonl"):
        with pytest.raises(
            ValueError,
            match=r"b\.jsonl: expected a regular file, found a broken link, a pipe or a dev",
        ):
            names_of(source)
    (tmp_path / "b.jsonl").unlink()
    make(tmp_path / "control")
    assert left_out(tmp_path) == ["1 other file: control"]


def test_files_of_other_formats_and_unknown_ones_are_told(tmp_path):
    write_parquet(
        tmp_path / "a.PARQUET", [chr(33 + number % 90) * 99 + str(number) for number in range(3000)]
    )
    write(
        tmp_path,
        "b.jsonl",
        "c.ndjson",
        "d.txt",
        "data.bin",
        "README.md",
        "_SUCCESS",
        ".cache/e.jsonl",
    )
    assert names_of(tmp_path) == ["a.PARQUET"]
    assert left_out(tmp_path) == [
        "1 md file: README.md",
        "2 jsonl files: b.jsonl, c.ndjson",
        "1 txt file: d.txt",
        "2 other files: _SUCCESS, data.bin",
    ]


@pytest.mark.parametrize("folder", ["corpus", "it's"])
def test_a_folder_of_several_formats_is_refused_with_the_pattern_that_names_one(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        *(f"{folder}/{name}" for name in ("a.jsonl", "b.ndjson", "web/c.JSONL", "web/d.txt")),
        "c1/z.jsonl",
    )
    with pytest.raises(
        ValueError, match="found 3 jsonl files of 42 bytes and 1 txt file of 14 bytes"
    ) as error:
        names_of(folder)
    patterns = shlex.split(str(error.value).split("as --source ")[1])
    assert names_of(*patterns) == ["a.jsonl", "b.ndjson", "web/c.JSONL"]
    assert {name_of_source(pattern) for pattern in patterns} == {folder} == {name_of_source(folder)}


def test_several_sources_are_listed_side_by_side_and_a_file_that_two_name_is_read_once(tmp_path):
    write(tmp_path, "web/a.jsonl", "web/b.jsonl", "books/a.jsonl", "books/notes.jsonl")
    web = tmp_path / "web"
    books = tmp_path / "books"
    assert names_of(web) == ["a.jsonl", "b.jsonl"], "as one source"
    sources = (web, books, f"{books}/notes.jsonl", f"{web}/")
    assert names_of(*sources) == [
        "books/a.jsonl",
        "books/notes.jsonl",
        "web/a.jsonl",
        "web/b.jsonl",
    ]
    assert f"of {books}/notes.jsonl: notes.jsonl: the same file as books/notes.jsonl" in left_out(
        *sources
    )
    write(tmp_path, "one/data/a.jsonl", "two/data/a.jsonl")
    with pytest.raises(
        ValueError, match=r"both would be named a\.jsonl in the token set; rename one"
    ):
        names_of(tmp_path / "one" / "data", tmp_path / "two" / "data")


def test_names_that_cannot_be_written_are_refused(tmp_path):
    for name in (b"caf\xe9", b"a\nb", b"a\x1bb", "a\u202eb".encode()):
        folder = tmp_path / name.hex()
        write(folder, "a.jsonl", os.fsdecode(name) + ".jsonl")
        shown = re.escape(ascii(os.fsdecode(name))[1:-1])
        message = rf"{shown}\.jsonl': a name that is not UTF-8, too long, or cannot be shown"
        for source in (folder, f"{folder}/*.jsonl"):
            with pytest.raises(ValueError, match=message):
                names_of(source)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (
            "nowhere",
            FileNotFoundError,
            "nowhere: no such file or folder; expected a folder, file or glob",
        ),
        ("empty", FileNotFoundError, "empty: expected parquet/.* in this folder, found none"),
        ("*.parquet", FileNotFoundError, "found no file; check --source"),
        ("a.bin", ValueError, r"a\.bin: expected the name of a parquet/.* file; check --source"),
        ("file:///nowhere/at/all", FileNotFoundError, "no such file or folder"),
        (
            "nothing://bucket/folder",
            ConnectionError,
            "nothing://bucket/folder: could not be listed",
        ),
    ],
)
def test_a_source_without_files_is_an_error(source, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.bin").touch()
    with pytest.raises(error, match=message):
        names_of(source)
