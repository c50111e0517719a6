"""A token set to be looked at: `tokenmill report data/tokens/NAME`

Writes one HTML page into the token set's folder, which needs no network and opens from disk, and prints the short form.
What it says is counted and packed from the real lengths and tokens (statistics.py, figures.py, specimen.py);
page.py makes the page of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.look import words
from tokenmill.look.figures import PACKINGS, tally
from tokenmill.look.page import Findings, glance, render
from tokenmill.look.specimen import make_specimen
from tokenmill.look.statistics import look, sample
from tokenmill.prepare.progress import Bars, Meter
from tokenmill.remote.addresses import name_of, named, require_folder
from tokenmill.remote.sets import Kept, open_set
from tokenmill.store.files import write_file
from tokenmill.tokenize.tokenizer import Tokenizer

SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16_384)  # that packings are compared at


@dataclass(frozen=True)
class Report:
    """A token set to be looked at: one HTML page, which needs no network, and the short form here.

    Lengths, what each packing does to them, rows drawn and to be read, and what the tokens are.
    """

    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder or address
    seq_len: int = 2048  # tokens of an input in the rows that are drawn
    out: Path | None = None  # the page; by default report.html in the folder; of a set at an address NAME.html here
    cache_dir: str | None = None  # where blocks of a set at an address are kept; by default as TOKENMILL_CACHE says

    def __post_init__(self):
        if self.seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, not {self.seq_len}")

    @property
    def page(self) -> Path:
        require_folder("--out", self.out)
        if self.out:
            return Path(self.out)
        where = named(self.tokens)
        if isinstance(where, str):
            return Path(f"{name_of(where)}.html")
        return where.resolve() / "report.html"


def find(config: Report) -> Findings:
    """Reads the token set. ValueError or FileNotFoundError where it is unfinished or damaged, or has no documents."""
    token_set = open_set(config.tokens, Kept(config.cache_dir))
    tokenizer = Tokenizer.of_set(token_set)
    to_read = sum(entry.tokens for entry in sample(token_set, "train"))
    with Bars() as bars, Meter(bars, "reading", to_read) as meter:
        statistics = look(token_set, "train", lambda tokens: meter.add(0, tokens, 0, tokens))
    seq_lens = sorted({*SEQ_LENS, config.seq_len})
    tallies = {t: {packing: tally(packing, statistics.lengths, t + 1) for packing in PACKINGS} for t in seq_lens}
    return Findings(token_set, tokenizer, statistics, tallies, make_specimen(token_set, "train", config.seq_len + 1))


def print_short(config: Report, found: Findings, console: Console) -> None:
    """The short form: the set at a glance, and what each packing does to it."""
    lengths = found.statistics.all_lengths
    console.print(f"{found.token_set.name}: {', '.join(glance(found.token_set))}")
    for line in words.left_out(found.token_set.manifest):
        console.print(line)
    console.print(words.verdict(lengths, found.tallies[config.seq_len], config.seq_len))
    console.print(f"{words.looked_at(found.statistics)} {words.of_lengths(lengths)}")
    console.print(words.of_tokens(found.statistics.uses, found.tokenizer.token_bytes()))
    console.print(words.of_unused(found.tokenizer, found.statistics.uses)[0])
    tallies = found.tallies[config.seq_len]
    table = Table(f"seq_len {config.seq_len:,}", *tallies)
    for measure, shares in zip(
        words.MEASURES, zip(*(one.shares() for one in tallies.values()), strict=True), strict=True
    ):
        table.add_row(measure, *(f"{share:.2%}" for share in shares))
    table.add_row("pieces a row", *(f"{one.pieces_a_row:.2f}" for one in tallies.values()))
    console.print(table)


def write(config: Report) -> None:
    """Writes the page and prints the short form. ValueError, FileNotFoundError or OSError as `find`, or on writing."""
    page, found = config.page, find(config)
    write_file(page, render(found, config.seq_len).encode())
    print_short(config, found, Console(highlight=False, soft_wrap=True, markup=False))
    print(page)


def main(arguments: list[str], prog: str) -> None:
    """Writes the page that the command line asks for, and prints its path last."""
    write(tyro.cli(Report, prog=prog, args=arguments))
