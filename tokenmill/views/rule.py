"""A view's rule: how often a document counts, in SQL that DuckDB evaluates document by document.

    Rule(where="score >= 3 and language = 'en'")                  1 where it is true, else 0
    Rule(repeat="case when score >= 4 then 2.5 else 1 end")       a number, whole or with a fraction
    Rule(where="tokens < 8192", repeat="score", cap=4)            of those where it is true, score times, at most 4

A rule sees one document at a time, so it gives the same for it whatever other documents there are: window functions,
aggregates, subqueries, and functions that depend on chance or the time are refused.
"""

import difflib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill.extras import naming_the_extra
from tokenmill.humanize import counted
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
ONE_BY_ONE = "a rule sees one document at a time"


@dataclass(frozen=True)
class Rule:
    """How often a document counts. Raises ValueError if there is neither `where` nor `repeat`."""

    where: str | None = None
    repeat: str | None = None
    cap: int | None = None

    def __post_init__(self) -> None:
        if self.where is None and self.repeat is None:
            raise ValueError("a view needs a rule: pass --where, --repeat, or both")
        if self.cap is not None and not 1 <= self.cap <= MOST:
            raise ValueError(f"--cap must be from 1 to {MOST}, not {self.cap}")

    def as_dict(self) -> dict[str, Any]:
        """As the view's JSON has it."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @property
    def sql(self) -> str:
        """The number of times as one expression; NULL in `where` is false, and in `repeat` an error."""
        if self.where is None:
            return f"(\n{self.repeat}\n)"
        return f"CASE WHEN (\n{self.where}\n) THEN (\n{'1' if self.repeat is None else self.repeat}\n) ELSE 0 END"


class Evaluator:
    """Evaluates a rule over tables of documents that have some of `columns`.

    Raises ValueError for a rule that is no SQL, that names a column that there is not, or that does not give a number
    for a document alone.
    """

    def __init__(self, rule: Rule, columns: list[str]):
        self.rule, self._types = rule, dict[str, pa.DataType]()
        self._database = duckdb.connect(
            config={"enable_external_access": "false", "allow_community_extensions": "false"}
        )
        by_name: dict[str, list[str]] = {}
        for name in columns:
            by_name.setdefault(name.lower(), []).append(name)
        named: dict[str, None] = {}
        for flag, expression in (("--where", rule.where), ("--repeat", rule.repeat)):
            for name in self._columns(flag, expression) if expression is not None else ():
                if name.lower() not in by_name:
                    raise self._no_such_column(flag, expression, name, columns)
                one, *others = by_name[name.lower()]
                if others:
                    raise ValueError(
                        f"{flag} {expression}: the set keeps columns {', '.join((one, *others))}, which SQL cannot "
                        "tell apart; rename them in the source, and prepare it under another --name"
                    )
                named[one] = None
        self.columns = list(named)

    @staticmethod
    def _no_such_column(flag: str, expression: str | None, name: str, columns: list[str]) -> ValueError:
        near = difflib.get_close_matches(name, columns, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        if f'"{name}"' in (expression or ""):
            hint = f" (a text is written '{name}', in single quotes)"
        return ValueError(
            f"{flag} {expression}: there is no column {name!r}{hint}; there are {', '.join(columns)}; keep more "
            "columns by `tokenmill prepare --keep-columns`, under another --name"
        )

    def _columns(self, flag: str, expression: str) -> list[str]:
        """The names of the columns in an expression, after checking it."""
        query = _quoted(f"SELECT {expression}\nFROM documents")  # on a line of its own, as a comment ends with its line
        text = self._one(f"SELECT json_serialize_sql({query})")
        tree = json.loads(text)
        statements = tree.get("statements", [])
        if tree.get("error") or len(statements) != 1:
            problem = tree.get("error_message", f"{len(statements)} statements")
            raise ValueError(f"{flag} {expression}: expected an SQL expression, found {problem}")
        node = statements[0]["node"]
        if node.get("type") != "SELECT_NODE" or len(node["select_list"]) != 1 or _has_more(node):
            raise ValueError(f"{flag} {expression}: expected one SQL expression, found a query")
        found: list[str] = []
        self._walk(flag, expression, node["select_list"][0], found)
        return found

    def _walk(self, flag: str, expression: str, node: Any, found: list[str]) -> None:
        if isinstance(node, list):
            for one in node:
                self._walk(flag, expression, one, found)
        if not isinstance(node, dict):
            return
        kind = node.get("class")
        if kind in REFUSED:
            raise ValueError(f"{flag} {expression}: {REFUSED[kind]} is not supported, as {ONE_BY_ONE}")
        if kind == "COLUMN_REF":
            names = node["column_names"]
            found.append(names[1] if len(names) > 1 and names[0].lower() == "documents" else names[0])
        if kind == "FUNCTION":
            given = node.get("arguments") or node.get("children") or ()
            self._require_plain(flag, expression, node["function_name"], len(given))
        for value in node.values():
            self._walk(flag, expression, value, found)

    def _require_plain(self, flag: str, expression: str, function: str, arguments: int) -> None:
        """ValueError for a function of several documents, of chance, or of the time."""
        kinds = self._database.execute(
            "SELECT function_type, stability FROM duckdb_functions() WHERE function_name = ?", [function.lower()]
        ).fetchall()
        if any(kind == "aggregate" for kind, _ in kinds):
            raise ValueError(f"{flag} {expression}: {function} is of several documents, and {ONE_BY_ONE}")
        # of functions like year(), only the forms for times with a zone depend on a setting, which is fixed here
        stable = {stability for kind, stability in kinds if kind != "table"}
        is_age_of_today = function.lower() == "age" and arguments == 1
        if "VOLATILE" in stable or stable == {"CONSISTENT_WITHIN_QUERY"} or is_age_of_today:
            raise ValueError(
                f"{flag} {expression}: {function} does not give the same each time, and a view must be the same "
                "whenever it is made; to take a part at random use --repeat 0.1"
            )

    def _one(self, query: str) -> Any:
        ((value,),) = self._database.execute(query).fetchall()
        return value

    def times(self, rows: pa.Table, where: str) -> np.ndarray:
        """How often each document of a table counts: (rows,) float64, from 0 to 255. `where` names the table in errors.

        ValueError if the rule fails, or gives something that is no such number.
        """
        self._require_same_types(rows, where)
        try:
            database = self._database.cursor()
            database.execute("SET TimeZone = 'UTC'")  # or a rule over times would depend on the machine
            database.register("documents", rows)
            self._require_truth(database)
            query = f"SELECT CAST({self.rule.sql} AS DOUBLE) AS times FROM documents"
            found = database.execute(query).fetchnumpy()["times"]
        except duckdb.Error as error:
            raise ValueError(f"{where}: the rule cannot be evaluated: {str(error).splitlines()[0]}") from error
        if len(found) != len(rows):
            raise ValueError(f"the rule gave {len(found):,} numbers for {len(rows):,} documents; {ONE_BY_ONE}")
        if nulls := int(np.ma.count_masked(found)):
            raise ValueError(
                f"{where}: --repeat gives NULL for {counted(nulls, 'document')}; say what they count, by an `else 0` "
                "or coalesce(..., 0), or leave them out by --where"
            )
        times = np.asarray(np.ma.getdata(found), np.float64)
        if self.rule.cap is not None:
            times = np.minimum(times, self.rule.cap)
        wrong = ~((times >= 0) & (times <= MOST))
        if wrong.any():
            first = times[wrong][0]
            hint = f", or pass --cap {MOST}" if first > MOST else ", as to greatest(0, ...)" if first < 0 else ""
            raise ValueError(
                f"{where}: {counted(int(wrong.sum()), 'document')} would not count from 0 to {MOST} times, the first "
                f"of them {first:g} times: change the rule{hint}"
            )
        return times

    def _require_truth(self, database: "duckdb.DuckDBPyConnection") -> None:
        """ValueError if `where` is not true or false: a number would be true for all documents but 0."""
        if self.rule.where is None:
            return
        database.execute(f"SELECT (\n{self.rule.where}\n) AS it FROM documents LIMIT 0")
        assert database.description is not None, "a query was made"
        found = str(database.description[0][1])
        if found.upper() not in ("BOOLEAN", "BOOL", '"NULL"', "NULL"):
            raise ValueError(f"--where {self.rule.where}: expected what is true or false, found {found}; compare it")

    def _require_same_types(self, rows: pa.Table, where: str) -> None:
        """ValueError if a column is text in some shards and a number in others: a rule would mean two things."""
        for name in self.columns:
            kind = _kind(rows.schema.field(name).type)
            known = self._types.setdefault(name, kind) if kind is not None else None
            if known is not None and known != kind:
                raise ValueError(
                    f"{where}: column {name!r} is {kind} here and {known} in shards before; prepare the set again from "
                    "a source with one type"
                )


def _kind(type_: pa.DataType) -> str | None:
    """A type as far as rules tell types apart; None for one without values."""
    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_null(value):
        return None
    if pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value):
        return "a number"
    if pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value):
        return "text"
    return "a struct" if pa.types.is_struct(value) else str(value)


def _has_more(node: dict[str, Any]) -> bool:
    """Whether a query has more than what it selects: a condition, groups, another table."""
    parts = ("where_clause", "having", "qualify", "sample", "group_expressions", "modifiers")
    has_alias = any(one.get("alias") for one in node["select_list"])
    return has_alias or any(node.get(part) for part in parts) or node["from_table"].get("table_name") != "documents"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
