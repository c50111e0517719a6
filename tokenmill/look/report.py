"""Reports on a token set, or on text that was never prepared.

    tokenmill report data/tokens/NAME    one HTML page in the set's folder, and a short form
    tokenmill report web/*.jsonl         what each packing would do to this text, from a sample

Everything is counted in real lengths and tokens, and packings are run, not estimated.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from tokenmill.addresses import name_of, require_folder
from tokenmill.look import report_text
from tokenmill.look.packing_stats import Tally, tally, variants
from tokenmill.look.report_page import Findings, glance, render, view_in_words
from tokenmill.look.sample_rows import make_specimen
from tokenmill.look.set_statistics import lengths_of, look_at_loss, sample
from tokenmill.messages import counted, in_bytes, in_time
from tokenmill.remote.token_set import CacheConfig, open_set
from tokenmill.store.columns import META
from tokenmill.store.files import write_file
from tokenmill.store.set_names import set_folder
from tokenmill.text.formats import format_of
from tokenmill.tokenize.tokenizer import Tokenizer

SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16_384)  # packings are compared at these
SAMPLE_SEQ_LENS = (2048, 8192)  # and for text that was not prepared
OTHERS = (
    "crop is that of long_documents, nanochat is its loader, concat that of llm.c and Megatron, "
    "random that of nanoGPT"
)


@dataclass(frozen=True)
class Report:
    """Report on a token set: write one HTML page and print a short form.

    Or print what packings would do to text.
    """

    # a token set's folder, name or address; or files of text, or a folder of them (./web if a set
    # is called web)
    source: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="TOKENS|FILES")]]
    # tokens of an input, in the rows that the page draws; of text, in one more table
    seq_len: int = 2048
    # the page; by default report.html in the folder, or NAME.html here for a remote set
    out: Path | None = None
    view: str | None = None  # report on the documents of this view, each as often as it counts
    cache_dir: str | None = None  # where to cache files of a remote set; by default TOKENMILL_CACHE
    # of text that was not prepared: as for prepare, but not train:N; by default gpt2
    tokenizer: str | None = None
    text_column: str | None = None  # of text that was not prepared; by default text

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ValueError(f"seq_len must be at least 1, not {self.seq_len}")

    @property
    def is_text(self) -> bool:
        """Whether the source is text: files, or a folder with files of text and no token sets."""
        path = set_folder(self.source[0])
        if isinstance(path, str):
            return False
        if any(path.glob("shards")) or any(path.glob("*/shards")):
            return False
        if format_of(path.name) is not None:
            return True
        return any(format_of(file.name) for file in path.rglob("*"))


def find(config: Report) -> Findings:
    """Reads the token set.

    Raises ValueError or FileNotFoundError if it is unfinished, damaged, or has no documents.
    """
    token_set = open_set(config.source[0], CacheConfig(config.cache_dir)).viewed(config.view)
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
    rows = report_text.table(tallies, seq_len, findings.loss)
    _print_table(rows, list(tallies), seq_len, console)


def print_text(config: Report, console: Console) -> None:
    """Prints what packings would do to text, from a sample of it. Raises as `sample_text` does."""
    from tokenmill.look.text_sample import sample_text  # and the packages of prepare

    try:
        sampled = sample_text(config.source, config.tokenizer, config.text_column, console.print)
    except ValueError as error:
        if "--" not in str(error):
            raise
        raise ValueError(
            f"{error} (report takes --tokenizer and --text-column alone; other flags are those of "
            "tokenmill prepare)"
        ) from error
    lengths = sampled.lengths
    encoder = sampled.encoder
    factor = sampled.whole_bytes / sampled.text_bytes  # all of the text, in samples
    part = "all"
    if factor != 1:
        part = f"{in_bytes(sampled.text_bytes)} of about {in_bytes(sampled.whole_bytes)}"
    documents = counted(len(lengths), "document")
    engine = f"{encoder.tokenizer.name} ({encoder.engine})"
    console.print(f"read {part} of the text, {documents}, and tokenized it with {engine}")
    console.print(report_text.of_lengths(lengths, "documents"))
    tokens = int(lengths.sum() * factor)
    size = in_bytes(tokens * encoder.dtype.itemsize)
    time = in_time(math.ceil(sampled.seconds * factor / sampled.cores))
    console.print(
        f"about {tokens:,} tokens in all, {size}; to tokenize them takes about {time} on "
        f"{sampled.cores} cores"
    )
    for seq_len in sorted({*SAMPLE_SEQ_LENS, config.seq_len}):
        tallies = {
            label: tally(packing, [lengths], seq_len + 1) for label, packing in variants().items()
        }
        _print_table(report_text.table(tallies, seq_len, None), list(tallies), seq_len, console)
    console.print(f"{OTHERS}. {report_text.MEASURES_IN_WORDS}")


def _print_table(
    rows: list[tuple[str, list[str]]], labels: list[str], seq_len: int, console: Console
) -> None:
    table = Table(f"seq_len {seq_len:,}", *labels)
    for measure, cells in rows:
        table.add_row(measure, *cells)
    console.print(table)


def main(arguments: list[str], prog: str) -> None:
    """Reports on what these command-line arguments name, and prints the path of a page last."""
    config = tyro.cli(Report, prog=prog, args=arguments, description=__doc__)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    require_folder("--out", config.out)
    if not config.source:
        raise ValueError(
            "expected a token set, or files of text; `tokenmill list` lists the token sets here"
        )
    is_text = config.is_text
    if len(config.source) > 1 and not is_text:
        raise ValueError(
            f"expected one token set, found {len(config.source):,}; report on them one by one"
        )
    if is_text:
        if config.out or config.view:
            raise ValueError(
                "--out and --view are for token sets, and these are files of text; prepare them "
                "first"
            )
        print_text(config, console)
        return
    if (config.tokenizer, config.text_column) != (None, None):
        raise ValueError(
            "--tokenizer and --text-column are for text that was not prepared, and this is a token "
            "set"
        )
    try:
        location = set_folder(config.source[0])
        findings = find(config)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}; or name files of text, which need not be prepared"
        ) from error
    if config.out:
        page = config.out
    elif isinstance(location, str):
        page = Path(f"{name_of(location)}.html")
    else:
        page = location.resolve() / "report.html"
    write_file(page, render(findings, config.seq_len).encode())
    print_short(findings, config.seq_len, console)
    console.print(str(page))
