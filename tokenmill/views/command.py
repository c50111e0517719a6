"""Chooses and repeats the documents of a token set by what is known of them; nothing is tokenized or written again.

    tokenmill view data/tokens/web --name good --where "score >= 3 and language = 'en'"
    tokenmill view data/tokens/web --name upsampled --repeat "case when score > 4 then 3 else 0.5 end"
    tokenmill view data/tokens/web --name upsampled     shows it: documents and tokens by the values of each column
    tokenmill view data/tokens/web                      lists the views, and the columns that rules may use
    tokenmill view data/tokens/web --update             makes all views again after the set has grown

A rule is SQL, as DuckDB understands it, about one document, by columns that every document has and by those that
`tokenmill prepare --keep-columns` kept. Train on a view by RowLoader(..., view="good"), or as a source of a mixture.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from tokenmill.messages import counted, sanitize
from tokenmill.remote.token_set import open_set
from tokenmill.store.files import read_json, remove_temporary_files
from tokenmill.store.token_sets import TokenSet
from tokenmill.store.views import FOLDER, read_view
from tokenmill.views.documents import KNOWN, DocumentTables, distributions
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
    token_set, has_rule = (
        open_set(config.tokens),
        (config.where, config.repeat, config.cap) != (None,) * 3,
    )
    names = [config.name] if config.name is not None else token_set.view_names()
    if has_rule and (config.update or config.name is None):
        raise ValueError(
            "a rule makes a view, which needs a --name; --update makes views again by the rules they have"
        )
    for name in names:
        if has_rule or config.update:
            kept = {} if has_rule else _facts_of(token_set, name)["rule"]
            _make(
                token_set,
                name,
                Rule(**kept) if kept else Rule(config.where, config.repeat, config.cap),
                console,
            )
        else:
            console.print(_told(token_set, _facts_of(token_set, name)))
    if config.name is None:
        _list_columns(token_set, console)
    elif not has_rule and not config.update:
        _show(token_set, config.name, console)


def _facts_of(token_set: TokenSet, name: str) -> dict[str, Any]:
    """What a view's file says, whatever manifest it is of."""
    is_there = name in token_set.view_names()  # else the error has the names that there are
    return (
        read_json(token_set.view_file(f"{name}.json"), "view")
        if is_there
        else read_view(token_set, name).facts
    )


def _make(token_set: TokenSet, name: str, rule: Rule, console: Console) -> None:
    remove_temporary_files(token_set.path / FOLDER)
    facts = make_view(token_set, name, rule)
    console.print(_told(token_set, facts))
    for split in (split for split, counts in facts["splits"].items() if not counts["documents"]):
        console.print(f"warning: no document of the {split} split counts")
    console.print("\ntrain on it:\n\nfrom tokenmill import RowLoader")
    console.print(
        f"loader = RowLoader({token_set.display_name!r}, view={name!r}, batch_size=8, seq_len=1024)"
    )


def _told(token_set: TokenSet, facts: dict[str, Any]) -> str:
    """What a view keeps, split by split."""
    rule = facts["rule"]
    lines = [f"{facts['name']}: " + " ".join(f"--{flag} {value!r}" for flag, value in rule.items())]
    if facts["manifest"] != token_set.digest:
        lines.append(
            f"  the set has changed since; run `tokenmill view {token_set.display_name} --update`"
        )
        return sanitize("\n".join(lines))
    for split, counts in facts["splits"].items():
        entries, kept = token_set.split(split), counts["documents"]
        documents, tokens = sum(e.documents for e in entries), sum(e.tokens for e in entries)
        more = f", {counts['copies']:,} with repeats" if counts["copies"] != kept else ""
        lines.append(
            f"  {split:5} {kept:,} of {counted(documents, 'document')} ({kept / max(1, documents):.1%}){more}: "
            f"{counted(counts['tokens'], 'token')} an epoch; the set has {tokens:,}"
        )
    if (most := max(map(int, facts["times"]))) > 1:
        lines.append(f"  a document counts up to {most} times in an epoch")
    return sanitize("\n".join(lines))


def _list_columns(token_set: TokenSet, console: Console) -> None:
    if not token_set.view_names():
        console.print(
            f"{token_set.display_name} has no views yet; make one by --name and --where or --repeat"
        )
    columns = DocumentTables(token_set).columns
    kept = ", ".join(
        f"{name} ({getattr(type_, 'value_type', type_)})" for name, type_ in columns.items()
    )
    kept = kept or "none; prepare with --keep-columns"
    console.print(
        sanitize(
            f"\ncolumns that every set has: {', '.join(KNOWN)}\ncolumns that this set keeps: {kept}"
        )
    )


def _show(token_set: TokenSet, name: str, console: Console) -> None:
    for column, lines in distributions(token_set, read_view(token_set, name)):
        names = ("documents", "tokens", "share", "in the view", "tokens", "share")
        table = Table(sanitize(column), *(Column(name, justify="right") for name in names))
        tokens, kept = sum(line.tokens for line in lines), sum(line.view_tokens for line in lines)
        for label, *counts in lines:
            cells = [f"{count:,}" for count in counts]
            shares = f"{counts[1] / max(1, tokens):.1%}", f"{counts[3] / max(1, kept):.1%}"
            table.add_row(sanitize(label), *cells[:2], shares[0], *cells[2:], shares[1])
        console.print(table)
