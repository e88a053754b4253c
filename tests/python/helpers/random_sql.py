"""Random queries in the SQL that DuckDB and the engine have in common, whose answers are one multiset of rows.

A relation is a query with known columns, of which another one is made: what row-local operators do below and above those that
run once is thereby mixed at any depth. Windows and LIMIT order by all columns, so that ties are equal rows; sums are of integers.
"""

import random
from dataclasses import dataclass

INT, TEXT = "BIGINT", "VARCHAR"

MANY = 1500
"""Rows, as estimated, above which a relation is cut to its first ones."""


@dataclass
class Relation:
    """The text of a query, its columns with their types, and about how many rows it has."""

    sql: str
    columns: list[tuple[str, str]]
    rows: int

    def cast(self, name):
        """The relation cast to its stated types: engines differ in the width of literals, of length() and so on."""
        columns = ", ".join(
            f"CAST({column} AS {kind}) AS {column}" for column, kind in self.columns
        )
        return Relation(f"SELECT {columns} FROM ({self.sql}) AS {name}", self.columns, self.rows)


class RandomSql:
    """Queries over the tables t (id, a, b, s), u (k, v, w), h (id, a, part) and the view tv (id, a2, s), or over other relations.

    Args:
        seed: What the query follows from.
        bases: Relations of integers and texts to make queries of, the last one with few rows.
    """

    def __init__(self, seed, bases=None):
        self.random = random.Random(seed)
        self.names = 0
        self.bases = bases
        self.small, self.key, self.number = "u", "k", "v"
        if bases:
            numbers = [name for name, kind in bases[-1].columns if kind == INT]
            self.small = f"({bases[-1].sql})"
            self.key, self.number = numbers[-1], numbers[0]

    def query(self):
        """A query of up to six nested operators."""
        return self.relation(self.random.randrange(1, 6))

    def relation(self, depth):
        if depth <= 0:
            return self.base()
        kinds = {
            self.project: 3, self.filter: 3, self.aggregate: 3, self.distinct: 1, self.window: 3, self.join: 5, self.set_of_two: 4,
            self.limit: 3, self.unnest: 1, self.correlated: 1, self.shared: 1, self.semi: 2, self.scalar: 1, self.total: 1,
            self.numbers_of_rows: 1,
        }  # fmt: skip
        (make,) = self.random.choices(list(kinds), list(kinds.values()))
        found = make(depth)
        return self.first(found, 200) if found.rows > MANY else found

    def name(self, letter="c"):
        self.names += 1
        return f"{letter}{self.names}"

    def base(self):
        if self.bases and self.random.random() < 0.9:
            return self.random.choice(self.bases)
        match 7 if self.bases else self.random.randrange(8):
            case 0 | 1 | 2:
                columns = [("id", INT), ("a", INT), ("b", INT), ("s", TEXT)]
                return Relation("SELECT id, a, b, s FROM t", columns, 60)
            case 3:
                return Relation("SELECT * FROM tv", [("id", INT), ("a2", INT), ("s", TEXT)], 50)
            case 4 | 5:
                return Relation("SELECT * FROM u", [("k", INT), ("v", INT), ("w", TEXT)], 14)
            case 6:
                columns = [("id", INT), ("a", INT), ("part", TEXT)]
                return Relation("SELECT id, a, part FROM h", columns, 40)
            case _:
                rows = ", ".join(
                    f"({self.random.choice(['NULL', *'01234'])}, {self.random.choice(['NULL', repr('a'), repr('b')])})"
                    for _ in range(self.random.randrange(1, 5))
                )
                a, b = self.name(), self.name()
                values = f"SELECT * FROM (VALUES {rows}) AS {self.name('q')} ({a}, {b})"
                return Relation(values, [(a, INT), (b, TEXT)], 4).cast(self.name("q"))

    def pick(self, relation, kind=None):
        names = [name for name, found in relation.columns if kind in (None, found)]
        return self.random.choice(names) if names else None

    def order(self, relation):
        """A total order: by all columns."""
        names = [name for name, _ in relation.columns]
        self.random.shuffle(names)
        direction, nulls = (
            self.random.choice(["ASC", "DESC"]),
            self.random.choice(["FIRST", "LAST"]),
        )
        return ", ".join(f"{name} {direction} NULLS {nulls}" for name in names)

    def value(self, relation, kind, depth=2):
        pick, name = self.random.choice, self.pick(relation, kind)
        match pick(
            ["literal"] + ["column"] * 3 * bool(name) + ["of two", "case", "null"] * (depth > 0)
        ):
            case "column":
                return name
            case "case":
                yes, no = (
                    self.value(relation, kind, depth - 1),
                    self.value(relation, kind, depth - 1),
                )
                return f"CASE WHEN {self.condition(relation, depth - 1)} THEN {yes} ELSE {no} END"
            case "null":
                both = self.value(relation, kind, depth - 1), self.value(relation, kind, depth - 1)
                return f"{pick(['coalesce', 'nullif'])}({', '.join(both)})"
            case "of two" if kind == INT:
                one, other = (
                    self.value(relation, INT, depth - 1),
                    self.value(relation, INT, depth - 1),
                )
                text = self.value(relation, TEXT, depth - 1)
                return pick([f"({one} {pick('+-')} {other})", f"({one} % 7)", f"length({text})"])
            case "of two":
                one, other = (
                    self.value(relation, TEXT, depth - 1),
                    self.value(relation, TEXT, depth - 1),
                )
                number = self.value(relation, INT, depth - 1)
                # Letters that become two are spelled differently by every engine.
                changed = f"substr({one}, 1, 2)" if self.bases else f"upper({one})"
                return pick([f"({one} || {other})", changed, f"CAST({number} AS VARCHAR)"])
            case _ if kind == INT:
                return pick([str(self.random.randrange(-3, 9)), "CAST(NULL AS BIGINT)"])
            case _:
                return pick(["'a'", "'é'", "''", "CAST(NULL AS VARCHAR)"])

    def condition(self, relation, depth=2):
        kind = self.random.choice([INT, INT, TEXT])
        one, other = self.value(relation, kind, 1), self.value(relation, kind, 1)
        match self.random.randrange(7 if depth > 0 else 3):
            case 0 | 1:
                return f"{one} {self.random.choice(['<', '<=', '=', '<>', '>', '>='])} {other}"
            case 2:
                return f"{one} IS {self.random.choice(['', 'NOT '])}NULL"
            case 3:
                both = self.condition(relation, depth - 1), self.condition(relation, depth - 1)
                return f"({self.random.choice([' AND ', ' OR ']).join(both)})"
            case 4:
                return f"NOT ({self.condition(relation, depth - 1)})"
            case 5:
                return (
                    f"{self.value(relation, INT, 1)} IN (1, 2, {self.random.choice(['3', 'NULL'])})"
                )
            case _:
                return f"{self.value(relation, INT, 1)} BETWEEN {self.random.randrange(4)} AND {self.random.randrange(2, 9)}"

    def first(self, relation, rows):
        sql = f"SELECT * FROM ({relation.sql}) AS {self.name('q')} ORDER BY {self.order(relation)} LIMIT {rows}"
        return Relation(sql, relation.columns, rows)

    def project(self, depth):
        below = self.relation(depth - 1)
        count = self.random.randrange(1, 4)
        columns = [(self.name(), self.random.choice([INT, INT, TEXT])) for _ in range(count)]
        values = ", ".join(f"{self.value(below, kind)} AS {name}" for name, kind in columns)
        sql = f"SELECT {values} FROM ({below.sql}) AS {self.name('q')}"
        return Relation(sql, columns, below.rows).cast(self.name("q"))

    def filter(self, depth):
        below = self.relation(depth - 1)
        sql = f"SELECT * FROM ({below.sql}) AS {self.name('q')} WHERE {self.condition(below)}"
        return Relation(sql, below.columns, below.rows)

    def aggregate(self, depth):
        below, kinds = self.relation(depth - 1), {}
        kinds.update(below.columns)
        keys = self.random.sample(list(kinds), self.random.randrange(min(2, len(kinds)) + 1))
        columns = [(self.name(), kinds[key]) for key in keys]
        values = [f"{key} AS {name}" for key, (name, _) in zip(keys, columns, strict=True)]
        for _ in range(self.random.randrange(1, 3)):
            name, of = self.name(), self.value(below, INT, 1)
            aggregates = ["count(*)", f"count({of})", f"sum({of})", f"min({of})", f"max({of})", f"count(DISTINCT {of})",
                          f"count(*) FILTER (WHERE {self.condition(below, 1)})"]  # fmt: skip
            values.append(f"CAST({self.random.choice(aggregates)} AS BIGINT) AS {name}")
            columns.append((name, INT))
        sql = f"SELECT {', '.join(values)} FROM ({below.sql}) AS {self.name('q')}"
        if keys:
            sql += f" GROUP BY {', '.join(keys)}"
        if self.random.random() < 0.3:
            sql += f" HAVING count(*) > {self.random.randrange(4)}"
        return Relation(sql, columns, below.rows // 2 if keys else 1)

    def distinct(self, depth):
        below = self.relation(depth - 1)
        columns = self.random.sample(
            below.columns, self.random.randrange(1, len(below.columns) + 1)
        )
        names = ", ".join(name for name, _ in columns)
        sql = f"SELECT DISTINCT {names} FROM ({below.sql}) AS {self.name('q')}"
        return Relation(sql, columns, below.rows)

    def window(self, depth):
        below, name = self.relation(depth - 1), self.name()
        group = f"PARTITION BY {self.pick(below)} " if self.random.random() < 0.7 else ""
        over, of = f"OVER ({group}ORDER BY {self.order(below)}", self.pick(below, INT) or "1"
        functions = [
            f"row_number() {over})", f"rank() {over})", f"lag({of}) {over})", f"lead({of}, 2) {over})", f"max({of}) OVER ({group})",
            f"first_value({of}) {over})", f"sum({of}) {over} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
            f"count(*) {over} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
        ]  # fmt: skip
        value = f"CAST({self.random.choice(functions)} AS BIGINT) AS {name}"
        sql = f"SELECT *, {value} FROM ({below.sql}) AS {self.name('q')}"
        return Relation(sql, [*below.columns, (name, INT)], below.rows)

    def join(self, depth):
        left, right = self.relation(depth - 1), self.relation(self.random.randrange(depth))
        left, right = (self.first(side, 40) if side.rows > 300 else side for side in (left, right))
        a, b = self.name("q"), self.name("q")
        kinds = ["JOIN"] * 2 + ["LEFT JOIN"] * 2 + ["RIGHT JOIN", "FULL JOIN", "CROSS JOIN"]
        kind = self.random.choice(kinds)
        pairs = [(x, y) for x, of in left.columns for y, to in right.columns if of == to]
        on, rows = "", left.rows * right.rows
        if kind != "CROSS JOIN" and pairs:
            keys = self.random.sample(pairs, min(len(pairs), self.random.choice([1, 1, 2])))
            on, rows = " ON " + " AND ".join(f"{a}.{x} = {b}.{y}" for x, y in keys), rows // 6
            if self.random.random() < 0.3:
                x, y = self.random.choice(pairs)
                on += f" AND {a}.{x} {self.random.choice(['<', '>=', '<>'])} {b}.{y}"
        elif kind != "CROSS JOIN":
            on = " ON TRUE"
        named = [(a, name, self.name(), of) for name, of in left.columns]
        named += [(b, name, self.name(), of) for name, of in right.columns]
        if self.random.random() < 0.25:
            side = self.random.choice([a, b])
            named = [column for column in named if column[0] == side]
        values = ", ".join(f"{side}.{old} AS {new}" for side, old, new, _ in named)
        sql = f"SELECT {values} FROM ({left.sql}) AS {a} {kind} ({right.sql}) AS {b}{on}"
        return Relation(sql, [(new, of) for _, _, new, of in named], rows)

    def set_of_two(self, depth):
        left, right = self.relation(depth - 1), self.relation(self.random.randrange(depth))
        right = left if self.random.random() < 0.2 else right
        kinds = [self.random.choice([INT, INT, TEXT]) for _ in range(self.random.randrange(1, 4))]
        columns = [(self.name(), kind) for kind in kinds]

        def side(below):
            values = []
            for name, kind in columns:
                value = self.pick(below, kind) if self.random.random() < 0.8 else None
                values.append(f"CAST({value or self.value(below, kind, 1)} AS {kind}) AS {name}")
            return f"SELECT {', '.join(values)} FROM ({below.sql}) AS {self.name('q')}"

        operator = self.random.choice(["UNION ALL"] * 3 + ["UNION", "INTERSECT", "EXCEPT"])
        sql = f"SELECT * FROM ({side(left)} {operator} {side(right)}) AS {self.name('q')}"
        return Relation(sql, columns, left.rows + right.rows)

    def limit(self, depth):
        found = self.first(self.relation(depth - 1), self.random.choice([0, 1, 3, 10, 40]))
        if self.random.random() < 0.3:
            found.sql += f" OFFSET {self.random.randrange(5)}"
        return found

    def unnest(self, depth):
        below, name, q = self.relation(depth - 1), self.name(), self.name("q")
        of, key = self.pick(below, INT), self.pick(below)
        if of is None or self.random.random() < 0.4:
            columns = below.columns[:2]
            values = f"{', '.join(name for name, _ in columns)}, unnest([1, 2, {self.value(below, INT, 1)}]) AS {name}"
            found = Relation(
                f"SELECT {values} FROM ({below.sql}) AS {q}",
                [*columns, (name, INT)],
                below.rows * 3,
            )
            return found.cast(self.name("q"))
        group, kind = self.name(), dict(below.columns)[key]
        lists = f"SELECT {key} AS {group}, array_agg({of} ORDER BY {of} NULLS LAST) AS l FROM ({below.sql}) AS {q} GROUP BY {key}"
        sql = f"SELECT {group}, unnest(l) AS {name} FROM ({lists}) AS {self.name('q')}"
        return Relation(sql, [(group, kind), (name, INT)], below.rows)

    def correlated(self, depth):
        below, name, q, z = self.relation(depth - 1), self.name(), self.name("q"), self.name("q")
        of = self.pick(below, INT)
        if of is None or below.rows > 300:
            return below
        value = self.random.choice(
            ["count(*)", f"sum({z}.{self.number})", f"max({z}.{self.number})"]
        )
        inner = f"SELECT CAST({value} AS BIGINT) FROM {self.small} AS {z} WHERE {z}.{self.key} = {q}.{of}"
        sql = f"SELECT *, ({inner}) AS {name} FROM ({below.sql}) AS {q}"
        return Relation(sql, [*below.columns, (name, INT)], below.rows)

    def scalar(self, depth):
        below, other = self.relation(depth - 1), self.relation(self.random.randrange(depth))
        of, to = self.pick(below, INT), self.pick(other, INT)
        if of is None or to is None:
            return below
        value = f"(SELECT {self.random.choice(['max', 'min', 'count'])}({to}) FROM ({other.sql}) AS {self.name('q')})"
        if self.random.random() < 0.5:
            sql = f"SELECT * FROM ({below.sql}) AS {self.name('q')} WHERE {of} {self.random.choice(['<', '>=', '<>'])} {value}"
            return Relation(sql, below.columns, below.rows)
        name = self.name()
        sql = f"SELECT *, {value} AS {name} FROM ({below.sql}) AS {self.name('q')}"
        return Relation(sql, [*below.columns, (name, INT)], below.rows)

    def semi(self, depth):
        below, other = self.relation(depth - 1), self.relation(self.random.randrange(depth))
        pairs = [(x, y) for x, of in below.columns for y, to in other.columns if of == to]
        if not pairs:
            return below
        (x, y), q, z = self.random.choice(pairs), self.name("q"), self.name("q")
        exists = f"EXISTS (SELECT 1 FROM ({other.sql}) AS {z} WHERE {z}.{y} = {q}.{x})"
        listed = f"IN (SELECT {y} FROM ({other.sql}) AS {z})"
        either = f"({exists} OR {self.condition(below, 0)})"
        conditions = [exists, f"NOT {exists}", f"{q}.{x} {listed}", f"{q}.{x} NOT {listed}", either]
        sql = f"SELECT * FROM ({below.sql}) AS {q} WHERE {self.random.choice(conditions)}"
        return Relation(sql, below.columns, below.rows)

    def shared(self, depth):
        """A CTE that is read twice."""
        below, c, q = self.relation(depth - 1), self.name("w"), self.name("q")
        if below.rows > 200 or self.random.random() < 0.4:
            twice = f"SELECT * FROM {c} WHERE {self.condition(below)} UNION ALL SELECT * FROM {c}"
            sql = f"SELECT * FROM (WITH {c} AS ({below.sql}) {twice}) AS {q}"
            return Relation(sql, below.columns, 2 * below.rows)
        a, b, name, key = self.name("q"), self.name("q"), self.name(), self.pick(below)
        kind = dict(below.columns)[key]
        join = f"{c} AS {a} {self.random.choice(['JOIN', 'LEFT JOIN', 'FULL JOIN'])} {c} AS {b} ON {a}.{key} = {b}.{self.pick(below, kind)}"
        sql = f"SELECT * FROM (WITH {c} AS ({below.sql}) SELECT {a}.*, {b}.{key} AS {name} FROM {join}) AS {q}"
        return Relation(sql, [*below.columns, (name, kind)], below.rows * below.rows // 6)

    def total(self, depth):
        below, name = self.relation(depth - 1), self.name()
        sql = f"SELECT count(*) AS {name} FROM ({below.sql}) AS {self.name('q')}"
        return Relation(sql, [(name, INT)], 1)

    def numbers_of_rows(self, depth):
        """A join in which only the number of one side's rows matters."""
        below, name, z = self.relation(depth - 1), self.name(), self.name("q")
        below = self.first(below, 40) if below.rows > 100 else below
        kind = self.random.choice(["CROSS JOIN", "LEFT JOIN", "RIGHT JOIN"])
        on = "" if kind == "CROSS JOIN" else " ON TRUE"
        sql = f"SELECT {z}.{self.number} AS {name} FROM ({below.sql}) AS {self.name('q')} {kind} (SELECT {self.number} FROM {self.small} AS s) AS {z}{on}"
        return Relation(sql, [(name, INT)], below.rows * 14)
