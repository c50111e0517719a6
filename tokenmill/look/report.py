"""Reports on a token set: `tokenmill report data/tokens/NAME`

Writes one HTML page into the token set's folder, and prints a short form. The page needs no network and opens from
disk. Everything in it is computed from the real lengths and tokens (token_stats.py, packing_stats.py, sample_rows.py).
report_page.py makes the page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.addresses import name_of, require_folder
from tokenmill.look import report_text
from tokenmill.look.loss_stats import look_at_loss
from tokenmill.look.packing_stats import tally, variants
from tokenmill.look.report_page import Findings, glance, render, view_in_words
from tokenmill.look.sample_rows import make_specimen
from tokenmill.look.token_stats import look, sample
from tokenmill.prepare.progress import Progress
from tokenmill.remote.token_set import CacheConfig, open_set
from tokenmill.store.columns import META
from tokenmill.store.files import write_file
from tokenmill.store.set_names import set_folder
from tokenmill.store.token_sets import TokenSet
from tokenmill.tokenize.tokenizer import Tokenizer

SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16_384)  # packings are compared at these


@dataclass(frozen=True)
class Report:
    """Report on a token set: write one HTML page, which needs no network, and print a short form.

    The page has document lengths, what each packing does to them, rows drawn and readable, and what the tokens are. Of
    a chat set, it also has what bears loss, and what each choice of long_documents loses.
    """

    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder or address
    seq_len: int = 2048  # tokens of an input, in the rows that the page draws
    out: Path | None = None  # the page; by default report.html in the folder, or NAME.html here for a remote set
    view: str | None = None  # report on the documents of this view, each as often as it counts
    cache_dir: str | None = None  # where to cache blocks of a remote set; by default TOKENMILL_CACHE

    def __post_init__(self):
        if self.seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, not {self.seq_len}")

    @property
    def page(self) -> Path:
        require_folder("--out", self.out)
        if self.out:
            return Path(self.out)
        location = set_folder(self.tokens)
        if isinstance(location, str):
            return Path(f"{name_of(location)}.html")
        return location.resolve() / "report.html"


def find(config: Report) -> Findings:
    """Reads the token set. Raises ValueError or FileNotFoundError if it is unfinished, damaged, or has no documents."""
    token_set = open_set(config.tokens, CacheConfig(config.cache_dir)).viewed(config.view)
    tokenizer = Tokenizer.of_set(token_set)
    to_read = sum(entry.tokens for entry in sample(token_set, "train"))
    with Progress() as progress:
        progress.begin("reading", to_read)
        statistics = look(token_set, "train", lambda tokens: progress.add(0, tokens, 0, tokens))
    seq_lens = sorted({*SEQ_LENS, config.seq_len})
    labels = variants(token_set.is_chat)
    loss = look_at_loss(token_set, "train", seq_lens) if token_set.is_chat else None
    first, lengths = (None if loss is None else loss.first), statistics.lengths
    tallies = {t: {label: tally(label, lengths, t + 1, first_targets=first) for label in labels} for t in seq_lens}
    specimen = make_specimen(token_set, "train", config.seq_len + 1)
    return Findings(token_set, tokenizer, statistics, tallies, loss, specimen, _columns(token_set))


def _columns(token_set: TokenSet) -> list[tuple[str, list[Any]]]:
    """Documents and tokens by what is known of them; nothing for a set that keeps no columns and has no view."""
    has_metadata = META.suffix in token_set.record(token_set.entries[0])
    if not has_metadata and token_set.view is None:
        return []
    from tokenmill.views.distribution import distributions  # and pyarrow

    return distributions(token_set, token_set.view, sample(token_set, "train"))


def print_short(config: Report, found: Findings, console: Console) -> None:
    """Prints the short form: the set at a glance, and what each packing does to it."""
    console.print(f"{found.token_set.name}: {', '.join(glance(found.token_set))}")
    if view := view_in_words(found.token_set):
        console.print(view)
    for line in report_text.left_out(found.token_set):
        console.print(line)
    console.print(found.verdict(config.seq_len))
    console.print(f"{report_text.looked_at(found.statistics)} {found.lengths_in_words}")
    console.print(report_text.of_tokens(found.statistics.uses, found.tokenizer.token_bytes()))
    console.print(report_text.of_unused(found.tokenizer, found.statistics.uses)[0])
    tallies = found.tallies[config.seq_len]
    table = Table(f"seq_len {config.seq_len:,}", *tallies)
    for measure, cells in report_text.table(tallies, config.seq_len, found.loss):
        table.add_row(measure, *cells)
    console.print(table)


def write(config: Report) -> None:
    """Writes the page and prints the short form. Raises what `find` raises, or OSError if it cannot write."""
    page, found = config.page, find(config)
    write_file(page, render(found, config.seq_len).encode())
    print_short(config, found, Console(highlight=False, soft_wrap=True, markup=False))
    print(page)


def main(arguments: list[str], prog: str) -> None:
    """Writes the page for these command-line arguments, and prints its path last."""
    write(tyro.cli(Report, prog=prog, args=arguments))
