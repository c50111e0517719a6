"""Reports on a token set: one HTML page in the set's folder, and a short form in the terminal.

    tokenmill report data/tokens/NAME

Everything is counted in real lengths and tokens, and packings are run, not estimated.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.addresses import name_of, path_of, require_folder
from tokenmill.look import report_text
from tokenmill.look.packing_stats import Tally, tally, variants
from tokenmill.look.report_page import Findings, glance, render, view_in_words
from tokenmill.look.sample_rows import make_specimen
from tokenmill.look.set_statistics import lengths_of, look_at_loss, sample
from tokenmill.remote.token_set import CacheConfig, open_set
from tokenmill.store.columns import META
from tokenmill.store.files import write_file
from tokenmill.store.set_names import set_folder
from tokenmill.tokenize.tokenizer import Tokenizer

SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16_384)  # packings are compared at these


@dataclass(frozen=True)
class Report:
    """Report on a token set: write one HTML page and print a short form."""

    # the token set's folder, name or address
    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    seq_len: int = 2048  # tokens of an input, in the rows that the page draws
    # the page; by default report.html in the folder, or NAME.html here for a remote set
    out: Path | None = None
    view: str | None = None  # report on the documents of this view, each as often as it counts
    cache_dir: str | None = None  # where to cache files of a remote set; by default TOKENMILL_CACHE

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, not {self.seq_len}")


def find(config: Report) -> Findings:
    """Reads the token set.

    Raises ValueError or FileNotFoundError if it is unfinished, damaged, or has no documents.
    """
    token_set = open_set(config.source, CacheConfig(config.cache_dir)).viewed(config.view)
    tokenizer = Tokenizer.of_set(token_set)
    entries = sample(token_set, "train")
    lengths = lengths_of(token_set, entries)
    seq_lens = sorted({*SEQ_LENS, config.seq_len})
    loss = None
    first_targets = None
    if token_set.is_chat:
        loss = look_at_loss(token_set, entries, seq_lens)
        first_targets = loss.first
    tallies: dict[int, dict[str, Tally]] = {}
    for seq_len in seq_lens:
        tallies[seq_len] = {
            label: tally(packing, lengths, seq_len + 1, first_targets=first_targets)
            for label, packing in variants(token_set.is_chat).items()
        }
    columns = []
    has_metadata = META.suffix in token_set.record(token_set.entries[0])
    if has_metadata or token_set.view is not None:
        from tokenmill.views.distributions import distributions  # and pyarrow

        columns = distributions(token_set, token_set.view, entries)
    return Findings(
        token_set=token_set,
        tokenizer=tokenizer,
        lengths=lengths,
        shards=len(entries),
        tallies=tallies,
        loss=loss,
        specimen=make_specimen(token_set, "train", config.seq_len + 1),
        columns=columns,
    )


def print_short(findings: Findings, seq_len: int, console: Console) -> None:
    """Prints the set at a glance, and what each packing does to it."""
    token_set = findings.token_set
    amounts = ", ".join(glance(token_set))
    console.print(f"{token_set.name}: {amounts}")
    view = view_in_words(token_set)
    if view:
        console.print(view)
    for line in report_text.left_out(token_set):
        console.print(line)
    console.print(findings.verdict(seq_len))
    console.print(f"{findings.looked_at} {findings.lengths_in_words}")
    tallies = findings.tallies[seq_len]
    table = Table(f"seq_len {seq_len:,}", *tallies)
    for measure, cells in report_text.table(tallies, seq_len, findings.loss):
        table.add_row(measure, *cells)
    console.print(table)


def main(arguments: list[str], prog: str) -> None:
    """Reports on what these command-line arguments name, and prints the path of a page last."""
    config = tyro.cli(Report, prog=prog, args=arguments, description=__doc__)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    require_folder("--out", config.out)
    location = set_folder(config.source)
    with console.status("running each packing on the lengths of the documents"):
        findings = find(config)
    if config.out:
        page = path_of(config.out)
    elif isinstance(location, str):
        page = Path(f"{name_of(location)}.html")
    else:
        page = location.resolve() / "report.html"
    write_file(page, render(findings, config.seq_len).encode())
    print_short(findings, config.seq_len, console)
    console.print(str(page))
