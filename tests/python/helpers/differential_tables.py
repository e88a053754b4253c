"""Random tables, each made from a seed: columns of every family that SQL compares, and some that it only carries.

A table is made in memory; `differential_sources` writes the same rows in every format.
"""

import decimal
import math
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property

import pyarrow as pa

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

LONG = ["long " * 20 + word for word in ("", "a", "b")]
"""Beyond 64 bytes, where writers cut their bounds."""


def _int(low, high):
    return lambda rng: rng.choice(
        [rng.randint(low, high), rng.randint(-3, 9) % (high + 1), low, high, 0]
    )


def _double(rng):
    return rng.choice(
        [math.nan, math.inf, -math.inf, 0.0, 1.5, -2.25, rng.gauss(0, 10), rng.gauss(0, 1e6)]
    )


def _decimal(digits, scale, used=None):
    most = 10 ** (used or digits) - 1

    def make(rng):
        unscaled = rng.choice([rng.randint(-most, most), rng.randint(-20, 20), most, -most, 0])
        return decimal.Decimal(unscaled).scaleb(-scale)

    return make


def _instant(rng):
    return datetime(2024, 3, 9, tzinfo=UTC) + timedelta(minutes=rng.randrange(3000))


def _struct(rng):
    return {
        "a": rng.choice([None, rng.randint(-9, 9)]),
        "b": rng.choice([None, rng.choice(WORDS[:6])]),
    }


def _many(value, most):
    return lambda rng: [
        None if rng.random() < 0.1 else value(rng) for _ in range(rng.randrange(most))
    ]


KINDS = {
    "i8": ("int", pa.int8(), _int(-128, 127)),
    "i16": ("int", pa.int16(), _int(-(2**15), 2**15 - 1)),
    "i32": ("int", pa.int32(), lambda rng: rng.choice([rng.randint(-5, 5), rng.randint(-(2**31), 2**31 - 1)])),
    "i64": ("int", pa.int64(), lambda rng: rng.choice([rng.randint(-5, 5), rng.randint(-(2**40), 2**40)])),
    "u8": ("int", pa.uint8(), lambda rng: rng.randint(0, 255)),
    "u32": ("int", pa.uint32(), lambda rng: rng.choice([rng.randint(0, 9), rng.randint(0, 2**32 - 1)])),
    "f32": ("float", pa.float32(), lambda rng: rng.choice([math.nan, 0.0, 0.5, -8.25, math.inf, rng.randint(-99, 99) / 4])),
    "f64": ("float", pa.float64(), _double),
    "num": ("float", pa.float64(), lambda rng: rng.choice([0.0, 0.5, -8.25, rng.randint(-99, 99) / 4])),
    "s": ("text", pa.string(), lambda rng: rng.choice(WORDS)),
    "ls": ("text", pa.large_string(), lambda rng: rng.choice(WORDS) + rng.choice(WORDS)),
    "long": ("text", pa.string(), lambda rng: rng.choice(LONG)),
    "flag": ("bool", pa.bool_(), lambda rng: rng.random() < 0.5),
    "d4": ("decimal", pa.decimal128(4, 1), _decimal(4, 1)),
    "dec": ("decimal", pa.decimal128(9, 2), _decimal(9, 2, 7)),
    "d18": ("decimal", pa.decimal128(18, 6), _decimal(18, 6)),
    "wide": ("decimal", pa.decimal128(20, 4), _decimal(20, 4, 15)),
    "d38": ("decimal", pa.decimal128(38, 10), _decimal(38, 10, 30)),
    "day": ("date", pa.date32(), lambda rng: date(1969, 12, 1) + timedelta(rng.randrange(60))),
    "us": ("moment", pa.timestamp("us"), lambda rng: datetime(1969, 12, 31) + timedelta(milliseconds=rng.randrange(10**8))),
    "ms": ("moment", pa.timestamp("ms"), lambda rng: datetime(2026, 1, 1) + timedelta(seconds=rng.randrange(10**5))),
    "utc": ("zoned", pa.timestamp("us", "UTC"), _instant),
    "denver": ("zoned", pa.timestamp("us", "America/Denver"), _instant),
    "clock": ("clock", pa.time64("us"), lambda rng: time(rng.randrange(24), rng.randrange(60))),
    "il": ("list", pa.list_(pa.int32()), _many(lambda rng: rng.randint(-9, 9), 4)),
    "sl": ("list", pa.list_(pa.string()), _many(lambda rng: rng.choice(WORDS), 3)),
    "st": ("struct", pa.struct([("a", pa.int32()), ("b", pa.string())]), _struct),
}  # fmt: skip
"""By name: the family, Arrow's type, and a value that is not null."""

KEYS = ("i8", "i32", "s")
"""Kinds of the column `k`, by which tables are joined."""

HIVE = {
    "int": lambda rng: str(rng.randint(-3, 30)),
    "text": lambda rng: rng.choice(["north", "south", "a b", "é"]),
    "date": lambda rng: str(date(2026, 1, 1) + timedelta(rng.randrange(9))),
}


@dataclass
class Table:
    """Rows in memory, in the parts that become files.

    Attributes:
        name: In SQL.
        columns: The family of each column.
        parts: The rows of each file.
        places: The hive directory of each part, None for none.
        order: What the rows are sorted by, where they are.
    """

    name: str
    columns: dict[str, str]
    parts: list[pa.Table]
    places: list[str | None] = field(default_factory=list)
    order: str | None = None
    hive: str | None = None

    @cached_property
    def rows(self):
        """All rows, with the column of the hive directories."""
        return pa.concat_tables(self.parts)

    @cached_property
    def values(self):
        """The values of each column; of the directories, too."""
        found = self.rows.to_pydict()
        if self.hive and "part" in self.columns:
            known = [place for place in self.places if place is not None]
            found["part"] = [int(p) if self.hive == "int" else p for p in known]
        return found

    def of(self, *families):
        """The columns of these families."""
        return [name for name, family in self.columns.items() if family in families]


def make_table(rng, name, *, kinds=tuple(KINDS), key=None, most=300, hive=True):
    """A random table of columns of some of these kinds: one to five parts, some of them empty.

    Column `id` is unique, and `k` has few values.
    """
    chosen = {
        f"{kind}_{number}": kind
        for number, kind in enumerate(rng.choices(list(kinds), k=rng.randint(2, 7)))
    }
    chosen["k"] = key or rng.choice([kind for kind in KEYS if kind in kinds])
    places, found = [], rng.choice([None, None, *HIVE]) if hive else None
    parts, rows = [], 0
    null_rates = {
        column: rng.choice([0, 0, 0.1, 0.5, 1 if rng.random() < 0.1 else 0]) for column in chosen
    }
    files = rng.choice([1, 1, 2, 3, 5])
    for _ in range(files):
        count = rng.choice([0, 1, 7, rng.randint(1, most)]) if files > 1 else rng.randint(1, most)
        part = {"id": pa.array(range(rows, rows + count), pa.int64())}
        for column, kind in chosen.items():
            part[column] = _column(rng, column, kind, null_rates[column], count)
        parts.append(pa.table(part))
        rows += count
        if found:
            places.append(None if rng.random() < 0.1 else HIVE[found](rng))
    columns = {"id": "int", **{column: KINDS[kind][0] for column, kind in chosen.items()}}
    # Where every directory is null, no engine knows a type.
    if found and any(places):
        columns["part"] = found
    table = Table(name, columns, parts, places, hive=found)
    return _sorted(rng, table) if rng.random() < 0.3 else table


def _column(rng, column, kind, null_rate, count):
    _, arrow, value = KINDS[kind]
    # Small keys, so that joins and comparisons of columns find something.
    small = column == "k" and kind != "s"
    made = [
        None if rng.random() < null_rate else rng.randrange(6) if small else value(rng)
        for _ in range(count)
    ]
    return pa.array(made, arrow)


def _sorted(rng, table):
    """The table with its rows in the order of a column, over all parts."""
    fitting = table.of("int", "text", "date", "moment", "decimal")
    by = rng.choice([name for name in fitting if name != "part"])
    direction, place = rng.choice(["ascending", "descending"]), rng.choice(["first", "last"])
    rows = table.rows
    values = rows[by].to_pylist()
    known = [at for at, value in enumerate(values) if value is not None]
    missing = [at for at, value in enumerate(values) if value is None]
    known.sort(key=values.__getitem__, reverse=direction == "descending")
    order_of = missing + known if place == "first" else known + missing
    rows = rows.take(pa.array(order_of, pa.int64()))
    start, parts = 0, []
    for part in table.parts:
        parts.append(rows.slice(start, part.num_rows))
        start += part.num_rows
    return replace(table, parts=parts, order=f"{by} {direction}")
