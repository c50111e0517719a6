"""A view's rule: how often a document counts, in SQL that DuckDB evaluates document by document.

    Rule(where="score >= 3 and language = 'en'")               1 where it is true, else 0
    Rule(repeat="case when score >= 4 then 2.5 else 1 end")    a number, whole or with a fraction
    Rule(where="tokens < 8192", repeat="score", cap=4)         score times, at most 4, where true

A rule sees one document at a time, so it gives the same for it whatever other documents there are:
window functions, aggregates, subqueries, and functions that depend on chance or the time are
refused.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.checks import text_of, whole_number
from tokenmill.extras import naming_the_extra
from tokenmill.messages import counted
from tokenmill.store.views import MOST

with naming_the_extra("view"):
    import duckdb

REFUSED = {
    "WINDOW": "a window function",
    "SUBQUERY": "a subquery",
    "STAR": "*",
    "POSITIONAL_REFERENCE": "a position like #1",
    "PARAMETER": "a parameter like $1",
}
CLAUSES = ("where_clause", "having", "qualify", "sample", "group_expressions", "modifiers")
ONE_BY_ONE = "a rule sees one document at a time"
SETTINGS = {"enable_external_access": "false", "allow_community_extensions": "false"}


@dataclass(frozen=True)
class Rule:
    """How often a document counts. Raises ValueError if there is neither `where` nor `repeat`."""

    where: str | None = None
    repeat: str | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if (self.where, self.repeat) == (None, None):
            raise ValueError("a view needs a rule: pass --where, --repeat, or both")
        for field in ("where", "repeat"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, text_of(f"--{field}", value))
        if self.cap is not None and self.repeat is None:
            raise ValueError(
                "--cap is for --repeat: by --where alone, a document counts at most once"
            )
        if self.cap is not None:
            object.__setattr__(self, "cap", whole_number("--cap", self.cap, 1, MOST))


class Evaluator:
    """Evaluates a rule over tables of documents.

    ValueError for one that is no SQL, or names other columns.
    """

    def __init__(self, rule: Rule, columns: Sequence[str]):
        self.rule = rule
        config: dict[str, Any] = dict(SETTINGS)
        self._database = duckdb.connect(config=config)
        # or a rule over times would depend on the machine
        self._database.execute("SET TimeZone = 'UTC'")
        used: dict[str, None] = {}  # the columns that the rule names, in order
        for flag, expression in (("--where", rule.where), ("--repeat", rule.repeat)):
            if expression is None:
                continue
            shown = f"{flag} {expression}"
            for name in self._columns(shown, expression):
                used[_column_of(name, columns, shown)] = None
        self.columns = list(used)

    def _columns(self, shown: str, expression: str) -> Iterator[str]:
        """The names of the columns in an expression, after checking it."""
        for node in _nodes(self._select_list(shown, expression)):
            kind = node.get("class")
            if kind in REFUSED:
                raise ValueError(f"{shown}: {REFUSED[kind]} is not supported, as {ONE_BY_ONE}")
            if kind == "LAMBDA":
                raise ValueError(
                    f"{shown}: a lambda or a list comprehension is not supported; use a function "
                    "of lists, as list_contains(tags, 'en')"
                )
            if kind == "COLUMN_REF":
                head, *fields = node["column_names"]
                yield fields[0] if fields and head.lower() == "documents" else head
            if kind == "FUNCTION":
                arguments = node.get("arguments") or node.get("children") or ()
                self._require_plain(shown, node["function_name"], len(arguments))

    def _select_list(self, shown: str, expression: str) -> list[Any]:
        """The syntax tree of an expression. ValueError if it is not one expression."""
        # on a line of its own, as a comment ends with its line
        query = f"SELECT {expression}\nFROM documents"
        try:
            serialized = self._database.execute("SELECT json_serialize_sql(?::VARCHAR)", [query])
        except duckdb.Error as error:
            raise ValueError(
                f"{ascii(shown)}: expected an SQL expression, found {error}"
            ) from error
        ((text,),) = serialized.fetchall()
        tree = json.loads(text)
        if tree.get("error"):
            # the FROM is ours
            problem = tree["error_message"].replace('at or near "FROM"', "at its end")
            raise ValueError(f"{shown}: expected an SQL expression, found {problem}")
        node, *later = [statement["node"] for statement in tree["statements"]]
        selected: list[Any] = node.get("select_list", [])
        is_plain = (
            not later
            and len(selected) == 1
            and not selected[0].get("alias")
            and not any(node.get(clause) for clause in CLAUSES)
            and node.get("from_table", {}).get("table_name") == "documents"
        )
        if not is_plain:
            raise ValueError(f"{shown}: expected one SQL expression, found a query")
        return selected

    def _require_plain(self, shown: str, function: str, num_arguments: int) -> None:
        """ValueError for a function of several documents, of chance, or of the time."""
        query = "SELECT function_type, stability FROM duckdb_functions() WHERE function_name = ?"
        forms = self._database.execute(query, [function.lower()]).fetchall()
        if any(kind == "aggregate" for kind, _ in forms):
            raise ValueError(f"{shown}: {function} is of several documents, and {ONE_BY_ONE}")
        # of functions like year(), only the forms for times with a zone depend on a setting, which
        # is fixed here
        stabilities = {stability for kind, stability in forms if kind != "table"}
        is_of_chance = "VOLATILE" in stabilities
        is_of_the_query = stabilities == {"CONSISTENT_WITHIN_QUERY"}
        is_age_of_today = function.lower() == "age" and num_arguments == 1
        if is_of_chance or is_of_the_query or is_age_of_today:
            raise ValueError(
                f"{shown}: {function} does not give the same each time, and a view must; to take a "
                "part at random use --repeat 0.1"
            )

    def times(self, rows: pa.Table, shown: str) -> np.ndarray:
        """How often each document of a table counts: (rows,) float64, from 0 to 255.

        `shown` names the table in errors. ValueError if the rule fails, or gives something that is
        no such number.
        """
        try:
            column = self._evaluate(rows)
        except duckdb.Error as error:
            words = str(error).partition("\nLINE ")[0].split()
            reason = " ".join(words)[:300]
            raise ValueError(f"{shown}: the rule cannot be evaluated: {reason}") from error
        if len(column) != len(rows):
            raise ValueError(
                f"the rule gave {len(column):,} numbers for {len(rows):,} documents; {ONE_BY_ONE}"
            )
        nulls = int(np.ma.count_masked(column))
        if nulls:
            raise ValueError(
                f"{shown}: --repeat gives NULL for {counted(nulls, 'document')}; say what they "
                "count, by coalesce(..., 0), or leave them out by --where"
            )
        numbers = np.asarray(np.ma.getdata(column), np.float64)
        times = np.minimum(numbers, self.rule.cap or np.inf)
        is_right = (times >= 0) & (times <= MOST)
        wrong = times[~is_right]
        if len(wrong):
            raise ValueError(
                f"{shown}: {counted(len(wrong), 'document')} would not count from 0 to {MOST} "
                f"times, the first of them {wrong[0]:g} times: change the rule, as to "
                "greatest(0, ...), or pass --cap"
            )
        return times

    def _evaluate(self, rows: pa.Table) -> np.ndarray:
        self._database.register("documents", rows)
        where = self.rule.where or "true"
        repeat = self.rule.repeat or "1"
        answer = self._database.execute(f"SELECT typeof((\n{where}\n)) FROM documents LIMIT 1")
        (kind,) = answer.fetchone() or ("BOOLEAN",)
        if kind not in ("BOOLEAN", '"NULL"'):  # a number would be true for all documents but 0
            raise ValueError(
                f"--where {self.rule.where}: expected what is true or false, found {kind}; compare "
                "it"
            )
        # NULL in `where` is false
        times = f"CASE WHEN (\n{where}\n) THEN (\n{repeat}\n) ELSE 0 END"
        answer = self._database.execute(f"SELECT CAST({times} AS DOUBLE) AS times FROM documents")
        column: np.ndarray = answer.fetchnumpy()["times"]
        return column


def _column_of(name: str, columns: Sequence[str], shown: str) -> str:
    """The column that a rule names, in its own spelling. ValueError if there is none, or two."""
    same = [column for column in columns if column.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    problem = f"there is no column {name!r}"
    if same:
        spellings = " and ".join(same)
        problem = f"{spellings} differ in case alone"
    known = ", ".join(columns)
    raise ValueError(
        f"{shown}: {problem}; the columns are {known}; write texts in single quotes, or prepare "
        "with other --keep-columns"
    )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a syntax tree."""
    children = tree if isinstance(tree, list) else []
    if isinstance(tree, dict):
        yield tree
        children = list(tree.values())
    for child in children:
        yield from _nodes(child)
