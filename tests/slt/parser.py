"""Reads sqllogictest files: the format of SQLite, with what DuckDB and sqllogictest-rs (DataFusion) add to it.

https://www.sqlite.org/sqllogictest/doc/trunk/about.wiki, https://duckdb.org/docs/stable/dev/sqllogictest/intro and
https://github.com/risinglightdb/sqllogictest-rs describe the three.
"""

import itertools
import re
from dataclasses import replace

from .records import Conditional, Control, Loop, Query, Statement

_SORTS = {"nosort", "rowsort", "valuesort"}
_CONDITION = re.compile(r"^(\w+)(<>|!=|<=|>=|=|<|>)(.*)$")
_TYPE_SETS = {
    "<signed>": "tinyint smallint integer bigint hugeint",
    "<unsigned>": "utinyint usmallint uinteger ubigint uhugeint",
    "<integral>": "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint",
    "<numeric>": "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint float double",
    "<alltypes>": "bool interval varchar tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint float double",
}
"""Names that DuckDB's `foreach` expands."""


class FormatError(Exception):
    """A line that is no record."""


class Parser:
    """Parses one file's text.

    Args:
        text: The file.
        engines: Names that the judge goes by in `onlyif` and `skipif`.
        kept: Names of engines whose `skipif` is kept in the record, for the caller to act on.
    """

    def __init__(self, text, engines, kept=()):
        self.lines = text.split("\n")
        self.at = 0
        self.engines = {name.lower() for name in engines}
        self.kept = {name.lower() for name in kept}
        self.sort = "nosort"

    def parse(self):
        """All records of the file.

        Raises:
            FormatError: A line begins no record that the formats know; the message has its number.
        """
        records, end = self._block()
        if end is not None:
            raise FormatError(f"line {end}: `endloop` without a loop")
        return records

    def _block(self):
        """Records up to the end of the file or of the loop, and the line of that `endloop`."""
        records, conditions = [], []
        while self.at < len(self.lines):
            number, line = self.at + 1, self.lines[self.at].rstrip()
            words = line.split()
            if not words or words[0].startswith("#"):
                self.at += 1
                continue
            self.at += 1
            if words[0] == "endloop":
                return records, number
            if words[0] in ("onlyif", "skipif"):
                if len(words) < 2:
                    raise FormatError(f"line {number}: {words[0]} without a name")
                conditions.append((words[0] == "onlyif", words[1]))
                continue
            record = self._record(number, words, line)
            record = self._judged(record, conditions)
            conditions = []
            if record is not None:
                records.append(record)
        return records, None

    def _judged(self, record, conditions):
        """The record as far as its conditions allow it; None where they do not."""
        if record is None:
            return None
        for only, name in reversed(conditions):
            condition = _CONDITION.match(name)
            if condition:
                record = Conditional(condition.groups(), only, record)
            elif not only and name.lower() in self.kept and isinstance(record, Query):
                record = replace(record, skipped_by=record.skipped_by | {name.lower()})
            elif only != (name.lower() in self.engines):
                return None
        return record

    def _record(self, number, words, line):
        kind = words[0]
        if kind == "statement":
            return self._statement(number, words)
        if kind == "query":
            return self._query(number, words)
        if kind in ("loop", "concurrentloop"):
            return self._loop(number, words[1:2], self._range(number, words))
        if kind in ("foreach", "concurrentforeach"):
            return self._foreach(number, words)
        if kind == "control":
            if words[1:2] == ["sortmode"] and words[2:3] and words[2] in _SORTS:
                self.sort = words[2]
            return None
        if kind in ("system", "let"):
            self._sql()
            self._results(double=True)
            return Control(number, tuple(words))
        if kind.startswith("hash-threshold"):
            return None
        if re.fullmatch(r"[a-z][a-z_-]*", kind):
            # `require`, `load`, `mode`, `restart`, `sleep`, `subtest` and whatever a newer version adds: one line each.
            return Control(number, tuple(words))
        raise FormatError(f"line {number}: no record begins with {line[:60]!r}")

    def _sql(self):
        """The lines of SQL that follow, up to an empty line or `----`."""
        start = self.at
        while self.at < len(self.lines):
            line = self.lines[self.at].rstrip("\r")
            if not line.strip() or line.strip() == "----":
                break
            self.at += 1
        return "\n".join(line.rstrip("\r") for line in self.lines[start : self.at])

    def _results(self, double=False):
        """The lines below `----`, or None without it; `double`: a message that ends at two empty lines."""
        if self.at >= len(self.lines) or self.lines[self.at].strip() != "----":
            return None
        self.at += 1
        start = self.at
        while self.at < len(self.lines):
            here = self.lines[self.at].strip()
            following = self.lines[self.at + 1].strip() if self.at + 1 < len(self.lines) else ""
            if not here and not (double and following and not self._begins_record(following)):
                break
            self.at += 1
        return tuple(line.rstrip("\r") for line in self.lines[start : self.at])

    def _begins_record(self, line):
        word = line.split()[0]
        return word.startswith("#") or word in {
            "statement", "query", "loop", "foreach", "endloop", "halt", "onlyif", "skipif", "include",
            "require", "mode", "restart", "system", "control", "concurrentloop", "concurrentforeach",
        }  # fmt: skip

    def _statement(self, number, words):
        sql = self._sql()
        expects = words[1] if len(words) > 1 else "ok"
        if expects == "count":
            expects = "ok"
        if expects not in ("ok", "error", "maybe"):
            raise FormatError(f"line {number}: statement {expects!r}; ok, error, maybe or count")
        self._results(double=expects != "ok")
        named = words[2] if len(words) > 2 and expects == "ok" and words[1] == "ok" else None
        return Statement(number, sql, expects, None if named == "retry" else named)

    def _query(self, number, words):
        sql = self._sql()
        rest = words[1:]
        if rest[:1] == ["error"]:
            self._results(double=True)
            return Statement(number, sql, "error")
        expected = self._results()
        types, sort, label, connection = "", None, None, None
        if rest and rest[0] not in _SORTS:
            types, rest = rest[0], rest[1:]
        for word in rest:
            if word == "retry":
                break
            if word in _SORTS and sort is None:
                sort = word
            elif re.fullmatch(r"con(nection)?\w*", word) and sort is None:
                connection = word
            else:
                label = word
        return Query(number, sql, types, sort or self.sort, label, expected, connection)

    def _range(self, number, words):
        try:
            start, stop = int(words[2]), int(words[3])
        except (IndexError, ValueError):
            raise FormatError(f"line {number}: a loop needs a variable and two numbers") from None
        return [(str(value),) for value in range(start, stop)]

    def _foreach(self, number, words):
        if len(words) < 3:
            raise FormatError(f"line {number}: foreach needs a variable and values")
        variables, values = tuple(words[1].split(",")), []
        for word in words[2:]:
            if word in _TYPE_SETS:
                values += _TYPE_SETS[word].split()
            elif word.startswith("!"):
                values = [value for value in values if value != word[1:]]
            else:
                values.append(word)
        tuples = [tuple(value.split(",")) if len(variables) > 1 else (value,) for value in values]
        return self._loop(number, variables, tuples)

    def _loop(self, number, variables, values):
        body, end = self._block()
        if end is None:
            raise FormatError(f"line {number}: a loop without `endloop`")
        return Loop(number, tuple(variables), tuple(values), body)


def expand(records, variables=None):
    """Yield statements, queries and controls in the order they run, loops unrolled and their variables put in."""
    variables = variables or {}
    for record in records:
        if isinstance(record, Loop):
            for values in record.values:
                inner = variables | dict(
                    itertools.zip_longest(record.variables, values, fillvalue="")
                )
                yield from expand(record.body, inner)
        elif isinstance(record, Conditional):
            if _holds(record, variables):
                yield from expand([record.record], variables)
        elif isinstance(record, Control):
            yield Control(record.line, tuple(_put(word, variables) for word in record.words))
        elif isinstance(record, Query):
            expected = record.expected and tuple(_put(one, variables) for one in record.expected)
            yield replace(record, sql=_put(record.sql, variables), expected=expected)
        else:
            yield replace(record, sql=_put(record.sql, variables))


def _put(text, variables):
    for name, value in variables.items():
        text = text.replace("${" + name + "}", value)
    return text


def _holds(record, variables):
    name, operator, value = record.condition
    # Without a loop over that variable it is no condition on one, and the record runs.
    if name not in variables:
        return True
    left, right = variables[name], value
    if left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
        left, right = int(left), int(right)
    holds = {
        "=": left == right,
        "<>": left != right,
        "!=": left != right,
        "<": left < right,
        ">": left > right,
        "<=": left <= right,
        ">=": left >= right,
    }[operator]
    return holds == record.only
