"""Random predicates and topologies for the differential tests, each made from a seed.

Both engines read the same Parquet files. What they are known to answer differently, and why, is not made at all:

- -0.0: as a key of groups and `DISTINCT` it is another one than 0.0; in DuckDB the two are equal.
- Sums of floats: the result depends on the order of rows, and neither engine promises one.
- Integers in their own width: DuckDB makes `tinyint + tinyint` an error where it overflows, Arrow wraps. Arithmetic is of BIGINT.
- `/` of integers: a float in DuckDB, an integer here. Division by zero: an error here, NULL in DuckDB.
- Literals with a point: decimals in DuckDB, floats here. Floats are compared as DOUBLE with a literal that is cast.
- Floats and timestamps as text, and `upper` of letters that become two: each engine spells them in its own way.
- A backslash in LIKE: an escape here, a character in DuckDB.
- Elements of a list beyond its end are NULL in both; the length of an empty list is not (NULL or 0).
- Values of hive directories that look like floats or booleans: DuckDB keeps fewer types. Integers, dates and text are made.
"""

from dataclasses import dataclass, field
from datetime import UTC


def literal(family, value):
    """A value as SQL that both engines read as the same one."""
    if value is None:
        return "NULL"
    match family:
        case "int":
            return f"CAST({value} AS BIGINT)"
        case "float":
            return f"CAST('{value!r}' AS DOUBLE)"
        case "text":
            return "'" + value.replace("'", "''") + "'"
        case "bool":
            return str(value).upper()
        case "decimal":
            return f"CAST('{value:f}' AS DECIMAL(38, 10))"
        case "date":
            return f"DATE '{value}'"
        case "zoned":
            return f"TIMESTAMPTZ '{value.astimezone(UTC).isoformat(sep=' ')}'"
        case _:
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"


COMPARED = ("int", "float", "text", "decimal", "date", "moment", "zoned")


class Predicates:
    """Random predicates over the columns of tables.

    Args:
        rng: What they follow from.
        columns: (how SQL names it, its family, values of it) of each column.
    """

    def __init__(self, rng, columns):
        self.rng = rng
        self.columns = columns

    def pick(self, *families):
        """A column of one of the families; None where there is none."""
        fitting = [column for column in self.columns if column[1] in families]
        return self.rng.choice(fitting) if fitting else None

    def term(self, family):
        """An expression of the family, and values that it may have."""
        rng, (name, _, values) = self.rng, self.pick(family)
        if family == "int":
            wide = f"CAST({name} AS BIGINT)"
            return rng.choice(
                [
                    wide,
                    wide,
                    f"({wide} % 7)",
                    f"({wide} + 3)",
                    f"abs({wide})",
                    f"coalesce({wide}, 2)",
                ]
            ), values
        if family == "float":
            wide = f"CAST({name} AS DOUBLE)"
            return rng.choice([wide, wide, f"({wide} * 2)", f"coalesce({wide}, 1.5)"]), values
        if family == "text":
            return rng.choice(
                [name, name, f"({name} || 'z')", f"nullif({name}, 'a')", f"substr({name}, 1, 2)"]
            ), values
        return name, values

    def value(self, family, values):
        """A literal: one of the column's values, another one, or NULL."""
        known = [value for value in values if value is not None]
        if self.rng.random() < 0.04 or not known:
            return "NULL" if family == "text" else f"CAST(NULL AS {NULL_TYPES[family]})"
        return literal(family, self.rng.choice(known))

    def leaf(self):
        """A predicate without AND, OR and NOT."""
        rng = self.rng
        families = sorted({family for _, family, _ in self.columns if family in COMPARED})
        kind = rng.randrange(11)
        boolean, any_column = self.pick("bool"), rng.choice(self.columns)
        if kind in (0, 10):
            return f"{any_column[0]} IS {rng.choice(['', 'NOT '])}NULL"
        if kind == 1 and boolean:
            return rng.choice(["{0}", "{0} IS TRUE", "{0} IS NOT FALSE", "{0} = FALSE"]).format(
                boolean[0]
            )
        if kind == 2 and self.pick("text"):
            pattern = rng.choice(["a%", "%b%", "_", "%", "", "A%", "%é%", "__%"])
            return f"{self.pick('text')[0]} {rng.choice(['', 'NOT '])}LIKE '{pattern}'"
        if kind == 3 and self.pick("list"):
            return f"{self.pick('list')[0]}[1] IS {rng.choice(['', 'NOT '])}NULL"
        family = rng.choice(families)
        term, values = self.term(family)
        operator = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        match kind:
            case 4:
                listed = ", ".join(self.value(family, values) for _ in range(rng.randint(1, 4)))
                return f"{term} {rng.choice(['', 'NOT '])}IN ({listed})"
            case 5:
                return (
                    f"{term} BETWEEN {self.value(family, values)} AND {self.value(family, values)}"
                )
            case 6:
                return f"{term} {operator} {self.term(family)[0]}"
            case 7:
                yes, no = self.value(family, values), self.term(family)[0]
                return f"CASE WHEN {self.simple()} THEN {yes} ELSE {no} END {operator} {self.value(family, values)}"
            case _:
                return f"{term} {operator} {self.value(family, values)}"

    def simple(self):
        """A comparison of a column and a literal."""
        families = [family for _, family, _ in self.columns if family in COMPARED]
        family = self.rng.choice(families)
        name, _, values = self.pick(family)
        return f"{name} {self.rng.choice(['=', '<', '>='])} {self.value(family, values)}"

    def any(self, depth=2):
        """A predicate of up to `depth` levels."""
        if depth == 0 or self.rng.random() < 0.35:
            return self.leaf()
        if self.rng.random() < 0.2:
            return f"NOT ({self.any(depth - 1)})"
        return f"({self.any(depth - 1)} {self.rng.choice(['AND', 'OR'])} {self.any(depth - 1)})"


NULL_TYPES = {
    "int": "BIGINT", "float": "DOUBLE", "text": "VARCHAR", "decimal": "DECIMAL(38, 10)", "date": "DATE", "moment": "TIMESTAMP",
    "zoned": "TIMESTAMPTZ",
}  # fmt: skip


@dataclass
class Topology:
    """How a query is loaded."""

    world_size: int
    remainder: str
    options: dict = field(default_factory=dict)
    output: str = "arrow"

    @classmethod
    def random(cls, rng, *, global_shuffle=True):
        """One to four ranks; options that change which row comes when, and to whom."""
        shuffle = rng.choice(
            [False, True, True, "global" if global_shuffle and rng.random() < 0.3 else True]
        )
        options = {
            "batch_size": rng.choice([1, 3, 16, 50, 1000]),
            "shuffle": shuffle,
            "shuffle_seed": rng.randrange(99),
        }
        if shuffle != "global":
            if rng.random() < 0.4:
                options["shuffle_buffer_size"] = rng.choice([1, 5, 100, 5000])
            options["split_strategy"] = rng.choice(["lpt", "lpt", "round_robin"])
        if rng.random() < 0.7:
            options["split_rows"] = rng.choice([1, 10, 100])
        remainder = rng.choice(["even", "even", "uneven", "uneven", "drop", "pad"])
        return cls(rng.randint(1, 4), remainder, options, rng.choice(["arrow", "torch", "numpy"]))


@dataclass
class Statement:
    """One statement, and how its answer is compared.

    Attributes:
        kind: What it is counted as.
        sql: Asked of the loader, and of the judges.
        judged: Asked of the judges instead, where they spell it in another way.
        some_of: A statement without LIMIT: the answer is `most` of its rows behind `skipped` ones, whichever they are.
        filters: The loader's `filters=`, which `judged` has as a WHERE.
        head: Ask for this many rows with `head`, and not with a loader.
        judge: The judge whose word counts where the first one, DuckDB, is not the standard's.
    """

    kind: str
    sql: str
    judged: str | None = None
    some_of: str | None = None
    most: int | None = None
    skipped: int = 0
    filters: str | None = None
    head: int | None = None
    judge: str = "duckdb"
