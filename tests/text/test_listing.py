"""What a folder holds is read, told or refused: nothing is left out without a word, nothing is read twice."""

import os
import shlex

import pytest
from making import run_prepare, write_parquet

from tokenmill.text.listing import list_source
from tokenmill.text.several_sources import list_sources, name_of_source
from tokenmill.text.sources import split_files


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"text": "a"}\n')


def test_links_are_followed_and_what_several_names_lead_to_is_read_once(tmp_path):
    elsewhere, corpus = tmp_path / "elsewhere", tmp_path / "corpus"
    write(elsewhere, "sub/c.jsonl")
    write(corpus, "a.jsonl", "deep/b.jsonl")
    (corpus / "linked").symlink_to(elsewhere)
    (corpus / "again.jsonl").symlink_to(corpus / "a.jsonl")
    (corpus / "deep" / "up").symlink_to(corpus)
    (corpus / "deep2").symlink_to(corpus / "deep")
    listed = list_source(str(corpus))
    assert sorted(listed.files) == ["a.jsonl", "deep/b.jsonl", "linked/sub/c.jsonl"]
    assert "again.jsonl: the same file as a.jsonl" in listed.left_out
    assert "deep2/b.jsonl: the same file as deep/b.jsonl" in listed.left_out


def test_a_link_that_leads_nowhere_is_refused_where_it_would_be_read(tmp_path):
    write(tmp_path / "corpus", "a.jsonl")
    (tmp_path / "corpus" / "notes.pdf").symlink_to("gone")
    assert list_source(str(tmp_path / "corpus")).left_out == []
    (tmp_path / "corpus" / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    for source in (tmp_path / "corpus", tmp_path / "corpus" / "*.jsonl"):
        with pytest.raises(FileNotFoundError, match=r"b\.jsonl: a link to .*gone\.jsonl, which is not there"):
            list_source(str(source))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_subfolder_without_permission_is_refused_not_left_out(tmp_path):
    write(tmp_path, "a.jsonl", "closed/b.jsonl")
    (tmp_path / "closed").chmod(0)
    with pytest.raises(OSError, match=r"closed: this folder of the source cannot be read \(Permission denied\)"):
        list_source(str(tmp_path))


def test_an_unreadable_subfolder_is_refused_whoever_asks(tmp_path, monkeypatch):
    write(tmp_path, "a.jsonl", "closed/b.jsonl")
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match=r"closed: this folder of the source cannot be read \(Permission denied\)"):
        list_source(str(tmp_path))


def test_files_of_other_formats_hidden_ones_and_unknown_ones_are_told(tmp_path):
    write_parquet(tmp_path / "a.PARQUET", [chr(33 + number % 90) * 99 + str(number) for number in range(3000)])
    write(tmp_path, "b.jsonl", "c.ndjson", "d.txt", "data.bin", "README.md", "_SUCCESS", ".cache/e.jsonl")
    listed = list_source(str(tmp_path))
    assert list(listed.files) == ["a.PARQUET"]
    assert listed.left_out == [
        "1 hidden file beside parquet: .cache/e.jsonl",
        "1 md file beside parquet: README.md",
        "2 jsonl files beside parquet: b.jsonl, c.ndjson",
        "1 txt file beside parquet: d.txt",
        "1 file of no known format: data.bin",
    ]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a.jsonl", "b.NDJSON", "c.json.gz", "d.ndjson.zst"], 4),
        (["e.txt", "g.TXT.GZ"], 2),
        (["f.json", "g.json"], 2),
        (["a.md", "README.md"], 2),
        (["README.md", "dataset_infos.json", "web/LICENSE.txt", "web/a.jsonl"], 1),
    ],
)
def test_formats_go_by_many_names_and_files_that_describe_others_are_not_text(tmp_path, names, chosen):
    write(tmp_path, *names)
    assert len(list_source(str(tmp_path)).files) == chosen


def test_a_folder_with_much_text_in_several_formats_is_refused_with_the_patterns_that_name_it(tmp_path):
    write(tmp_path, "a.jsonl", "b.ndjson", "web/c.JSONL", "web/d.txt")
    with pytest.raises(
        ValueError, match="expected files of one format, found 3 jsonl files of 42 bytes and 1 txt"
    ) as e:
        list_source(str(tmp_path))
    one, everything = str(e.value).split("as --source ")[1].split(", or all of it: --source ")
    names = [sorted(list_sources(shlex.split(patterns)).files) for patterns in (one, everything)]
    assert names == [["a.jsonl", "b.ndjson", "web/c.JSONL"], ["a.jsonl", "b.ndjson", "web/c.JSONL", "web/d.txt"]]


def test_several_sources_are_listed_side_by_side_and_a_file_that_two_name_is_read_once(tmp_path):
    write(tmp_path, "web/a.jsonl", "web/b.jsonl", "books/a.jsonl", "books/notes.jsonl")
    (tmp_path / "books" / "again.jsonl").symlink_to(tmp_path / "web" / "a.jsonl")
    web, books = str(tmp_path / "web"), str(tmp_path / "books")
    assert list(list_sources([web]).files) == ["a.jsonl", "b.jsonl"], "as one source"
    listed = list_sources([web, books, f"{books}/notes.jsonl", f"{web}/"])
    assert sorted(listed.files) == ["books/a.jsonl", "books/notes.jsonl", "web/a.jsonl", "web/b.jsonl"]
    assert listed.bytes == dict.fromkeys(listed.files, 14)
    assert f"of {books}: again.jsonl: the same file as web/a.jsonl" in listed.left_out
    assert f"of {books}/notes.jsonl: notes.jsonl: the same file as books/notes.jsonl" in listed.left_out
    assert len([line for line in listed.left_out if "the same file" in line]) == 2, "the same source twice is one"


def test_two_files_of_several_sources_never_share_a_name(tmp_path):
    write(tmp_path, "one/data/a.jsonl", "two/data/a.jsonl")
    with pytest.raises(ValueError, match=r"both would be named a\.jsonl in the token set; name both by one pattern"):
        list_sources([str(tmp_path / "one" / "data"), str(tmp_path / "two" / "data")])


def test_a_pattern_that_is_suggested_names_the_same_files_whatever_the_folder_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "c[1]/s/a.jsonl", "c[1]/s/b.csv", "c1/s/z.jsonl", "it's/a.jsonl", "it's/b.csv")
    for folder, expected in (("c[1]", ["s/a.jsonl", "s/b.csv"]), ("it's", ["a.jsonl", "b.csv"])):
        with pytest.raises(ValueError, match="expected files of one format") as error:
            list_source(folder)
        patterns = shlex.split(str(error.value).split("or all of it: --source ")[1])
        assert sorted(list_sources(patterns).files) == expected
        assert {name_of_source(pattern) for pattern in patterns} == {folder} == {name_of_source(folder)}


def test_a_file_that_is_called_like_a_licence_is_text(tmp_path):
    write(tmp_path, "licensed-books.jsonl", "notes.csv")
    with pytest.raises(ValueError, match="expected files of one format"):
        list_source(str(tmp_path))


def test_a_file_by_several_ways_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "web/a.jsonl", "web/b.jsonl")
    for more in (f"{tmp_path}/web", f"file://{tmp_path}/web/a.jsonl", "./web/", "web/*.jsonl"):
        assert sorted(list_sources(["web", more]).files.values()) == ["web/a.jsonl", "web/b.jsonl"], more


def test_a_validation_file_that_two_files_may_mean_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "x/web/a.jsonl", "x/web/b.jsonl", "books/z.jsonl", "web/a.jsonl")
    listed = list_sources(["x/web", "books"])
    with pytest.raises(
        ValueError, match=r"--val-file web/a\.jsonl: the source has a file of this name, x/web/a\.jsonl"
    ):
        split_files(listed.files, "web/a.jsonl")
    for named, name in (
        ("./web/a.jsonl", "a.jsonl"),
        ("x/web/a.jsonl", "web/a.jsonl"),
        ("books/z.jsonl", "books/z.jsonl"),
    ):
        assert [file.name for file in split_files(listed.files, named) if file.split == "val"] == [name]


def test_names_below_a_pattern_stay_when_files_come(tmp_path):
    write(tmp_path, "corpus/web/a.jsonl")
    pattern = str(tmp_path / "corpus" / "*" / "*.jsonl")
    assert list(list_source(pattern).files) == ["web/a.jsonl"]
    write(tmp_path, "corpus/books/b.jsonl")
    assert sorted(list_source(pattern).files) == ["books/b.jsonl", "web/a.jsonl"]


def test_copies_that_datasets_has_cached_are_not_read_again(tmp_path):
    write(tmp_path, "data-00000-of-00001.arrow", "cache-0123456789abcdef.arrow", "state.json", "dataset_info.json")
    listed = list_source(str(tmp_path))
    assert list(listed.files) == ["data-00000-of-00001.arrow"]
    assert "1 cached file beside arrow: cache-0123456789abcdef.arrow" in listed.left_out
    pattern = list_source(f"{tmp_path}/*.arrow")
    assert list(pattern.files) == ["data-00000-of-00001.arrow"]
    assert "1 cached file that the pattern names" in pattern.left_out[0]
    assert "2 metadata files beside arrow: dataset_info.json, state.json" in listed.left_out
    (tmp_path / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(FileNotFoundError, match="found none"):
        list_source(str(tmp_path))


def test_c4_s_and_dolma_s_files_are_read_in_any_case(tmp_path, tokenizer_json):
    import gzip

    for number, name in enumerate(("c4-train.00000.json.gz", "c4-train.00001.JSON.GZ", "z.ndjson")):
        data = f'{{"text": "document {number}"}}\n'.encode()
        (tmp_path / "c4").mkdir(exist_ok=True)
        (tmp_path / "c4" / name).write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    done = run_prepare("--source", "c4", "--tokenizer", tokenizer_json, cwd=tmp_path)
    assert "            2 documents" in done.stdout
    assert "  1 document " in done.stdout


def test_names_that_are_not_utf8_too_long_or_hold_colons_make_shards(tmp_path, tokenizer_json):
    folder = tmp_path / "corpus"
    write(folder, "a::b.jsonl", f"{'x' * 100}/{'y' * 200}.jsonl", f"{'x' * 100}/{'y' * 199}z.jsonl", "z.jsonl")
    (tmp_path / "corpus" / os.fsdecode(b"caf\xe9.jsonl")).write_bytes(b'{"text": "b"}\n')
    files = split_files(list_source(str(folder)).files)
    assert len({file.stem for file in files}) == 5
    assert all(len(file.stem.encode()) <= 180 for file in files)
    for more in ([], ["--shard-text-bytes", 16]):
        done = run_prepare(
            "--source", folder, "--name", f"n{len(more)}", "--tokenizer", tokenizer_json, *more, cwd=tmp_path
        )
        assert "            4 documents" in done.stdout
    assert (tmp_path / done.stdout.splitlines()[-1] / "shards" / "caf\\xe9.000.bin").exists()


def test_a_validation_file_of_a_name_that_the_source_has_replaces_nothing(tmp_path):
    write(tmp_path, "corpus/X.jsonl", "corpus/val/X.jsonl", "corpus/a.jsonl", "other/X.jsonl")
    files = list_source(str(tmp_path / "corpus")).files
    found = split_files(files, str(tmp_path / "other" / "X.jsonl"))
    assert {file.name: file.split for file in found} == {
        "X.jsonl": "train",
        "a.jsonl": "train",
        "val/X.jsonl": "train",
        "val/val/X.jsonl": "val",
    }


def test_folders_that_link_to_each_other_are_read_once(tmp_path):
    for one in range(9):
        write(tmp_path, f"{one}/f.jsonl")
        for other in range(9):
            if other != one:
                (tmp_path / str(one) / f"to{other}").symlink_to(tmp_path / str(other))
    listed = list_source(str(tmp_path))
    assert sorted(listed.files) == [f"{one}/f.jsonl" for one in range(9)]
    assert listed.left_out[-1].endswith(" more that are other names of files")


def test_a_link_to_a_folder_that_the_source_is_in_is_told(tmp_path):
    write(tmp_path, "corpus/a.jsonl", "more/m.jsonl")
    (tmp_path / "corpus" / "up").symlink_to(tmp_path)
    listed = list_source(str(tmp_path / "corpus"))
    assert (list(listed.files), listed.left_out) == (["a.jsonl"], ["up: a link to a folder that the source is in"])


def test_names_that_print_alike_are_refused(tmp_path):
    write(tmp_path, "a.jsonl", r"caf\xe9.jsonl")
    (tmp_path / os.fsdecode(b"caf\xe9.jsonl")).write_text('{"text": "b"}\n')
    for source in (str(tmp_path), f"{tmp_path}/*.jsonl"):
        with pytest.raises(ValueError, match=r"both are named caf.*xe9\.jsonl in a token set; rename one"):
            list_source(source)
