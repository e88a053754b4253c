"""Random tables, predicates and topologies, each of which follows from a number: what the differential tests are made of.

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

import decimal
import math
import os
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = [
    "",
    "a",
    "b",
    "abc",
    "A",
    "größe",
    "x" * 30,
    "it's",
    'say "hi"',
    "a%b",
    "日本",
    " ",
    "NULL",
    "0",
]


def _int(low, high):
    return lambda rng: rng.choice(
        [rng.randint(low, high), rng.randint(-3, 9) % (high + 1), low, high, 0]
    )


def _double(rng):
    return rng.choice(
        [math.nan, math.inf, -math.inf, 0.0, 1.5, -2.25, rng.gauss(0, 10), rng.gauss(0, 1e6)]
    )


KINDS = {
    "i8": ("int", pa.int8(), _int(-128, 127)),
    "i16": ("int", pa.int16(), _int(-(2**15), 2**15 - 1)),
    "i32": ("int", pa.int32(), lambda rng: rng.choice([rng.randint(-5, 5), rng.randint(-(2**31), 2**31 - 1)])),
    "i64": ("int", pa.int64(), lambda rng: rng.choice([rng.randint(-5, 5), rng.randint(-(2**40), 2**40)])),
    "u8": ("int", pa.uint8(), lambda rng: rng.randint(0, 255)),
    "u32": ("int", pa.uint32(), lambda rng: rng.choice([rng.randint(0, 9), rng.randint(0, 2**32 - 1)])),
    "f32": ("float", pa.float32(), lambda rng: rng.choice([math.nan, 0.0, 0.5, -8.25, math.inf, rng.randint(-99, 99) / 4])),
    "f64": ("float", pa.float64(), _double),
    "s": ("text", pa.string(), lambda rng: rng.choice(WORDS)),
    "ls": ("text", pa.large_string(), lambda rng: rng.choice(WORDS) + rng.choice(WORDS)),
    "flag": ("bool", pa.bool_(), lambda rng: rng.random() < 0.5),
    "dec": ("decimal", pa.decimal128(9, 2), lambda rng: decimal.Decimal(rng.randint(-99_999, 99_999)).scaleb(-2)),
    "wide": ("decimal", pa.decimal128(20, 4), lambda rng: decimal.Decimal(rng.randint(-(10**15), 10**15)).scaleb(-4)),
    "day": ("date", pa.date32(), lambda rng: date(1969, 12, 1) + timedelta(rng.randrange(60))),
    "us": ("moment", pa.timestamp("us"), lambda rng: datetime(1969, 12, 31) + timedelta(milliseconds=rng.randrange(10**8))),
    "ms": ("moment", pa.timestamp("ms"), lambda rng: datetime(2026, 1, 1) + timedelta(seconds=rng.randrange(10**5))),
    "il": ("list", pa.list_(pa.int32()), lambda rng: [rng.randint(-9, 9) for _ in range(rng.randrange(4))]),
    "sl": ("list", pa.list_(pa.string()), lambda rng: [rng.choice(WORDS) for _ in range(rng.randrange(3))]),
}  # fmt: skip
"""By name: the family, Arrow's type, and a value that is not null."""

HIVE = {
    "int": lambda rng: str(rng.randint(-3, 30)),
    "text": lambda rng: rng.choice(["north", "south", "a b", "é"]),
    "date": lambda rng: str(date(2026, 1, 1) + timedelta(rng.randrange(9))),
}


@dataclass
class Table:
    """A table that is written: its name in SQL, its columns with their families, values of each, and its files."""

    name: str
    folder: str
    columns: dict[str, str]
    values: dict[str, list]
    rows: int
    hive: bool

    def of(self, *families):
        """The columns of these families."""
        return [name for name, family in self.columns.items() if family in families]


def make_table(rng, folder, name, most=300):
    """Write a random table: several files, row groups and codecs, with hive directories or without."""
    kinds = {
        f"{kind}_{number}": kind
        for number, kind in enumerate(rng.choices(list(KINDS), k=rng.randint(2, 7)))
    }
    kinds["k"] = rng.choice(["i8", "i32", "s"])
    files, rows = rng.choice([1, 1, 2, 3, 5]), 0
    hive = rng.choice([None, None, *HIVE])
    data = {column: [] for column in ["id", *kinds]}
    null_rates = {
        column: rng.choice([0, 0, 0.1, 0.5, 1 if rng.random() < 0.1 else 0]) for column in kinds
    }
    places = []
    for number in range(files):
        count = rng.choice([0, 1, 7, rng.randint(1, most)]) if files > 1 else rng.randint(1, most)
        part = {"id": pa.array(range(rows, rows + count), pa.int64())}
        for column, kind in kinds.items():
            _, arrow, value = KINDS[kind]
            # Small keys, so that joins and comparisons of columns find something.
            small = column == "k" and kind != "s"
            made = [
                None
                if rng.random() < null_rates[column]
                else rng.randrange(6)
                if small
                else value(rng)
                for _ in range(count)
            ]
            part[column] = pa.array(made, arrow)
            data[column] += made
        place, below = HIVE[hive](rng) if hive else None, folder
        if hive:
            null = rng.random() < 0.1
            places.append(None if null else place)
            below = f"{folder}/part={'__HIVE_DEFAULT_PARTITION__' if null else place}"
        os.makedirs(below, exist_ok=True)
        pq.write_table(
            pa.table(part),
            f"{below}/{number:03}.parquet",
            row_group_size=rng.choice([3, 17, 64, 1000]),
            compression=rng.choice(["snappy", "zstd", "none", "gzip"]),
            use_dictionary=rng.random() < 0.5,
            write_statistics=rng.random() < 0.8,
            write_page_index=rng.random() < 0.3,
            data_page_size=rng.choice([64, 1 << 20]),
            version=rng.choice(["2.4", "2.6"]),
        )
        rows += count
    columns = {"id": "int", **{column: KINDS[kind][0] for column, kind in kinds.items()}}
    data["id"] = list(range(rows))
    known = [place for place in places if place is not None]
    # Where every directory is null, no engine knows a type.
    if hive and known:
        columns["part"], data["part"] = hive, [int(p) if hive == "int" else p for p in known]
    return Table(name, folder, columns, data, rows, hive is not None)


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
            return f"CAST('{value}' AS DECIMAL(20, 4))"
        case "date":
            return f"DATE '{value}'"
        case _:
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"


COMPARED = ("int", "float", "text", "decimal", "date", "moment")


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
        kind = rng.randrange(10)
        boolean, any_column = self.pick("bool"), rng.choice(self.columns)
        if kind == 0:
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
    "int": "BIGINT", "float": "DOUBLE", "text": "VARCHAR", "decimal": "DECIMAL(20, 4)", "date": "DATE", "moment": "TIMESTAMP",
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
