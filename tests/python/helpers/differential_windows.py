"""Windows of the differential tests: every function, frame and place of NULLs."""

from differential_cases import Statement


class Windows:
    """A part of `differential_grammar.Grammar`."""

    def window(self):
        """A function over a partition, in a total order, with a frame."""
        t, rng = self.t.name, self.rng
        of = self.number() if rng.random() < 0.7 else self.key("t")
        direction = rng.choice(
            [" NULLS LAST", " DESC NULLS FIRST", " ASC NULLS FIRST", " DESC NULLS LAST"]
        )
        group = f"PARTITION BY {self.key('t')} " if rng.random() < 0.6 else ""
        total = f"{self.key('t')}{direction}, t.id"
        form = rng.randrange(7)
        if form == 0:
            # Functions that give tied rows one value.
            function = rng.choice(
                [
                    "rank()",
                    "dense_rank()",
                    "percent_rank()",
                    "cume_dist()",
                    f"count({of})",
                    f"max({of})",
                    f"min({of})",
                ]
            )
            over = f"({group}ORDER BY {self.key('t')} NULLS {rng.choice(['FIRST', 'LAST'])})"
        elif form == 1:
            function = rng.choice(["row_number()", f"ntile({rng.randint(1, 5)})", *self.moved(of)])
            over = f"({group}ORDER BY {total})"
        elif form == 2:
            function = rng.choice([f"max({of})", f"count({of})", "count(*)", f"min({of})"])
            over = f"({group.strip()})"
        elif form == 3:
            return self.named(of)
        else:
            function = rng.choice(self.framed(of))
            units = rng.choice(["ROWS", "ROWS", "RANGE", "GROUPS"])
            order = total
            if units == "RANGE" or (
                units == "GROUPS" and function.startswith(("first", "last", "nth"))
            ):
                order = f"t.id{rng.choice(['', ' DESC'])}"
            over = f"({group}ORDER BY {order} {units} {self.frame()})"
        sql = f"SELECT t.id AS a, {function} OVER {over} AS r FROM {t} AS t{self.where(share=0.4)}"
        if rng.random() < 0.2:
            sql = f"SELECT a FROM ({sql}) AS q WHERE {rng.choice(['r IS NULL', 'r IS NOT NULL', 'a % 2 = 1', 'r = r'])}"
        return Statement("window", sql)

    def moved(self, of):
        rng = self.rng
        step = rng.choice([0, 1, 1, 2, 5, 400])
        return [
            f"lag({of})",
            f"lead({of})",
            f"lag({of}, {step})",
            f"lead({of}, {step})",
            f"lag(t.id, {step}, -1)",
            f"lead(t.id, {step}, -1)",
        ]

    def framed(self, of):
        """Functions whose answer depends on the frame."""
        integer = self.number()
        return [
            f"count({of})", "count(*)", f"min({of})", f"max({of})", f"first_value({of})", f"last_value({of})",
            f"nth_value({of}, {self.rng.randint(1, 3)})", f"avg({integer} % 100)", f"sum({integer} % 100)",
        ]  # fmt: skip

    def frame(self):
        """BETWEEN two bounds, the first not after the second."""
        rng = self.rng
        near, far = sorted([rng.randint(0, 4), rng.randint(0, 4)])
        return rng.choice(
            [
                "BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
                "BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
                "BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
                "BETWEEN CURRENT ROW AND CURRENT ROW",
                f"BETWEEN {far} PRECEDING AND {near} PRECEDING",
                f"BETWEEN {near} FOLLOWING AND {far} FOLLOWING",
                f"BETWEEN {far} PRECEDING AND {near} FOLLOWING",
                f"BETWEEN {far} PRECEDING AND CURRENT ROW",
                f"BETWEEN CURRENT ROW AND {far} FOLLOWING",
                f"BETWEEN UNBOUNDED PRECEDING AND {far} PRECEDING",
                f"BETWEEN UNBOUNDED PRECEDING AND {far} FOLLOWING",
                f"BETWEEN {far} FOLLOWING AND UNBOUNDED FOLLOWING",
                f"{far} PRECEDING",
                "UNBOUNDED PRECEDING",
            ]
        )

    def named(self, of):
        """Windows that have a name, and windows that extend them."""
        t, rng = self.t.name, self.rng
        key = self.key("t")
        frame = f"ROWS {self.frame()}"
        function = rng.choice(["row_number()", f"count({of})", "sum(t.id)", "max(t.id)"])
        framed = rng.choice([f"count({of})", "sum(t.id)", "max(t.id)"])
        sql = rng.choice(
            [
                f"SELECT t.id AS a, {function} OVER w AS r FROM {t} AS t WINDOW w AS (PARTITION BY {key} ORDER BY t.id)",
                f"SELECT t.id AS a, {function} OVER (w ORDER BY t.id) AS r FROM {t} AS t WINDOW w AS (PARTITION BY {key})",
                f"SELECT t.id AS a, {framed} OVER (w {frame}) AS r FROM {t} AS t WINDOW w AS (PARTITION BY {key} ORDER BY t.id)",
                f"SELECT t.id AS a, {function} OVER x AS r FROM {t} AS t WINDOW w AS (PARTITION BY {key}), x AS (w ORDER BY t.id DESC)",
                f"SELECT t.id AS a, {function} OVER (w ORDER BY t.id) AS r, {framed} OVER w AS s FROM {t} AS t WINDOW w AS (PARTITION BY {key})",
            ]
        )
        return Statement("window", sql)

    def ignore_nulls(self):
        """IGNORE NULLS, inside of the parentheses and behind them."""
        t, rng = self.t.name, self.rng
        of = self.key("t")
        step = rng.choice([1, 1, 2, 3])
        function, arguments = rng.choice(
            [
                ("lag", of),
                ("lead", of),
                ("lag", f"{of}, {step}"),
                ("lead", f"{of}, {step}"),
                ("first_value", of),
                ("last_value", of),
                ("nth_value", f"{of}, {step}"),
            ]
        )
        group = f"PARTITION BY {self.key('t')} " if rng.random() < 0.5 else ""
        framed = function not in ("lag", "lead") and rng.random() < 0.7
        frame = f" ROWS {self.frame()}" if framed else ""
        over = f"OVER ({group}ORDER BY t.id{rng.choice(['', ' DESC'])}{frame})"
        inside = f"{function}({arguments} IGNORE NULLS)"
        asked = rng.choice([inside, f"{function}({arguments}) IGNORE NULLS"])
        if rng.random() < 0.2:
            inside = asked = f"{function}({arguments}) RESPECT NULLS"
            inside = f"{function}({arguments} RESPECT NULLS)"
        rows = f"FROM {t} AS t{self.where(share=0.3)}"
        return Statement(
            "ignore nulls",
            f"SELECT t.id AS a, {asked} {over} AS r {rows}",
            judged=f"SELECT t.id AS a, {inside} {over} AS r {rows}",
        )
