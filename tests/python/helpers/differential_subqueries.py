"""Statements of the differential tests with a query inside: IN, EXISTS, ANY, ALL and values, LATERAL, and recursive tables."""

from differential_cases import Statement


class Subqueries:
    """A part of `differential_grammar.Grammar`."""

    def condition(self, alias):
        """A condition on a row of `t` under the alias, that asks a query over the other table or over the same one."""
        rng = self.rng
        other = self.rng.choice([self.u, self.u, self.t])
        families = ["int", "int", "text", "date", "decimal", "moment", "zoned", "bool"]
        rng.shuffle(families)
        family = next(f for f in families if self.t.of(f) and other.of(f))
        mine = self.column(alias, family)
        inside = "y" if rng.random() < 0.8 else alias + "y"
        theirs = self.column(inside, family, table=other)
        wheres = []
        if rng.random() < 0.6:
            wheres.append(self.over(inside, other).any(1))
        if rng.random() < 0.6:
            wheres.append(self.correlation(alias, inside, other))
        where = f" WHERE {' AND '.join(f'({each})' for each in wheres)}" if wheres else ""
        # Without the alias a name belongs to the query inside, where that has it.
        bare = theirs.split(".")[1] if rng.random() < 0.2 else theirs
        source = f"FROM {other.name} AS {inside}{where}"
        operator = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        integer = self.number(inside, other)
        forms = [
            f"{mine} IN (SELECT {bare} {source})",
            f"{mine} NOT IN (SELECT {bare} {source})",
            f"EXISTS (SELECT 1 {source})",
            f"NOT EXISTS (SELECT {bare} {source})",
            f"{mine} {operator} (SELECT {rng.choice(['min', 'max'])}({bare}) {source})"
            if family != "bool"
            else f"{mine} IN (SELECT {bare} {source})",
            f"(SELECT count(*) {source}) {operator} {rng.randint(0, 4)}",
            f"coalesce((SELECT CAST(sum({integer} % 100) AS BIGINT) {source}), 0) {operator} {rng.randint(-9, 99)}",
        ]
        if family != "bool":
            forms += [
                f"{mine} {operator} ANY (SELECT {bare} {source})",
                f"{mine} {operator} ALL (SELECT {bare} {source})",
            ]
        return rng.choice(forms)

    def correlation(self, alias, inside, other):
        rng, operator = self.rng, self.rng.choice(["=", "=", "=", "<", "<>", ">="])
        if self.t.columns["k"] == other.columns["k"] and rng.random() < 0.7:
            return f"{inside}.k {operator} {alias}.k"
        return f"{self.number(inside, other)} {operator} {self.number(alias)}"

    def subquery(self):
        """A query inside, in WHERE, SELECT, CASE, ON or HAVING."""
        t, u, rng = self.t.name, self.u.name, self.rng
        condition = self.condition("t")
        rows = f"SELECT t.id AS a FROM {t} AS t"
        match rng.randrange(10):
            case 0 | 1:
                sql = f"{rows} WHERE {condition}"
            case 2:
                sql = f"{rows} WHERE NOT ({condition})"
            case 3:
                sql = (
                    f"{rows} WHERE {condition} {rng.choice(['OR', 'AND'])} {self.over('t').any(1)}"
                )
            case 4:
                sql = (
                    f"{rows} WHERE ({condition}) IS {rng.choice(['NULL', 'NOT TRUE', 'NOT FALSE'])}"
                )
            case 5:
                sql = f"SELECT t.id AS a, ({condition}) AS p FROM {t} AS t"
            case 6:
                sql = f"SELECT t.id AS a, CASE WHEN {condition} THEN 1 WHEN {self.over('t').simple()} THEN 2 ELSE 3 END AS c FROM {t} AS t"
            case 7:
                return self.value()
            case 8:
                inner = self.condition("t")
                on = (
                    "t.k = u.k"
                    if self.joinable()
                    else f"{self.number()} = {self.number('u', self.u)}"
                )
                kind = rng.choice(["JOIN", "LEFT JOIN"])
                sql = (
                    f"SELECT t.id AS a, u.id AS b FROM {t} AS t {kind} {u} AS u ON {on} AND {inner}"
                )
            case _:
                key = self.key("t")
                uncorrelated = f"(SELECT {rng.choice(['count(*)', 'max(y.id)', 'min(y.id)'])} FROM {u} AS y{self.where('y', self.u)})"
                sql = f"SELECT {key} AS g, count(*) AS n FROM {t} AS t GROUP BY {key} HAVING {rng.choice(['max(t.id)', 'count(*)'])} {rng.choice(['<', '>='])} {uncorrelated}"
        if rng.random() < 0.15:
            sql = f"SELECT count(*) AS n FROM ({sql}) AS q"
        return Statement("subquery", sql)

    def value(self):
        """A query as a value: of one row, or of none."""
        rng, u = self.rng, self.u
        one = rng.choice(
            [
                "count(*)",
                f"max({self.key('y', u)})",
                "CAST(sum(y.id) AS BIGINT)",
                "coalesce(max(y.id), -1)",
                "min(y.id) + 1",
            ]
        )
        where = self.correlation("t", "y", u)
        if rng.random() < 0.4:
            where += f" AND {self.over('y', u).simple()}"
        asked = f"SELECT {one} FROM {u.name} AS y WHERE {where}"
        if rng.random() < 0.3:
            # At most one row, which may be missing.
            asked = f"SELECT {self.key('y', u)} FROM {u.name} AS y WHERE y.id = {rng.choice(['t.id', str(rng.randint(0, 20))])}"
        elif rng.random() < 0.2:
            asked = f"SELECT y.id FROM {u.name} AS y WHERE {where} ORDER BY y.id {rng.choice(['ASC', 'DESC'])} LIMIT 1"
        return Statement(
            "subquery",
            f"SELECT t.id AS a, ({asked}) AS v FROM {self.t.name} AS t{self.where(share=0.3)}",
        )

    def lateral(self):
        """LATERAL: a query for each row."""
        rng, u = self.rng, self.u
        where = self.correlation("t", "y", u)
        inner = rng.choice(
            [
                f"SELECT y.id AS b FROM {u.name} AS y WHERE {where}",
                f"SELECT max(y.id) AS b FROM {u.name} AS y WHERE {where}",
                f"SELECT y.id AS b FROM {u.name} AS y WHERE {where} ORDER BY y.id DESC LIMIT 2",
            ]
        )
        kind = rng.choice(["CROSS JOIN LATERAL ({0}) AS l", "LEFT JOIN LATERAL ({0}) AS l ON TRUE"])
        sql = f"SELECT t.id AS a, l.b AS b FROM {self.t.name} AS t {kind.format(inner)}"
        return Statement("lateral", sql)

    def recursive(self):
        """Recursive tables: counters, walks along the rows of a table, NULLs that the recursive part makes."""
        t, rng = self.t.name, self.rng
        start, step, stop = rng.randint(-3, 3), rng.randint(1, 4), rng.randint(1, 30)
        seed = rng.choice(
            [
                f"SELECT CAST({start} AS BIGINT) AS n, CAST('a' AS VARCHAR) AS s",
                f"SELECT t.id AS n, CAST('a' AS VARCHAR) AS s FROM {t} AS t WHERE t.id < 4",
            ]
        )
        text = rng.choice(
            ["s || 'b'", "CASE WHEN n % 2 = 0 THEN NULL ELSE 'c' END", "nullif(s, 'a')", "s"]
        )
        further = f"SELECT n + {step}, {text} FROM w WHERE n < {stop}"
        union = rng.choice(["UNION ALL", "UNION ALL", "UNION"])
        head = rng.choice(["w", "w(n, s)"])
        forms = [
            f"WITH RECURSIVE {head} AS ({seed} {union} {further}) SELECT {rng.choice(['n, s', 'n', 's', 's, n', 'count(*) AS c', 'count(s) AS c'])} FROM w",
            f"WITH RECURSIVE {head} AS ({seed} {union} {further}) SELECT n, count(*) AS c FROM w WHERE s IS NOT NULL GROUP BY n",
            f"WITH RECURSIVE {head} AS ({seed} {union} {further}) SELECT w.n AS n, t.id AS i FROM w LEFT JOIN {t} AS t ON t.id = w.n",
            f"WITH RECURSIVE {head} AS ({seed} {union} {further}) SELECT a.n AS n, b.s AS s FROM w AS a JOIN w AS b ON a.n = b.n",
            f"WITH RECURSIVE {head} AS ({seed} {union} {further}) SELECT t.id AS i FROM {t} AS t WHERE t.id IN (SELECT n FROM w)",
        ]
        if self.t.columns["k"] == "int":
            edges = f"SELECT id, CAST(k AS BIGINT) * 2 AS to_id FROM {t}"
            walk = f"SELECT e.to_id{{0}} FROM r JOIN ({edges}) AS e ON e.id = r.a{{1}}"
            first = f"SELECT t.id AS a FROM {t} AS t WHERE t.id % 7 = 3"
            forms += [
                f"WITH RECURSIVE r AS ({first} UNION {walk.format('', '')}) SELECT a FROM r",
                f"WITH RECURSIVE r AS ({first.replace(' AS a', ' AS a, CAST(0 AS BIGINT) AS d')} UNION ALL {walk.format(', r.d + 1', ' WHERE r.d < 3')}) SELECT {rng.choice(['a, d', 'd', 'a', 'd, count(*) AS n'])} FROM r",
            ]
        sql = rng.choice(forms)
        if sql.endswith("count(*) AS n FROM r"):
            sql += " GROUP BY d"
        return Statement("recursive", sql)

    def cte(self):
        """Common tables that are read twice, nested, and MATERIALIZED or not."""
        rng, key = self.rng, self.key("t")
        hint = rng.choice(["", "", "MATERIALIZED ", "NOT MATERIALIZED "])
        w = f"WITH w AS {hint}(SELECT t.id AS id, {key} AS v FROM {self.t.name} AS t{self.where()})"
        sql = rng.choice(
            [
                "SELECT a.id AS x, b.id AS y FROM w AS a JOIN w AS b ON a.v = b.v AND a.id < b.id",
                "SELECT id AS x FROM w WHERE id % 2 = 0 UNION ALL SELECT id FROM w WHERE id % 3 = 0",
                "SELECT v, count(*) AS n FROM w GROUP BY v HAVING count(*) >= (SELECT count(*) FROM w) / 4.0",
                "SELECT id, v FROM w WHERE id = (SELECT max(id) FROM w)",
                "SELECT id FROM w WHERE v IN (SELECT v FROM w WHERE id < 9)",
                "SELECT id, (SELECT count(*) FROM w AS z WHERE z.v = w.v) AS n FROM w",
            ]
        )
        return Statement("common table", f"{w} {sql}")
