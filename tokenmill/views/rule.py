"""A view's rule: how often a document counts, in SQL that DuckDB evaluates document by document.

    Rule(where="score >= 3 and language = 'en'")                  1 where it is true, else 0
    Rule(repeat="case when score >= 4 then 2.5 else 1 end")       a number, whole or with a fraction
    Rule(where="tokens < 8192", repeat="score", cap=4)            of those where it is true, score times, at most 4

A rule sees one document at a time, so it gives the same for it whatever other documents there are: window functions,
aggregates, subqueries, and functions that depend on chance or the time are refused.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.checks import whole_number
from tokenmill.extras import naming_the_extra
from tokenmill.messages import counted
from tokenmill.store.views import MOST

with naming_the_extra("view"):
    import duckdb

REFUSED = {"WINDOW": "a window function", "SUBQUERY": "a subquery", "STAR": "*"}
REFUSED |= {"POSITIONAL_REFERENCE": "a position like #1", "PARAMETER": "a parameter like $1"}
MORE = (
    "where_clause",
    "having",
    "qualify",
    "sample",
    "group_expressions",
    "modifiers",
)  # that a query may have
ONE_BY_ONE = "a rule sees one document at a time"


@dataclass(frozen=True)
class Rule:
    """How often a document counts. Raises ValueError if there is neither `where` nor `repeat`."""

    where: str | None = None
    repeat: str | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if (self.where, self.repeat) == (None, None):
            raise ValueError("a view needs a rule: pass --where, --repeat, or both")
        if self.cap is not None:
            object.__setattr__(self, "cap", whole_number("--cap", self.cap, 1, MOST))


class Evaluator:
    """Evaluates a rule over tables of documents. ValueError for one that is no SQL, or names other columns."""

    def __init__(self, rule: Rule, columns: Sequence[str]):
        self.rule, named = rule, dict[str, None]()
        config: dict[str, Any] = {
            "enable_external_access": "false",
            "allow_community_extensions": "false",
        }
        self._database = duckdb.connect(config=config)
        self._database.execute(
            "SET TimeZone = 'UTC'"
        )  # or a rule over times would depend on the machine
        for flag, expression in (("--where", rule.where), ("--repeat", rule.repeat)):
            for name in (
                self._columns(f"{flag} {expression}", expression) if expression is not None else ()
            ):
                same = [column for column in columns if column.lower() == name.lower()]
                if len(same) != 1:
                    said = (
                        f"there is no column {name!r}"
                        if not same
                        else f"{' and '.join(same)} differ in case alone"
                    )
                    raise ValueError(
                        f"{flag} {expression}: {said}; the columns are {', '.join(columns)}; write texts in single "
                        "quotes, or prepare with other --keep-columns"
                    )
                named[same[0]] = None
        self.columns = list(named)

    def _columns(self, shown: str, expression: str) -> Iterator[str]:
        """The names of the columns in an expression, after checking it."""
        query = f"SELECT {expression}\nFROM documents"  # on a line of its own, as a comment ends with its line
        ((text,),) = self._database.execute(
            "SELECT json_serialize_sql(?::VARCHAR)", [query]
        ).fetchall()
        tree = json.loads(text)
        if tree.get("error"):
            found = tree["error_message"].replace('at or near "FROM"', "at its end")  # that is ours
            raise ValueError(f"{shown}: expected an SQL expression, found {found}")
        node, *others = [statement["node"] for statement in tree["statements"]]
        selected, table = node.get("select_list", []), node.get("from_table", {}).get("table_name")
        if (
            others
            or len(selected) != 1
            or selected[0].get("alias")
            or any(map(node.get, MORE))
            or table != "documents"
        ):
            raise ValueError(f"{shown}: expected one SQL expression, found a query")
        for part in _parts(selected):
            if (kind := part.get("class")) in REFUSED:
                raise ValueError(f"{shown}: {REFUSED[kind]} is not supported, as {ONE_BY_ONE}")
            if kind == "COLUMN_REF":
                names = part["column_names"]
                yield names[1] if len(names) > 1 and names[0].lower() == "documents" else names[0]
            if kind == "FUNCTION":
                given = part.get("arguments") or part.get("children") or ()
                self._require_plain(shown, part["function_name"], len(given))

    def _require_plain(self, shown: str, function: str, arguments: int) -> None:
        """ValueError for a function of several documents, of chance, or of the time."""
        kinds = self._database.execute(
            "SELECT function_type, stability FROM duckdb_functions() WHERE function_name = ?",
            [function.lower()],
        ).fetchall()
        if any(kind == "aggregate" for kind, _ in kinds):
            raise ValueError(f"{shown}: {function} is of several documents, and {ONE_BY_ONE}")
        # of functions like year(), only the forms for times with a zone depend on a setting, which is fixed here
        stable = {stability for kind, stability in kinds if kind != "table"}
        is_age_of_today = function.lower() == "age" and arguments == 1
        if "VOLATILE" in stable or stable == {"CONSISTENT_WITHIN_QUERY"} or is_age_of_today:
            hint = "a view must; to take a part at random use --repeat 0.1"
            raise ValueError(f"{shown}: {function} does not give the same each time, and {hint}")

    def times(self, rows: pa.Table, where: str) -> np.ndarray:
        """How often each document of a table counts: (rows,) float64, from 0 to 255. `where` names the table in errors.

        ValueError if the rule fails, or gives something that is no such number.
        """
        try:
            self._database.register("documents", rows)
            where_is, repeat = self.rule.where or "true", self.rule.repeat or "1"
            truth = self._database.execute(
                f"SELECT typeof((\n{where_is}\n)) FROM documents LIMIT 1"
            )
            (kind,) = truth.fetchone() or ("BOOLEAN",)
            if kind not in ("BOOLEAN", '"NULL"'):  # a number would be true for all documents but 0
                raise ValueError(
                    f"--where {self.rule.where}: expected what is true or false, found {kind}; compare it"
                )
            times = f"CASE WHEN (\n{where_is}\n) THEN (\n{repeat}\n) ELSE 0 END"  # NULL in `where` is false
            found = self._database.execute(
                f"SELECT CAST({times} AS DOUBLE) AS times FROM documents"
            )
            column = found.fetchnumpy()["times"]
        except duckdb.Error as error:
            said = str(error).partition("\nLINE ")[0].split()
            raise ValueError(
                f"{where}: the rule cannot be evaluated: {' '.join(said)[:300]}"
            ) from error
        if len(column) != len(rows):
            raise ValueError(
                f"the rule gave {len(column):,} numbers for {len(rows):,} documents; {ONE_BY_ONE}"
            )
        if nulls := int(np.ma.count_masked(column)):
            hint = "say what they count, by coalesce(..., 0), or leave them out by --where"
            raise ValueError(
                f"{where}: --repeat gives NULL for {counted(nulls, 'document')}; {hint}"
            )
        counts = np.minimum(np.asarray(np.ma.getdata(column), np.float64), self.rule.cap or np.inf)
        wrong = counts[~((counts >= 0) & (counts <= MOST))]
        if len(wrong):
            raise ValueError(
                f"{where}: {counted(len(wrong), 'document')} would not count from 0 to {MOST} times, the first of them "
                f"{wrong[0]:g} times: change the rule, as to greatest(0, ...), or pass --cap"
            )
        return counts


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _parts(one)
