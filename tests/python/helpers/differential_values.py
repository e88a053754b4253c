"""Statements of the differential tests about values: decimals, instants, intervals, lists, structs, rows, CASE, patterns and text."""

from differential_cases import Statement, literal

INTERVALS = (
    "INTERVAL '1 day'", "INTERVAL '1 month'", "INTERVAL '3 hours'", "INTERVAL '1 year 2 months'", "INTERVAL '90 minutes'",
    "INTERVAL '1 month 2 days 3 hours'", "INTERVAL '-1 day'", "INTERVAL '-2 months'", "INTERVAL '13 months'", "INTERVAL '1' DAY",
)  # fmt: skip

PATTERNS = (
    "a",
    "^a",
    "b$",
    "a.*",
    "[ab]+",
    "^$",
    ".",
    "é|ß",
    "(a|b)c?",
    "[^a]",
    "\\s",
    "x{3,}",
    "^(?:abc|A)$",
    "\\d",
)

FUNCTIONS = (
    "concat({0}, '-', {1})", "left({0}, 2)", "right({0}, 2)", "replace({0}, 'a', 'zz')", "trim({0})", "lpad({0}, 4, '*')",
    "rpad({0}, 4, '*')", "strpos({0}, 'b')", "split_part({0}, 'a', 1)", "reverse({0})", "length({0})", "starts_with({0}, 'a')",
    "repeat({0}, 2)", "concat_ws(',', {0}, {1})", "substr({0}, 2)", "ltrim({0})", "translate({0}, 'ab', 'xy')", "{0} || {1}",
    "nullif({0}, {1})", "coalesce({0}, {1}, 'none')", "ascii({0})", "octet_length({0})", "substr({0}, 2, 3)",
    "CAST({2} AS VARCHAR)", "md5({0})", "position('a' IN {0})",
)  # fmt: skip
"""Of two texts and an integer."""

SHORT = (
    "regexp_replace({0}, '[ab]', '#')", "regexp_replace({0}, '[ab]', '#', 'g')", "regexp_like({0}, '{1}')",
    "NOT regexp_like({0}, '{1}')", "{0} LIKE '%a_%'", "{0} ILIKE 'A%'", "{0} NOT ILIKE '%B%'", "{0} LIKE 'a!%%' ESCAPE '!'",
    "{0} ~ '^(?:{1}).*$'", "{0} !~ '^(?:{1}).*$'", "regexp_replace({0}, '(a)(b)?', '<\\1>')",
)  # fmt: skip


class Values:
    """A part of `differential_grammar.Grammar`."""

    def rows_of(self, kind, values, alias="t"):
        """A projection, a filter, or groups of an expression or a condition."""
        t, rng = self.t.name, self.rng
        sql = f"SELECT {alias}.id AS a, {values} AS v FROM {t} AS {alias}{self.where(alias, share=0.4)}"
        if rng.random() < 0.25:
            sql = f"SELECT v, count(*) AS n FROM ({sql}) AS q GROUP BY v"
        return Statement(kind, sql)

    def filtered(self, kind, condition):
        """The rows for which a condition is true, false or unknown; or the condition as a column."""
        t, rng = self.t.name, self.rng
        form = rng.choice(
            [
                "SELECT t.id AS a FROM {0} AS t WHERE {1}",
                "SELECT t.id AS a FROM {0} AS t WHERE NOT ({1})",
                "SELECT t.id AS a FROM {0} AS t WHERE ({1}) IS NULL",
                "SELECT t.id AS a, {1} AS p FROM {0} AS t",
                "SELECT count(*) AS n FROM {0} AS t WHERE {1}",
            ]
        )
        return Statement(kind, form.format(t, condition))

    def decimals(self):
        """Arithmetic, sums and comparisons of decimals of every width."""
        t, rng = self.t.name, self.rng
        one = self.column("t", "decimal")
        if one is None:
            return None
        two, integer = self.column("t", "decimal"), self.number()
        known = [value for value in self.t.values[one.split(".")[1]] if value is not None]
        value = literal("decimal", rng.choice(known)) if known else "NULL"
        match rng.randrange(5):
            case 0:
                key = rng.choice(["", self.key("t")])
                sums = (
                    f"sum({one}) AS s, min({one}) AS l, max({one}) AS h, count(DISTINCT {one}) AS n"
                )
                sql = f"SELECT {sums} FROM {t} AS t{self.where()}"
                return Statement(
                    "decimals",
                    sql
                    if not key
                    else f"{sql.replace('SELECT', f'SELECT {key} AS g,')} GROUP BY {key}",
                )
            case 1:
                operator = rng.choice(["=", "<", ">=", "<>"])
                right = rng.choice(
                    [two, value, f"{integer} % 100", f"CAST({integer} % 100 AS DECIMAL(9, 2))"]
                )
                return self.filtered("decimals", f"{one} {operator} {right}")
            case 2:
                return self.filtered(
                    "decimals",
                    f"{one} {rng.choice(['', 'NOT '])}{rng.choice([f'IN ({value}, {two})', f'BETWEEN {value} AND {two}'])}",
                )
            case 3:
                made = rng.choice(
                    [
                        f"-{one}", f"abs({one})", f"{one} + {one}", f"{one} - 1", f"coalesce({one}, 0)",
                        f"CASE WHEN {one} > 0 THEN {one} ELSE {two} END", f"nullif({one}, {two})", f"CAST({one} AS DECIMAL(38, 10))",
                        f"CAST({one} AS DOUBLE)", f"greatest({one}, {two})",
                    ]
                )  # fmt: skip
                return self.rows_of("decimals", made)
            case _:
                return Statement(
                    "decimals",
                    f"SELECT t.id AS a, sum({one}) OVER (ORDER BY t.id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM {t} AS t",
                )

    def zones(self):
        """Instants: compared with each other and with literals of other offsets, moved, grouped."""
        rng, one = self.rng, self.column("t", "zoned")
        if one is None:
            return None
        two = self.column("t", "zoned")
        at = f"2024-03-{rng.randint(9, 11):02} {rng.randrange(24):02}:{rng.choice(['00', '30'])}:00"
        value = rng.choice(
            [
                f"TIMESTAMPTZ '{at}+00'",
                f"TIMESTAMPTZ '{at}-06:00'",
                f"CAST('{at}+05:30' AS TIMESTAMPTZ)",
                two,
            ]
        )
        operator = rng.choice(["=", "<", "<=", ">", ">=", "<>"])
        match rng.randrange(4):
            case 0 | 1:
                return self.filtered("zones", f"{one} {operator} {value}")
            case 2:
                return self.rows_of(
                    "zones",
                    rng.choice(
                        [
                            one, f"{one} - INTERVAL '1 hour'", f"{one} + INTERVAL '90 minutes'", f"coalesce({one}, {value})",
                            f"CAST(floor(extract(epoch FROM {one})) AS BIGINT)", f"nullif({one}, {two})",
                            f"CASE WHEN {one} < {value} THEN {one} ELSE {two} END",
                        ]
                    ),
                )  # fmt: skip
            case _:
                t = self.t.name
                return Statement(
                    "zones",
                    f"SELECT t.k AS g, min({one}) AS l, max({one}) AS h, count(DISTINCT {one}) AS n FROM {t} AS t{self.where()} GROUP BY t.k",
                )

    def intervals(self):
        """Dates and timestamps that are moved, cut and taken apart."""
        rng, one = self.rng, self.column("t", "date", "moment")
        if one is None or one == "t.part":
            return None
        interval = rng.choice(INTERVALS)
        value = rng.choice(
            [
                "DATE '1970-01-15'",
                "TIMESTAMP '1970-01-01 00:00:00'",
                "TIMESTAMP '2026-01-01 12:00:00'",
            ]
        )
        moved = f"{one} {rng.choice('+-')} {interval}"
        if rng.random() < 0.4:
            operator = rng.choice(["=", "<", "<=", ">", ">="])
            return self.filtered(
                "intervals",
                rng.choice(
                    [f"{moved} {operator} {value}", f"{one} {operator} {value} + {interval}"]
                ),
            )
        part = rng.choice(
            [
                "year",
                "month",
                "day",
                "dow",
                "doy",
                "week",
                "quarter",
                "hour",
                "minute",
                "isodow",
                "epoch",
            ]
        )
        unit = rng.choice(["year", "month", "day", "week", "quarter", "hour"])
        moment = f"CAST({one} AS TIMESTAMP)"
        return self.rows_of(
            "intervals",
            rng.choice(
                [
                    moved, moved, f"date_trunc('{unit}', {moment})", f"CAST(floor(extract({part} FROM {moment})) AS BIGINT)",
                    f"CAST({one} AS DATE)", f"date_part('{part}', {moment})", f"CAST({moment} AS DATE)",
                ]
            ),
        )  # fmt: skip

    def lists(self):
        """Lists: their elements, slices, order and comparison, and lists that are made."""
        rng, one = self.rng, self.column("t", "list")
        if one is None:
            return None
        kind = self.t.rows.schema.field(one.split(".")[1]).type.value_type
        item = "'a'" if "string" in str(kind) else str(rng.randint(-9, 9))
        two = rng.choice([one, self.column("t", "list")])
        if self.t.rows.schema.field(two.split(".")[1]).type.value_type != kind:
            two = one
        order = rng.choice(
            ["", ", 'ASC', 'NULLS LAST'", ", 'DESC', 'NULLS FIRST'", ", 'DESC', 'NULLS LAST'"]
        )
        if rng.random() < 0.3:
            return self.filtered(
                "lists",
                rng.choice(
                    [f"array_has({one}, {item})", f"{one} = {two}", f"({one} IS NULL OR {item} = ANY({one}))", f"{one}[1] = {item}", f"{one} IS NULL",
                     f"{one} <> {two}", f"array_position({one}, {item}) = 1"]
                ),
            )  # fmt: skip
        return self.rows_of(
            "lists",
            rng.choice(
                [
                    one, f"{one}[1]", f"{one}[2]", f"{one}[1:2]", f"array_sort({one}{order})", f"CASE WHEN coalesce({one}, {two}) IS NULL THEN NULL ELSE array_concat({one}, {two}) END",
                    f"array_append({one}, {item})", f"array_prepend({item}, {one})", f"[{self.number()}, 1, NULL]",
                    f"coalesce({one}, [])", f"CASE WHEN {self.over('t').simple()} THEN {one} ELSE {two} END",
                    f"CASE WHEN {one}[1] IS NULL THEN 0 ELSE array_length({one}) END",
                ]
            ),
        )  # fmt: skip

    def unnest(self):
        """A row for each element: in SELECT, in FROM, above and below other clauses."""
        t, rng, one = self.t.name, self.rng, self.column("t", "list")
        one = one or f"[{self.number()}, 1, NULL]"
        made = f"SELECT t.id AS a, unnest({one}) AS v FROM {t} AS t{self.where(share=0.4)}"
        sql = rng.choice(
            [
                made,
                f"SELECT v, count(*) AS n FROM ({made}) AS q GROUP BY v",
                f"SELECT DISTINCT a FROM ({made}) AS q",
                f"SELECT a, v FROM ({made}) AS q WHERE v IS NOT NULL",
                f"SELECT t.id AS a, x.v AS v FROM {t} AS t CROSS JOIN unnest({one}) AS x(v)",
                f"SELECT t.k AS g, array_agg(t.id ORDER BY t.id) AS l FROM {t} AS t GROUP BY t.k",
                f"SELECT a, count(v) AS n FROM ({made}) AS q GROUP BY a",
            ]
        )
        return Statement("unnest", sql)

    def structs(self):
        """Fields of structs: of columns, of CASE, and of structs that are made."""
        rng, one = self.rng, self.column("t", "struct")
        made = f"{{'a': {self.number()}, 'b': {self.key('t')}}}"
        one = one or made
        if rng.random() < 0.3:
            return self.filtered(
                "structs",
                rng.choice(
                    [
                        f"{one}['a'] > 1",
                        f"{one} IS NULL",
                        f"{one}['b'] IS NOT NULL",
                        f"{one}['a'] = {made}['a']",
                    ]
                ),
            )
        return self.rows_of(
            "structs",
            rng.choice(
                [
                    f"{one}['a']", f"{one}['b']", f"{made}['b']",
                    f"(CASE WHEN {self.over('t').simple()} THEN {one} END)['a']",
                    f"(CASE WHEN {self.over('t').simple()} THEN {one} ELSE NULL END)['b']",
                    f"coalesce({one}['a'], -1)",
                ]
            ),
        )  # fmt: skip

    def nested_order(self):
        """Lists and structs compared, ordered, grouped and joined, with NULL in them."""
        t, rng = self.t.name, self.rng
        number, key = self.number("x"), self.key("x")
        made = [
            f"{{'a': {number}, 'b': {key}}}",
            f"[{number} % 3, {number} % 2]",
            f"[{{'a': {key}}}]",
            f"{{'a': [{key}], 'b': {number} % 2}}",
        ]
        stored = [self.column("x", "list"), self.column("x", "struct")]
        one = rng.choice(made + [column for column in stored if column is not None] * 2)
        few = f"(SELECT id AS i, k, {one} AS v FROM {t} AS x WHERE id < {rng.randint(2, 16)})"
        operator = rng.choice(["<", "<=", ">", ">=", "=", "<>", "IS NOT DISTINCT FROM"])
        return Statement(
            "nested order",
            rng.choice(
                [
                    f"SELECT a.i AS i, b.i AS j FROM {few} AS a JOIN {few} AS b ON a.v {operator} b.v",
                    f"SELECT a.i AS i, b.i AS j, a.v {operator} b.v AS c FROM {few} AS a CROSS JOIN {few} AS b",
                    f"SELECT a.i AS i, b.i AS j FROM {few} AS a, {few} AS b WHERE a.v {rng.choice(['', 'NOT '])}BETWEEN b.v AND b.v",
                    f"SELECT min(v) AS a, max(v) AS b, count(DISTINCT v) AS n FROM {few} AS q",
                    f"SELECT i % 3 AS g, min(v) AS a, max(v) FILTER (WHERE i > 2) AS b FROM {few} AS q GROUP BY i % 3",
                    f"SELECT v, count(*) AS n FROM {few} AS q GROUP BY v",
                    f"SELECT i, v FROM {few} AS q ORDER BY v {rng.choice(['ASC NULLS LAST', 'DESC NULLS FIRST', 'DESC NULLS LAST'])}, i LIMIT 5",
                    f"SELECT i, rank() OVER (ORDER BY v NULLS LAST) AS r FROM {few} AS q",
                ]
            ),
        )  # fmt: skip

    def cases(self):
        """CASE in both forms, nested, as a key, in aggregates and in conditions."""
        rng = self.rng
        family = rng.choice(
            [family for family in ("int", "text", "date", "moment") if self.t.of(family)]
        )
        terms = [self.column("t", family) for _ in range(3)]
        if family == "int":
            terms = [f"CAST({term} AS BIGINT)" for term in terms]
        one, two, three = terms
        p, q = self.over("t"), self.over("t")
        known = [v for v in self.t.values[self.column("t", family).split(".")[1]] if v is not None]
        value = literal(family, rng.choice(known)) if known and family != "date" else two
        form = rng.choice(
            [
                f"CASE WHEN {p.any(1)} THEN {one} WHEN {q.any(1)} THEN {two} ELSE {three} END",
                f"CASE {one} WHEN {value} THEN 1 WHEN {two} THEN 2 END",
                f"CASE WHEN {p.any(1)} THEN CASE WHEN {q.any(1)} THEN 1 ELSE 2 END ELSE 3 END",
                f"CASE WHEN {p.any(1)} THEN NULL ELSE {one} END",
                f"coalesce({one}, {two}, {three})",
                f"nullif({one}, {value})",
                f"CASE {one} WHEN NULL THEN 1 ELSE 0 END",
                f"CASE WHEN {p.any(1)} THEN 'yes' WHEN NOT ({p.any(1)}) THEN 'no' END",
                f"greatest({one}, {two})",
                f"least({one}, {two}, {three})",
            ]
        )
        if rng.random() < 0.3:
            return self.filtered("case", f"({form}) IS NOT NULL AND {p.any(1)}")
        return self.rows_of("case", form)

    def row_values(self):
        """Rows of two values that are compared; SQLite judges them, since DuckDB takes them for structs, in which a NULL equals a NULL."""
        rng = self.rng
        families = [f for f in ("int", "text") if self.t.of(f)]
        first, second = rng.choice(families), rng.choice(families)
        a, b, c, d = (self.column("t", f) for f in (first, second, first, second))

        def some(family, name):
            known = [value for value in self.t.values[name.split(".")[1]] if value is not None]
            return literal(family, rng.choice(known)) if known and rng.random() < 0.9 else "NULL"

        listed = ", ".join(
            f"({some(first, a)}, {some(second, b)})" for _ in range(rng.randint(1, 3))
        )
        operator = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        condition = rng.choice(
            [
                f"({a}, {b}) {operator} ({c}, {d})",
                f"({a}, {b}) {operator} ({some(first, a)}, {some(second, b)})",
                f"({a}, {b}) IN (SELECT {c.replace('t.', 'y.')}, {d.replace('t.', 'y.')} FROM {self.t.name} AS y WHERE y.id % 3 = 1)",
                f"({a}, {b}) NOT IN (SELECT {c.replace('t.', 'y.')}, {d.replace('t.', 'y.')} FROM {self.t.name} AS y WHERE y.id % 3 = 1)",
                f"({a}, {b}) IN (VALUES {listed})"
                if rng.random() < 0.3
                else f"({a}, {b}) {operator} ({c}, {some(second, b)})",
            ]
        )
        made = self.filtered("row values", condition)
        made.judge = "sqlite"
        return made

    def patterns(self):
        """Regular expressions, LIKE and ILIKE."""
        rng, one = self.rng, self.column("t", "text")
        if one is None:
            return None
        made = rng.choice(SHORT).format(one, rng.choice(PATTERNS))
        return (
            self.rows_of("patterns", made) if "replace" in made else self.filtered("patterns", made)
        )

    def text(self):
        """Functions of texts."""
        moment = self.column("t", "moment")
        if moment is not None and self.rng.random() < 0.2:
            text = f"CAST({moment} AS VARCHAR)"
            return self.rows_of(
                "times as text", self.rng.choice([text, f"{moment} || 'x'", f"length({text})"])
            )
        one, two = self.column("t", "text"), self.column("t", "text")
        if one is None:
            return None
        return self.rows_of("text", self.rng.choice(FUNCTIONS).format(one, two, self.number()))

    def volatile(self):
        """Random values are drawn once each, so that the answer is known whatever they are."""
        t, rng = self.t.name, self.rng
        drawn = f"SELECT t.id AS id, {rng.choice(['random()', 'random()', 'random() * 10'])} AS r FROM {t} AS t"
        return Statement(
            "volatile",
            rng.choice(
                [
                    f"SELECT count(*) AS n FROM ({drawn}) AS q WHERE r < 0.5 AND r >= 0.5",
                    f"SELECT count(*) AS n FROM (SELECT r AS a, r + 0 AS b FROM ({drawn}) AS q) AS z WHERE a <> b",
                    f"SELECT count(*) AS n FROM (SELECT r AS a, r AS b FROM ({drawn}) AS q) AS z WHERE a <> b",
                    f"SELECT count(*) AS n FROM ({drawn}) AS q WHERE coalesce(nullif(r, 2), 3) <> r",
                    f"SELECT count(*) AS n FROM (SELECT CASE WHEN r < 0.5 THEN r ELSE 0 END AS a FROM ({drawn}) AS q) AS z WHERE a >= 0.5",
                    f"SELECT count(*) AS n FROM (SELECT uuid() AS u FROM {t}) AS q WHERE u <> u",
                    f"WITH w AS MATERIALIZED ({drawn}) SELECT count(*) AS n FROM w AS a JOIN w AS b ON a.id = b.id WHERE a.r <> b.r",
                ]
            ),
        )
