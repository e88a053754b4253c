"""The statements that the differential tests ask: a method for each kind, which makes one of it at random.

Row-local parts come from `differential_cases`. Every statement has one answer: what is cut off by LIMIT or framed by a window is in a
total order, or the answer is only compared as some of the rows (`differential_cases.Statement.some_of`). docs/proof.md lists the kinds.
"""

from differential_cases import Predicates, Statement
from differential_subqueries import Subqueries
from differential_values import Values
from differential_windows import Windows
from random_sql import INT, TEXT, RandomSql, Relation

AGGREGATES = (
    "count(*)", "count({0})", "count(DISTINCT {0})", "CAST(sum({0} % 1000) AS BIGINT)", "min({0})", "max({0})",
    "count(*) FILTER (WHERE {0} > 1)", "avg({0} % 1000)", "CAST(sum(DISTINCT {0} % 10) AS BIGINT)",
    "max({0}) FILTER (WHERE {0} % 2 = 0)",
)  # fmt: skip
"""Of an integer."""


class Grammar(Subqueries, Windows, Values):
    """Statements over two tables.

    Args:
        rng: What they follow from.
        tables: Of `make_table`, the second one with fewer rows.
    """

    def __init__(self, rng, tables):
        self.rng = rng
        self.t, self.u = tables

    def any(self):
        """A statement of any kind; None where the tables have no columns for it."""
        return getattr(self, self.rng.choice(KINDS))()

    def over(self, alias, table=None):
        """Predicates over a table under an alias."""
        table = table or self.t
        values = table.values
        return Predicates(
            self.rng,
            [(f"{alias}.{name}", family, values[name]) for name, family in table.columns.items()],
        )

    def column(self, alias, *families, table=None):
        """The name of a column of one of the families, or None."""
        found = self.over(alias, table).pick(*families)
        return found and found[0]

    def key(self, alias, table=None):
        """A column that groups and sorts alike in every engine: no floats, whose NaN and zeros differ."""
        return self.column(
            alias, "int", "text", "date", "bool", "decimal", "moment", "zoned", table=table
        )

    def number(self, alias="t", table=None):
        """An integer, as BIGINT."""
        return f"CAST({self.column(alias, 'int', table=table)} AS BIGINT)"

    def size(self, most=40):
        return self.rng.choice([0, 1, 2, 3, 5, self.rng.randint(1, most)])

    def where(self, alias="t", table=None, share=0.7, depth=1):
        """` WHERE …`, or nothing."""
        if self.rng.random() > share:
            return ""
        return f" WHERE {self.over(alias, table).any(depth)}"

    def joinable(self):
        return self.t.columns["k"] == self.u.columns["k"]

    # --------------------------------------------------------------------------------------------
    # DISTINCT and LIMIT.

    def distinct(self):
        """DISTINCT, above joins and UNNEST that repeat keys, and inside of aggregates."""
        t, u, rng = self.t.name, self.u.name, self.rng
        grouped = f"SELECT k, max(id) AS m FROM {t} AS t{self.where()} GROUP BY k"
        repeated = f"SELECT k, unnest([1, 1, 2]) AS x FROM ({grouped}) AS a"
        join = rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        number = f"SELECT row_number() OVER (ORDER BY t.id) AS r FROM {t} AS t"
        one, other = self.key("t"), self.key("t")
        forms = [
            f"SELECT DISTINCT {one} AS d, {self.over('t').any(1)} AS p FROM {t} AS t{self.where()}",
            f"SELECT DISTINCT {one} AS d, {other} AS e FROM {t} AS t{self.where()}",
            f"SELECT DISTINCT q.k AS d FROM ({repeated}) AS q",
            f"SELECT DISTINCT q.r % {rng.randint(1, 9)} AS d FROM ({number}) AS q JOIN (SELECT unnest([1, 1, 2, 5]) AS r) AS v ON v.r = q.r",
            f"SELECT count(DISTINCT {one}) AS n, count(DISTINCT {other}) AS m, count(*) AS a FROM {t} AS t{self.where()}",
            f"SELECT count(*) AS n FROM (SELECT DISTINCT {one} AS d FROM {t} AS t{self.where()}) AS q",
            f"SELECT DISTINCT ON ({one}) {one} AS d, t.id AS i FROM {t} AS t{self.where()} ORDER BY {one} NULLS FIRST, t.id DESC NULLS LAST",
            f"SELECT DISTINCT {one} AS d FROM {t} AS t{self.where()} ORDER BY d NULLS LAST LIMIT {self.size()}",
        ]
        if self.joinable():
            forms += [
                f"SELECT DISTINCT q.k AS d FROM ({grouped}) AS q {join} {u} AS u ON q.k = u.k",
                f"SELECT DISTINCT q.k AS d, q.m AS m FROM ({grouped}) AS q {join} {u} AS u ON q.k = u.k",
                f"SELECT DISTINCT t.k AS d FROM {t} AS t {join} {u} AS u ON t.k = u.k{self.where()}",
            ] * 2
        return Statement("distinct", rng.choice(forms))

    def limit(self):
        """LIMIT and OFFSET, above and below filters, windows and aggregates."""
        t, rng = self.t.name, self.rng
        size, skipped = self.size(), rng.choice([0, 0, 1, 3, 20])
        value, where = self.key("t"), self.where(share=0.9)
        rows = f"SELECT t.id AS a, {value} AS b FROM {t} AS t{where}"
        direction = rng.choice(
            ["ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST", "ASC NULLS FIRST"]
        )
        by = rng.choice([f"t.id {direction}", f"{value} {direction}, t.id"])
        cut = rng.choice([f"LIMIT {size}", f"LIMIT {size} OFFSET {skipped}", f"OFFSET {skipped}"])
        ordered = f"{rows} ORDER BY {by} {cut}"
        match rng.randrange(9):
            case 0 | 1 | 2:
                limited = (
                    f"{rows} LIMIT {size} OFFSET {skipped}" if skipped else f"{rows} LIMIT {size}"
                )
                return Statement("limit", limited, some_of=rows, most=size, skipped=skipped)
            case 8:
                return Statement("limit", rows, some_of=rows, most=size, head=size)
            case 3:
                return Statement(
                    "limit", f"SELECT count(*) AS n, count(b) AS m FROM ({ordered}) AS q"
                )
            case 4:
                return Statement("limit", f"SELECT count(*) AS n FROM ({rows} {cut}) AS q")
            case 5:
                return Statement(
                    "limit",
                    f"SELECT * FROM ({ordered}) AS q WHERE q.a % 3 {rng.choice(['=', '<>'])} 1",
                )
            case 6:
                above = rng.choice(
                    [
                        "SELECT a, row_number() OVER (ORDER BY a DESC) AS r FROM ({0}) AS q",
                        "SELECT sum(a) AS s, min(a) AS l, max(a) AS m FROM ({0}) AS q",
                        "SELECT a, b FROM ({0}) AS q ORDER BY a DESC LIMIT 3",
                        "SELECT b, count(*) AS n FROM ({0}) AS q GROUP BY b",
                        "SELECT DISTINCT b FROM ({0}) AS q",
                        "SELECT a FROM ({0}) AS q UNION ALL SELECT a FROM ({0}) AS z",
                        "SELECT q.a, z.a AS z FROM ({0}) AS q LEFT JOIN ({0}) AS z ON q.a = z.a + 1",
                    ]
                )
                return Statement("limit", above.format(ordered))
            case _:
                return Statement("limit", ordered)

    def nulls(self):
        """Rows that lack a value, or have one, for which statistics count nulls."""
        rng, t = self.rng, self.t.name
        name = f"t.{rng.choice(list(self.t.columns))}"
        where = f"{name} IS {rng.choice(['', '', 'NOT '])}NULL"
        more = rng.choice(
            ["", "", f" AND {self.over('t').simple()}", f" OR {self.over('t').leaf()}"]
        )
        value = rng.choice(["t.id AS a", "count(*) AS n", f"count({name}) AS n, count(*) AS m"])
        return Statement("nulls", f"SELECT {value} FROM {t} AS t WHERE {where}{more}")

    def nested(self):
        """Up to six nested operators of `random_sql`."""
        made = RandomSql(self.rng.randrange(10**9), [self.bases(t) for t in (self.t, self.u)])
        return Statement("nested", made.query().sql)

    def bases(self, table):
        """A relation of numbers and texts, as `random_sql` has them."""
        numbers = [name for name in table.of("int") if name != "id"][:2]
        texts = table.of("text")[:1]
        columns = [("id", "CAST(id AS BIGINT)")]
        columns += [(f"n{at}", f"CAST({name} AS BIGINT) % 1000") for at, name in enumerate(numbers)]
        columns += [(f"s{at}", f"CAST({name} AS VARCHAR)") for at, name in enumerate(texts)]
        sql = (
            f"SELECT {', '.join(f'{value} AS {name}' for name, value in columns)} FROM {table.name}"
        )
        kinds = [(name, TEXT if name[0] == "s" else INT) for name, _ in columns]
        return Relation(sql, kinds, table.rows.num_rows)

    # --------------------------------------------------------------------------------------------
    # Sets, groups and joins.

    def sets(self):
        """UNION, INTERSECT and EXCEPT, each with ALL, and one above another."""
        t, rng = self.t.name, self.rng
        family = rng.choice(["int", "text", "date", "bool", "decimal", "moment"])
        mine = self.t.of(family)
        if not mine:
            family, mine = "int", self.t.of("int")
        second = self.u if self.u.of(family) and rng.random() < 0.5 else self.t
        wide = WIDE[family]

        def side(table, alias):
            name = self.column(alias, family, table=table)
            less = f" % {rng.randint(2, 9)}" if family == "int" and rng.random() < 0.6 else ""
            value = f"CAST({name} AS {wide}){less}"
            return f"SELECT {value} AS v FROM {table.name} AS {alias}{self.where(alias, table)}"

        operators = [
            "UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL",
        ]  # fmt: skip
        sql = f"{side(self.t, 't')} {rng.choice(operators)} {side(second, 'u')}"
        if rng.random() < 0.4:
            third = side(self.t, "x")
            pair = [f"SELECT v FROM ({sql}) AS q", third]
            rng.shuffle(pair)
            sql = f" {rng.choice(operators)} ".join(pair)
        form = rng.choice(
            [
                "{0}",
                "{0}",
                "SELECT v, count(*) AS n FROM ({0}) AS q GROUP BY v",
                "SELECT count(*) AS n FROM ({0}) AS q",
                "SELECT v FROM ({0}) AS q ORDER BY v NULLS LAST LIMIT 5",
                f"SELECT v FROM ({{0}}) AS q WHERE v IN (SELECT CAST({mine[0]} AS {wide}) FROM {t})",
            ]
        )
        return Statement("sets", form.format(sql))

    def group(self):
        """GROUP BY with aggregates of every form, HAVING and GROUP BY ALL."""
        t, rng = self.t.name, self.rng
        keys = list(dict.fromkeys(self.key("t") for _ in range(rng.randint(0, 2))))
        named = [f"{key} AS g{number}" for number, key in enumerate(keys)]
        made = [f"{self.aggregate()} AS a{n}" for n in range(rng.randint(1, 3))]
        sql = f"SELECT {', '.join(named + made)} FROM {t} AS t{self.where()}"
        if keys:
            spelled = rng.choice(
                [", ".join(keys), ", ".join(str(n + 1) for n in range(len(keys))), "ALL"]
            )
            sql += f" GROUP BY {spelled}"
        if rng.random() < 0.3:
            sql += f" HAVING {rng.choice(['count(*)', f'max({self.number()})'])} {rng.choice(['>', '<', '='])} {rng.randint(0, 5)}"
        return Statement("group", sql)

    def aggregate(self):
        rng = self.rng
        flag, text = self.column("t", "bool"), self.column("t", "text")
        forms = list(AGGREGATES)
        forms.append(f"count(*) FILTER (WHERE {self.over('t').any(1)})")
        if flag:
            forms += [
                f"bool_and({flag})",
                f"bool_or({flag})",
                f"count(*) FILTER (WHERE {flag})",
            ]
        if text:
            forms += [
                f"string_agg({text}, ',' ORDER BY t.id)",
                f"min({text})",
                f"max({text})",
                f"count(DISTINCT {text})",
            ]
        forms += [
            "array_agg({0} ORDER BY t.id DESC)",
            f"min({self.key('t')})",
            f"max({self.key('t')})",
            f"CAST(sum(CASE WHEN {self.over('t').simple()} THEN 1 ELSE 0 END) AS BIGINT)",
        ]
        return rng.choice(forms).format(self.number())

    def grouping_sets(self):
        """ROLLUP, CUBE and GROUPING SETS, and which of their keys a row has."""
        t, rng = self.t.name, self.rng
        a, b = self.key("t"), self.key("t")
        if a == b:
            b = "t.k"
        if a == b:
            a = "t.id"
        sets = rng.choice(
            [
                f"ROLLUP ({a}, {b})",
                f"CUBE ({a}, {b})",
                f"GROUPING SETS (({a}, {b}), ({a}), ())",
                f"GROUPING SETS (({b}), ({a}))",
                f"{a}, ROLLUP ({b})",
                f"GROUPING SETS ((), ({a}, {b}))",
            ]
        )
        more = rng.choice(
            [
                "",
                f", CAST(grouping({a}) AS BIGINT) AS x, CAST(grouping({b}) AS BIGINT) AS y",
                f", count(DISTINCT {self.number()}) AS d",
            ]
        )
        having = rng.choice(["", "", " HAVING count(*) > 1", f" HAVING {a} IS NULL"])
        sql = f"SELECT {a} AS a, {b} AS b, count(*) AS n, CAST(sum({self.number()} % 100) AS BIGINT) AS s{more} FROM {t} AS t{self.where()} GROUP BY {sets}{having}"
        if rng.random() < 0.3:
            sql = f"SELECT a, n FROM ({sql}) AS q WHERE {rng.choice(['a IS NULL', 'b IS NOT NULL', 'n > 1', 'a = a'])}"
        return Statement("grouping sets", sql)

    def join(self):
        """Joins of every kind and condition: with NULL keys, inequalities, USING, further conditions, and of a table to itself."""
        rng = self.rng
        other = self.u if self.joinable() and rng.random() < 0.8 else self.t
        both = "t.id AS a, u.id AS b"
        kind = rng.choice(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]
        )
        cut = lambda table: (  # noqa: E731
            table.name
            if other is self.u
            else f"(SELECT * FROM {table.name} WHERE id < {rng.randint(1, 60)})"
        )
        left, right = f"{cut(self.t)} AS t", f"{cut(other)} AS u"
        more = [
            "",
            "",
            f" AND {self.over('t').simple()}",
            f" AND {self.over('u', other).simple()}",
            " AND t.id < u.id",
            " AND t.id <> u.id",
        ]
        on = rng.choice(
            [
                f"ON t.k = u.k{rng.choice(more)}",
                f"ON t.k = u.k{rng.choice(more)}",
                "USING (k)",
                "ON t.k IS NOT DISTINCT FROM u.k",
                f"ON t.id < u.id{rng.choice(more)}",
                f"ON t.k = u.k OR {self.over('t').simple()}",
            ]
        )
        if kind in ("SEMI JOIN", "ANTI JOIN"):
            both = f"t.id AS a, {self.key('t')} AS b"
            spelled = rng.choice([kind, f"LEFT {kind}"])
            return Statement(
                "join",
                f"SELECT {both} FROM {left} {spelled} {right} {on}",
                judged=f"SELECT {both} FROM {left} {kind} {right} {on}",
            )
        if on == "USING (k)":
            both += ", k AS k"
        sql = f"SELECT {both} FROM {left} {kind} {right} {on}"
        if rng.random() < 0.3:
            sql += f" WHERE {rng.choice(['u.id IS NULL', 't.id IS NULL', 't.id = u.id', self.over('t').simple()])}"
        if rng.random() < 0.3:
            sql = f"SELECT count(*) AS n, count(a) AS m, CAST(sum(b) AS BIGINT) AS s FROM ({sql}) AS q"
        return Statement("join", sql)

    def joins(self):
        """Three tables or four: conditions in ON, in WHERE or both; some match NULL with NULL."""
        rng = self.rng
        aliases = "abcd"[: rng.choice([3, 3, 4])]
        most = 20 if len(aliases) == 3 else 8

        def table(alias):
            # Integers of both tables compare alike.
            of = self.u if self.joinable() and rng.random() < 0.4 else self.t
            return of, f"(SELECT * FROM {of.name} WHERE id < {rng.randint(1, most)}) AS {alias}"

        of = {alias: table(alias) for alias in aliases}

        def condition(one, other):
            if of[one][0] is of[other][0]:
                name = (self.key("x", of[one][0]) or "x.id").removeprefix("x.")
            else:
                name = rng.choice(["k", "id"])
            operator = rng.choice(["=", "=", "IS NOT DISTINCT FROM", "IS NOT DISTINCT FROM", "<="])
            return f"{one}.{name} {operator} {other}.{name}"

        sources, where = of[aliases[0]][1], []
        for at, alias in enumerate(aliases[1:], 1):
            conditions = [
                condition(rng.choice(aliases[:at]), alias) for _ in range(rng.choice([1, 1, 2]))
            ]
            kind = rng.choice(
                [",", ",", "JOIN", "JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
            )
            if kind == ",":
                sources = f"{sources} CROSS JOIN {of[alias][1]}"
                where += conditions
            else:
                sources = f"{sources} {kind} {of[alias][1]} ON {' AND '.join(conditions)}"
        for _ in range(rng.choice([0, 1, 1, 2])):
            where.append(condition(*rng.sample(aliases, 2)))
        if rng.random() < 0.3:
            where.append(self.over("a", of["a"][0]).simple())
        names = ", ".join(f"{alias}.id AS i{alias}" for alias in aliases)
        sql = f"SELECT {names} FROM {sources}" + (f" WHERE {' AND '.join(where)}" if where else "")
        if rng.random() < 0.3:
            sql = f"SELECT count(*) AS n, count(ib) AS m, CAST(sum(ia) AS BIGINT) AS s FROM ({sql}) AS q"
        return Statement("join", sql)


WIDE = {
    "int": "BIGINT", "text": "VARCHAR", "date": "DATE", "bool": "BOOLEAN", "decimal": "DECIMAL(38, 10)", "moment": "TIMESTAMP",
}  # fmt: skip

KINDS = (
    "distinct", "distinct", "limit", "limit", "limit", "sets", "sets", "group", "grouping_sets", "join", "join", "joins", "joins", "subquery",
    "subquery", "subquery", "lateral", "recursive", "cte", "window", "window", "window", "ignore_nulls", "decimals", "zones", "intervals", "lists",
    "unnest", "structs", "nested_order", "cases", "row_values", "patterns", "text", "volatile", "nulls", "nulls",
    "nested", "nested", "nested", "nested",
)  # fmt: skip
"""Methods of `Grammar`, some more often than others."""
