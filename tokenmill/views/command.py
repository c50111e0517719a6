"""Chooses and repeats the documents of a token set by what is known of them; nothing is tokenized or written again.

    tokenmill view data/tokens/web --name good --where "score >= 3 and language = 'en'"
    tokenmill view data/tokens/web --name upsampled --repeat "case when score > 4 then 3 else 0.5 end"
    tokenmill view data/tokens/web --name upsampled     shows it: documents and tokens by the values of each column
    tokenmill view data/tokens/web                      lists the views, and the columns that rules may use
    tokenmill view data/tokens/web --update             makes all views again after the set has grown

A rule is SQL, as DuckDB understands it, about one document. Every document has `tokens` (its length), `shard`,
`source_file` and `split`; `tokenmill prepare --keep-columns` adds what the source says of it. Train on a view by
RowLoader(..., view="good"), or as a source of a mixture.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tokenmill.humanize import counted
from tokenmill.remote.token_set import RemoteTokenSet, open_set
from tokenmill.sanitize import sanitize
from tokenmill.store.files import read_json, remove_temporary_files
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, View, read_view
from tokenmill.views.distribution import distributions
from tokenmill.views.documents import KNOWN, DocumentTables
from tokenmill.views.make_view import make_view
from tokenmill.views.rule import Rule


@dataclass(frozen=True)
class ViewCommand:
    """Choose and repeat the documents of a token set by a rule."""

    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]  # the token set's folder
    name: str | None = None  # the view's name; without a rule, shows that view
    where: str | None = None  # SQL that is true for documents to keep, as "score >= 3 and language = 'en'"
    repeat: str | None = None  # SQL for how often a document counts, as 0.5 or "case when score > 4 then 3 else 1 end"
    cap: int | None = None  # a document counts at most so many times
    update: bool = False  # make the view again by its rule, or all views: after the set has grown

    def __post_init__(self) -> None:
        if self.update and self.has_rule:
            raise ValueError(
                "--update makes a view again by the rule that it has; leave --where, --repeat and --cap out"
            )
        if self.has_rule and self.name is None:
            raise ValueError("a rule makes a view, which needs a name: pass --name")

    @property
    def has_rule(self) -> bool:
        return (self.where, self.repeat, self.cap) != (None, None, None)


def view(config: ViewCommand, console: Console) -> None:
    """Makes, updates, shows or lists views. Raises ValueError or FileNotFoundError for what a user can get wrong."""
    token_set = open_set(config.tokens)
    if config.has_rule:
        assert config.name is not None, "checked"
        _make(token_set, config.name, Rule(config.where, config.repeat, config.cap), console)
    elif config.update:
        names = [config.name] if config.name is not None else token_set.view_names()
        if not names:
            raise ValueError(f"{token_set.display_name}: has no views to update")
        for name in names:
            _make(token_set, name, Rule(**_facts_of(token_set, name)["rule"]), console)
    elif config.name is not None:
        _show(token_set, read_view(token_set, config.name), console)
    else:
        _list(token_set, console)


def _facts_of(token_set: TokenSet, name: str) -> dict[str, Any]:
    """What a view's file says, whatever manifest it is of."""
    if name not in token_set.view_names():
        read_view(token_set, name)  # raises FileNotFoundError with the names that there are
    return read_json(token_set.view_file(f"{name}.json"), "view")


def _make(token_set: TokenSet, name: str, rule: Rule, console: Console) -> None:
    is_known = not isinstance(token_set, RemoteTokenSet) and name in token_set.view_names()
    before = _facts_of(token_set, name)["digest"] if is_known else None
    remove_temporary_files(token_set.path / FOLDER)
    with _progress(2 * token_set.manifest["documents"], console) as count:
        facts = make_view(token_set, name, rule, count)
    for line in _lines(token_set, facts):
        console.print(line)
    if before == facts["digest"]:
        console.print(f"view {name} counts every document as before")
    elif before is not None:
        console.print(f"view {name} has changed: a resumed run takes the new one from its next epoch on")
    if not facts["splits"]["val"]["documents"]:
        console.print("warning: no document of the validation split counts; validate with the whole set: view=None")
    if not facts["splits"]["train"]["documents"]:
        console.print("warning: no document of the training split counts")
    console.print(f"\ntrain on it:\n\nRowLoader({token_set.display_name!r}, view={name!r}, ...)")


@contextmanager
def _progress(documents: int, console: Console) -> Iterator[Callable[[int], None]]:
    if not console.is_terminal:
        yield lambda count: None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("documents", total=documents)
        yield lambda count: progress.advance(task, count)


def _lines(token_set: TokenSet, facts: dict[str, Any]) -> Iterator[str]:
    """What a view keeps, split by split."""
    rule = facts["rule"]
    text = " ".join(f"--{flag} {rule[flag]!r}" for flag in ("where", "repeat", "cap") if rule.get(flag) is not None)
    yield sanitize(f"{facts['name']}: {text}")
    for split, counts in facts["splits"].items():
        entries = token_set.split(split)
        documents, tokens = sum(e.documents for e in entries), sum(e.tokens for e in entries)
        kept, copies = counts["documents"], counts["copies"]
        more = f", {copies:,} with repeats" if copies != kept else ""
        yield (
            f"  {split:5} {kept:,} of {counted(documents, 'document')} ({_percent(kept, documents)}){more}: "
            f"{counts['tokens']:,} of {tokens:,} tokens ({_percent(counts['tokens'], tokens)})"
        )
    most = max(map(int, facts["times"]))
    if most > 1:
        yield f"  a document counts up to {most} times in an epoch"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _list(token_set: TokenSet, console: Console) -> None:
    names = token_set.view_names()
    for name in names:
        facts = _facts_of(token_set, name)
        for line in _lines(token_set, facts):
            console.print(line)
        if facts["manifest"] != token_set.digest:
            console.print(f"  the set has changed since; run `tokenmill view {token_set.display_name} --update`")
    if not names:
        console.print(f"{token_set.display_name} has no views yet; make one by --name and --where or --repeat")
    columns = DocumentTables(token_set).columns
    console.print(f"\ncolumns that every set has: {', '.join(KNOWN)}")
    kept = ", ".join(f"{name} ({getattr(type_, 'value_type', type_)})" for name, type_ in columns.items())
    console.print(sanitize(f"columns that this set keeps: {kept or 'none; prepare with --keep-columns'}"))


def _show(token_set: TokenSet, view: View, console: Console) -> None:
    for text in _lines(token_set, view.facts):
        console.print(text)
    for column in distributions(token_set, view):
        table = Table(sanitize(column.name), "documents", "tokens", "", "in the view", "tokens", "")
        for own in table.columns[1:]:
            own.justify = "right"
        tokens, kept = sum(line.tokens for line in column.lines), sum(line.view_tokens for line in column.lines)
        for line in column.lines:
            table.add_row(
                sanitize(line.label),
                f"{line.documents:,}",
                f"{line.tokens:,}",
                _percent(line.tokens, tokens),
                f"{line.copies:,}",
                f"{line.view_tokens:,}",
                _percent(line.view_tokens, kept),
            )
        console.print(table)


def main(arguments: list[str], prog: str) -> None:
    """Does what these command-line arguments ask for."""
    view(
        tyro.cli(ViewCommand, prog=prog, args=arguments, description=__doc__),
        Console(soft_wrap=True, highlight=False, markup=False),
    )
