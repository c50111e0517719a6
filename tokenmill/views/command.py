"""Chooses and repeats the documents of a token set by what is known of them; nothing is tokenized
or written again.

    tokenmill view data/tokens/web --name good --where "score >= 3 and language = 'en'"
    tokenmill view data/tokens/web --name best --repeat "case when score > 4 then 3 else 0.5 end"
    tokenmill view data/tokens/web --name best    shows it: documents and tokens by each column
    tokenmill view data/tokens/web                lists the views, and the columns for rules
    tokenmill view data/tokens/web --update       makes all views again after the set has grown

A rule is SQL, as DuckDB understands it, about one document, by columns that every document has and
by those that `tokenmill prepare --keep-columns` kept. Train on a view by RowLoader(...,
view="good"), or as a source of a mixture.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from tokenmill.messages import counted, sanitize
from tokenmill.remote.token_set import open_set
from tokenmill.store.columns import KNOWN
from tokenmill.store.files import remove_temporary_files
from tokenmill.store.json_files import read_json
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, read_view
from tokenmill.views.distributions import MOST_VALUES, Line, distributions
from tokenmill.views.documents import DocumentTables
from tokenmill.views.make_view import make_view
from tokenmill.views.rule import Rule


@dataclass(frozen=True)
class ViewCommand:
    """Choose and repeat the documents of a token set by a rule."""

    # the token set's folder
    tokens: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TOKENS")]]
    name: str | None = None  # the view's name; without a rule, shows that view
    # SQL that is true for documents to keep, as "score >= 3 and language = 'en'"
    where: str | None = None
    # SQL for how often a document counts, as 0.5 or "case when score > 4 then 3 else 1 end"
    repeat: str | None = None
    cap: int | None = None  # a document counts at most so many times
    update: bool = False  # make the view again by its rule, or all views: after the set has grown


def main(arguments: list[str], prog: str) -> None:
    """Makes, updates, shows or lists views, as these arguments ask for."""
    config = tyro.cli(ViewCommand, prog=prog, args=arguments, description=__doc__)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    token_set = open_set(config.tokens)
    has_rule = (config.where, config.repeat, config.cap) != (None, None, None)
    if has_rule:
        if config.update or config.name is None:
            raise ValueError(
                "a rule makes a view, which needs a --name; --update makes views again by the "
                "rules they have"
            )
        _make(token_set, config.name, Rule(config.where, config.repeat, config.cap), console)
        return
    names = token_set.view_names() if config.name is None else [config.name]
    for name in names:
        facts = _facts_of(token_set, name)
        if config.update:
            _make(token_set, name, Rule(**facts["rule"]), console)
        else:
            console.print(_summary(token_set, facts))
    if config.name is None:
        _list_columns(token_set, console)
    elif not config.update:
        _show(token_set, config.name, console)


def _facts_of(token_set: TokenSet, name: str) -> dict[str, Any]:
    """What a view's file says, whatever manifest it is of."""
    if name not in token_set.view_names():
        return read_view(token_set, name).facts  # or an error with the names that there are
    return read_json(token_set.view_file(f"{name}.json"), "view")


def _make(token_set: TokenSet, name: str, rule: Rule, console: Console) -> None:
    remove_temporary_files(token_set.path / FOLDER)
    facts = make_view(token_set, name, rule)
    console.print(_summary(token_set, facts))
    for split, counts in facts["splits"].items():
        if not counts["documents"]:
            console.print(f"warning: no document of the {split} split counts")
    console.print("\ntrain on it:\n\nfrom tokenmill import RowLoader")
    console.print(
        f"loader = RowLoader({token_set.display_name!r}, view={name!r}, batch_size=8, seq_len=1024)"
    )


def _summary(token_set: TokenSet, facts: dict[str, Any]) -> str:
    """What a view keeps, split by split."""
    flags = " ".join(f"--{flag} {value!r}" for flag, value in facts["rule"].items())
    lines = [f"{facts['name']}: {flags}"]
    if facts["manifest"] != token_set.digest:
        lines.append(
            f"  the set has changed since; run `tokenmill view {token_set.display_name} --update`"
        )
        return sanitize("\n".join(lines))
    for split, counts in facts["splits"].items():
        entries = token_set.split(split)
        documents = sum(entry.documents for entry in entries)
        tokens = sum(entry.tokens for entry in entries)
        kept = counts["documents"]
        copies = counts["copies"]
        share = kept / max(1, documents)
        repeats = "" if copies == kept else f", {copies:,} with repeats"
        lines.append(
            f"  {split:5} {kept:,} of {counted(documents, 'document')} ({share:.1%}){repeats}: "
            f"{counted(counts['tokens'], 'token')} an epoch; the set has {tokens:,}"
        )
    most = max(map(int, facts["times"]))
    if most > 1:
        lines.append(f"  a document counts up to {most} times in an epoch")
    return sanitize("\n".join(lines))


def _list_columns(token_set: TokenSet, console: Console) -> None:
    if not token_set.view_names():
        console.print(
            f"{token_set.display_name} has no views yet; make one by --name and --where or --repeat"
        )
    known = ", ".join(KNOWN)
    shown = []
    for name, kind in DocumentTables(token_set).columns.items():
        value_type = getattr(kind, "value_type", kind)
        shown.append(f"{name} ({value_type})")
    kept = ", ".join(shown) or "none; prepare with --keep-columns"
    console.print(
        sanitize(f"\ncolumns that every set has: {known}\ncolumns that this set keeps: {kept}")
    )


def _show(token_set: TokenSet, name: str, console: Console) -> None:
    """A table for each column: documents and tokens by its values, in the set and in the view."""
    columns = DocumentTables(token_set).columns
    listed: set[str] = set()
    headings = ("documents", "tokens", "share", "in the view", "tokens", "share")
    for column, lines in distributions(token_set, read_view(token_set, name)):
        table = Table(sanitize(column), *(Column(heading, justify="right") for heading in headings))
        tokens = sum(line.tokens for line in lines)
        view_tokens = sum(line.view_tokens for line in lines)
        for line in lines:
            table.add_row(*_cells(line, tokens, view_tokens))
        console.print(table)
        listed |= {column, column.partition(".")[0]}
    left_out = [name for name in columns if name not in listed]
    if left_out:
        names = ", ".join(left_out)
        console.print(
            sanitize(f"not listed: {names} (lists, bytes, or more than {MOST_VALUES:,} values)")
        )


def _cells(line: Line, tokens: int, view_tokens: int) -> list[str]:
    share = line.tokens / max(1, tokens)
    view_share = line.view_tokens / max(1, view_tokens)
    return [
        sanitize(line.label),
        f"{line.documents:,}",
        f"{line.tokens:,}",
        f"{share:.1%}",
        f"{line.copies:,}",
        f"{line.view_tokens:,}",
        f"{view_share:.1%}",
    ]
