"""The report says what is in the token set, and in a real browser its rows open and show their
text.
"""

import json
import re
import shutil
from html import unescape
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import opened
from making import give_tokenizer, make_text, make_token_set, run_prepare, tree, write_parquet

from tokenmill import cli
from tokenmill.look import packing_stats
from tokenmill.look.charts import bars
from tokenmill.look.packing_stats import tally, variants
from tokenmill.look.report import Report, find
from tokenmill.look.report_text import percent, short, verdict
from tokenmill.look.sample_rows import make_specimen
from tokenmill.look.set_statistics import histogram
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

SEQ_LEN = 256


def run(capsys, *arguments):
    status = cli.main(["report", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture(scope="module", autouse=True)
def soon_settled():
    """A page may show nanochat's buffer after fewer documents than the 300,000 of
    test_packing_stats.py.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing_stats, "NANOCHAT_SETTLED", 3000)
        patch.setattr(packing_stats, "NANOCHAT_MEASURED", 1000)
        yield


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    """A token set of its own, so that the page lies in it alone."""
    return shutil.copytree(prepared[1], tmp_path_factory.mktemp("reported") / prepared[1].name)


@pytest.fixture(scope="module")
def page(folder):
    before = tree(folder)
    page = folder / "report.html"
    assert cli.main(["report", str(folder), "--seq-len", str(SEQ_LEN)]) == 0
    after = tree(folder)
    del after[page.name]
    assert after == before, "it only looks"
    return page


@pytest.fixture(scope="module")
def specimen(folder):
    return make_specimen(TokenSet(folder), "train", SEQ_LEN + 1)


def decoded(folder, specimen, packing, number):
    """The text of a row of the specimen, from the token set's tokens."""
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids = []
    for part in specimen.rows[packing][number]:
        shard, document = specimen.documents[part.document]
        begin = int(shard.offsets[document]) + part.start
        ids += [tokenizer.bos_id] * part.bos + shard.tokens[begin : begin + part.length].tolist()
    assert len(ids) == SEQ_LEN + 1
    return tokenizer.decode(ids)


# ---------------------------------------------------------------------------- in a browser


SIZES = [(1440, 900), (820, 1180), (390, 844)]
LOOKS = [(SIZES[0], "light"), (SIZES[2], "dark"), (SIZES[1], "light")]


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_page_opens_at_every_size_without_an_error_and_scrolls_only_down(
    browser, page, size, scheme
):
    viewport = {"width": size[0], "height": size[1]}
    tab, wrong = opened(browser, page, viewport=viewport, color_scheme=scheme)
    assert tab.locator(".panel:visible .row:visible").count() == 16
    tab.locator(".panel:visible summary").click()
    assert tab.locator(".panel:visible .row:visible").count() > 32
    table = tab.locator(".packings").first
    assert table.evaluate("table => table.scrollWidth") <= table.locator("..").evaluate(
        "box => box.clientWidth"
    )
    tabs = [tab.locator(".tabs label").nth(i).bounding_box() for i in range(len(variants()))]
    assert max(place["x"] + place["width"] for place in tabs) <= size[0], (
        "every packing can be chosen"
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    red, green, blue = map(
        int, re.findall(r"\d+", tab.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
    )
    assert (red + green + blue > 600) == (scheme == "light")
    bar = tab.locator(".panel:visible .row i").first
    assert bar.evaluate("bar => getComputedStyle(bar).backgroundColor").startswith("oklch("), (
        "a colour of its own"
    )
    assert wrong == []
    ticks = tab.locator(".ticks").first.locator("b")
    boxes = [ticks.nth(number).bounding_box() for number in range(ticks.count())]
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] < right["x"], "labels are apart"


def test_a_click_opens_each_packing_s_rows_as_the_token_set_decodes_them(
    browser, folder, specimen, page
):
    tab, wrong = opened(browser, page)
    for index, packing in enumerate(variants()):
        tab.locator(f"label[for=packing-{index}]").click()
        rows = tab.locator(".panel:visible .row")
        if rows.count() > 16:
            tab.locator(".panel:visible summary").click()
        for number in (0, rows.count() // 2, rows.count() - 1):
            rows.nth(number).click()
            assert tab.locator("#reader-title").text_content() == f"{packing}, row {number}"
            assert tab.locator("#text").evaluate("text => text.textContent") == decoded(
                folder, specimen, packing, number
            )
            boundaries = tab.locator("#text .t")
            assert boundaries.count() > SEQ_LEN / 4, (
                "every second token is told from its neighbours"
            )
            assert tab.locator("#pieces li").count() == rows.nth(number).locator("i").count()
            tab.locator("#close").click()
            assert tab.locator("#reader").is_hidden()
    assert wrong == []


def test_a_text_cannot_become_part_of_the_page(browser, tmp_path, tokenizer_json):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)> &amp; \u2028 é"
    for number in range(2):
        write_parquet(tmp_path / "<b>in" / f"{number}.parquet", [evil] * 40)
    flags = ["--source", "<b>in", "--name", "in", "--val-file", "last"]
    done = run_prepare(*flags, "--tokenizer", tokenizer_json, cwd=tmp_path)
    folder = tmp_path / done.stdout.splitlines()[-1]
    page = tmp_path / "page.html"
    assert cli.main(["report", str(folder), "--seq-len", "512", "--out", str(page)]) == 0
    tab, wrong = opened(browser, page)
    tab.locator(".panel:visible .row").first.click()
    assert f"<|bos|>{evil}<|bos|>" in tab.locator("#text").evaluate("text => text.textContent")
    assert wrong == []


# ---------------------------------------------------------------------------- the figures


@pytest.mark.parametrize("longest", [9, 4_096, 110_217, 12_345_678])
def test_labels_below_a_chart_have_room_on_a_phone(longest):
    """The plot has 304 of 390 pixels there, and a character 6.7."""
    for count in range(2, 40):
        ticks = bars("", [(f"{longest:,} to {2 * longest:,}", 1)] * count, "")["ticks"]
        places = [3.04 * tick["at"] for tick in ticks]
        assert 1 <= len(ticks) <= 7
        assert min(np.diff(places), default=304) > 6.7 * len(ticks[0]["label"])


def test_the_page_is_one_file_with_the_figures_in_it(folder, page):
    html = page.read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(""", html), (
        "nothing from elsewhere"
    )
    assert not re.search(r'<b style="left:[^"]*">[^<]* to ', html), (
        "labels below a chart have room on a phone"
    )
    findings = find(Report(str(folder), SEQ_LEN))
    token_set = findings.token_set
    lengths = [token_set.open(entry).lengths for entry in token_set.split("train")]
    for seq_len in (SEQ_LEN, 512, 1024, 2048, 4096, 8192, 16_384):
        assert f"seq_len {seq_len:,}</caption>" in html
        for packing in variants():
            expected = tally(variants()[packing], lengths, seq_len + 1)
            assert findings.tallies[seq_len][packing] == expected
            for share in expected.shares():
                assert f"<td>{share:.2%}</td>" in html
    ours = findings.tallies[SEQ_LEN]["best_fit"]
    for share, words in (
        (1 - ours.dropped, "of the tokens kept"),
        (ours.filler, "filler"),
        (ours.begin, "of the rows begin with a document"),
        (ours.begin_inserted, "of the rows begin with an inserted BOS"),
        (ours.cut, "of the short documents cut"),
        (ours.tokens_in_cut, "of the tokens are in documents that are cut"),
    ):
        number = f"{share:.0%}" if share in (0, 1) else f"{share:.2%}"
        assert f"<li><b>{number}</b>{words}</li>" in html
    assert re.search(rf"[\d.]+% filler \(of all rows {ours.filler:.2%}\)</p>", html)
    for source in {entry.sources[0] for entry in token_set.entries}:
        shards = [entry for entry in token_set.entries if entry.sources[0] == source]
        documents = sum(entry.documents for entry in shards)
        tokens = sum(entry.tokens for entry in shards)
        cells = f"<td>{shards[0].split}</td><td>{documents:,}</td><td>{tokens:,}</td>"
        assert f'<th scope="row" class="name">{source}</th>{cells}' in html
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])
    assert [packing["name"] for packing in data["packings"]] == list(variants())


def test_the_lines_that_a_report_trains_with_train(folder, page):
    code = unescape(
        re.search(r'<pre class="code" tabindex="0">(.*?)</pre>', page.read_text(), re.DOTALL)[1]
    )
    names: dict = {}
    exec(code, names)
    inputs, _ = next(names["loader"])
    assert inputs.shape == (8, SEQ_LEN)
    names["loader"].close()


def test_the_verdict_says_what_the_lengths_and_the_packings_do():
    lengths = np.array([10] * 61 + [100] * 39)
    tallies = {name: tally(packing, [lengths], 21) for name, packing in variants().items()}
    text = verdict(lengths, tallies, 20)
    assert text.startswith(
        "39% of your documents are longer than a row of 20 + 1 tokens, and hold 86% of the tokens. "
    )
    ours = tallies["best_fit"]
    inside = 1 - tallies["concat"].begin
    for sentence in (
        f"best_fit drops nothing; {ours.begin:.0%} of its rows begin with a document, ",
        f"{ours.begin_inserted:.0%} with an inserted BOS where a longer document goes on; ",
        f"nanochat's policy would drop {tallies['nanochat'].dropped:.0%}; with concat, ",
        f"{inside:.0%} of the rows would begin inside a document, without BOS.",
    ):
        assert sentence in text
    percents = {
        0: "none",
        1e-6: "less than 0.01%",
        0.0004: "0.04%",
        0.005: "0.5%",
        0.394: "39%",
        0.996: "99.6%",
        0.9999: "99.99%",
        0.9999999: "more than 99.99%",
        1: "all",
    }
    assert {share: percent(share) for share in percents} == percents
    numbers = {999: "999", 1500: "1.5k", 999_600: "1M", 1_234_567: "1.23M", 5e15: "5000T"}
    assert {number: short(number) for number in numbers} == numbers


def test_the_statistics_are_counted(folder):
    token_set = TokenSet(folder)
    shards = [token_set.open(entry) for entry in token_set.split("train")]
    lengths = np.concatenate([shard.lengths for shard in shards])
    bins = histogram(lengths)
    for bar in bins:
        inside = lengths[(lengths >= bar.first) & (lengths <= bar.last)]
        assert (bar.documents, bar.tokens) == (len(inside), inside.sum())
    assert all(a.last + 1 == b.first for a, b in zip(bins, bins[1:], strict=False))
    assert sum(bar.documents for bar in bins) == len(lengths)


# ---------------------------------------------------------------------------- bad input


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "set", ignore=shutil.ignore_patterns("*.html"))


def refused(capsys, folder, *messages):
    status, _, error = run(capsys, folder)
    assert status == 1
    assert error.startswith("error: ")
    for message in messages:
        assert message in error
    assert not list(folder.rglob("*.html*")), "no page, nor the beginning of one"


def test_an_unfinished_set_is_refused(copy, capsys):
    (copy / "manifest.json").unlink()
    refused(capsys, copy, "expected a finished token set", "run `tokenmill prepare`")


def test_a_missing_tokenizer_is_named(copy, capsys):
    (copy / "tokenizer.json").unlink()
    refused(capsys, copy, "tokenizer.json", "expected")


def test_a_set_without_documents_is_refused(tmp_path, tokenizer, capsys):
    folder = make_token_set(tmp_path / "set", train=[[]], val=[[3]])
    give_tokenizer(folder, tokenizer)
    refused(capsys, folder, "split 'train' has no documents")


def test_a_page_that_cannot_be_written_leaves_nothing(folder, tmp_path, capsys):
    status, _, error = run(capsys, folder, "--out", tmp_path / "nowhere" / "page.html")
    assert (status, "page.html: cannot be written (" in error) == (1, True)


# ---------------------------------------------------------------------------- views and metadata


def test_a_report_compares_a_view_with_the_set_by_what_is_known_of_documents(
    tokenizer_json, tmp_path, capsys
):
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        table = {
            "text": make_text(40, seed=number, words=8),
            "language": ["en", "de"] * 20,
            "score": list(range(40)),
        }
        pq.write_table(pa.table(table), tmp_path / "corpus" / f"{number}.parquet")
    flags = ["--source", "corpus", "--val-file", "last", "--keep-columns", "language,score"]
    flags += ["--tokenizer", tokenizer_json]
    folder = tmp_path / run_prepare(*flags, cwd=tmp_path).stdout.splitlines()[-1]
    repeat = "case language when 'en' then 2 else 0 end"
    assert cli.main(["view", str(folder), "--name", "en", "--repeat", repeat]) == 0
    of_set = tmp_path / "set.html"
    of_view = tmp_path / "view.html"
    assert cli.main(["report", str(folder), "--out", str(of_set)]) == 0
    assert cli.main(["report", str(folder), "--view", "en", "--out", str(of_view)]) == 0
    assert f"This is the view en (repeat {repeat})" in capsys.readouterr().out
    html = of_set.read_text()
    view = of_view.read_text()
    token_set = TokenSet(folder)
    lengths = np.concatenate([token_set.open(entry).lengths for entry in token_set.split("train")])
    english = int(lengths[::2].sum())
    cells = re.findall(r"<tr><th scope=\"row\">en</th>(.*?)</tr>", view)
    assert [int(n.replace(",", "")) for n in re.findall(r"<td>([\d,]+)</td>", cells[0])] == [
        40,
        english,
        80,
        2 * english,
    ]
    assert "Half of the 80 documents" in view
    assert f"{english:,}" in html
    assert "in the view" not in html
    assert f"tokenmill show {folder} --view en --row 0" in view
    assert f"tokenmill show {folder} --row 0" in html
