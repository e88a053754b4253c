"""The records of a sqllogictest file, as the parser reads them and the runner runs them."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Statement:
    """SQL that changes the judge's tables, or that must fail."""

    line: int
    sql: str
    expects: str = "ok"
    """"ok", "error", or "maybe" where the file does not say."""
    connection: str | None = None


@dataclass(frozen=True)
class Query:
    """SQL that has rows."""

    line: int
    sql: str
    types: str = ""
    """A letter per column: I, R, T and others; empty where the file does not say."""
    sort: str = "nosort"
    """"nosort", "rowsort" or "valuesort"."""
    label: str | None = None
    expected: tuple[str, ...] | None = None
    """The lines below `----`; None where there are none."""
    connection: str | None = None
    skipped_by: frozenset[str] = frozenset()
    """Names of engines that the file does not ask; only kept for engines that the parser does not stand for."""

    def unordered(self):
        """This query with its rows in any order."""
        return replace(self, sort="rowsort")


@dataclass(frozen=True)
class Control:
    """Anything else that the runner acts on: `restart`, `load`, `mode`, `halt`, `require`, `include`."""

    line: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """Records that are run once for each value of a variable."""

    line: int
    variables: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    body: list["Record"] = field(default_factory=list)


@dataclass(frozen=True)
class Conditional:
    """A record that runs for some values of a loop's variable: `onlyif i=1`."""

    condition: tuple[str, str, str]
    only: bool
    record: "Record"


Record = Statement | Query | Control | Loop | Conditional
