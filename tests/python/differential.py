"""Runs random queries through the loader and compares what all ranks deliver with DuckDB's answer: `make differential`.

A case follows from its seed alone: tables, queries, topologies. Its queries partition a predicate three ways (`p`, `NOT p`, `p IS
NULL`), as SQLancer does: each part is DuckDB's, and together they are the whole table, whatever the engines think of `p`.

    python tests/python/differential.py --queries 5000 --seed 0
    python tests/python/differential.py --replay 17
"""

import argparse
import contextlib
import decimal
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import tensorquery as tq
from answers import assert_same_answer
from differential_cases import Predicates, Topology, make_table


class Difference(AssertionError):
    """The two engines disagree."""


def relation(rng, tables):
    """A FROM clause, and the columns that it offers: (how SQL names them, family, values)."""
    t, u = tables
    offered = [(f"t.{name}", family, t.values[name]) for name, family in t.columns.items()]
    if rng.random() < 0.6 or t.columns["k"] != u.columns["k"]:
        return f"{t.name} AS t", offered
    kind = rng.choice(["JOIN", "LEFT JOIN", "LEFT SEMI", "LEFT ANTI"])
    if kind.startswith("LEFT S") or kind.startswith("LEFT A"):
        negated = "NOT " * (kind == "LEFT ANTI")
        inner = f"SELECT * FROM {t.name} AS x WHERE {negated}EXISTS (SELECT 1 FROM {u.name} AS u WHERE u.k = x.k)"
        return f"({inner}) AS t", offered
    offered += [(f"u.{name}", family, u.values[name]) for name, family in u.columns.items()]
    return f"{t.name} AS t {kind} {u.name} AS u ON t.k = u.k", offered


def projection(rng, predicates, source):
    """The output columns: some of the source's, computed ones, and a predicate as a column."""
    chosen = rng.sample(source, rng.randint(1, min(5, len(source))))
    values = [f"{name} AS c{number}" for number, (name, _, _) in enumerate(chosen)]
    families = [family for _, family, _ in chosen]
    if rng.random() < 0.4:
        values.append(f"{predicates.any(1)} AS p")
        families.append("bool")
    if rng.random() < 0.3 and predicates.pick("int"):
        values.append(f"{predicates.term('int')[0]} AS i")
        families.append("int")
    return ", ".join(values), families


class Case:
    """The tables and queries of one seed.

    Args:
        seed: What all follows from.
        folder: Where the tables are written.
        duck: A connection of DuckDB.
    """

    def __init__(self, seed, folder, duck):
        self.seed = seed
        self.rng = random.Random(seed)
        self.duck = duck
        self.folder = Path(folder)
        self.session = tq.Session()
        self.tables = [
            make_table(self.rng, self.folder / "t", "t1"),
            make_table(self.rng, self.folder / "u", "u1", most=12),
        ]
        for table in self.tables:
            self.session.register_parquet(
                table.name, table.folder, partitioning="hive" if table.hive else False
            )
            files = f"read_parquet('{table.folder}/**/*.parquet', hive_partitioning={str(table.hive).lower()})"
            # A table in memory: over the files, DuckDB 2.0 prunes row groups with a NaN by statistics that leave it out.
            duck.execute(f"CREATE OR REPLACE TABLE {table.name} AS SELECT * FROM {files}")

    def run(self):
        """Compare the queries, and count them by kind."""
        rng = self.rng
        source, offered = relation(rng, self.tables)
        predicates = Predicates(rng, offered)
        values, families = projection(rng, predicates, offered)
        predicate = predicates.any()
        base = f"SELECT {values} FROM {source}"
        done = Counter()
        whole = self.answer(base)
        self.check(base, whole, families)
        done["whole table"] += 1
        parts = []
        for part in (predicate, f"NOT ({predicate})", f"({predicate}) IS NULL"):
            sql = f"{base} WHERE {part}"
            expected = self.answer(sql)
            self.check(sql, expected, families)
            parts.append(expected)
            done["part of three"] += 1
        # Each of these is what the loader delivered, so this compares the loader's parts with the whole.
        assert_same_answer(pa.concat_tables(parts), whole)
        if rng.random() < 0.5 and source == "t1 AS t":
            own = Predicates(rng, [(name, *rest) for name, *rest in offered])
            inner = own.any().replace("t.", "")
            everything = f"SELECT * FROM {self.tables[0].name}"
            expected = self.answer(f"{everything} WHERE {inner}")
            all_families = [*self.tables[0].columns.values()]
            self.check(everything, expected, all_families, filters=inner)
            done["filters="] += 1
        sql, kind, families = self.other(base, predicates, source, families)
        self.check(sql, self.answer(sql), families)
        done[kind] += 1
        return done

    def other(self, base, predicates, source, families):
        """A query over the base that is not a WHERE."""
        rng = self.rng
        kind = rng.choice(["union", "group", "distinct", "window", "limit"])
        if kind == "union":
            return (
                f"{base} WHERE {predicates.any()} UNION ALL {base} WHERE {predicates.any()}",
                kind,
                families,
            )
        if kind == "group":
            key = predicates.pick("int", "text", "date", "bool")[0]
            value = predicates.term("int")[0]
            sql = (
                f"SELECT {key} AS g, CAST(count(*) AS BIGINT) AS n, CAST(sum({value} % 1000) AS BIGINT) AS s, "
                f"max({value}) AS m FROM {source} WHERE {predicates.any(1)} GROUP BY {key}"
            )
            return sql, kind, ["list"]
        key = predicates.pick("int", "text", "date")[0]
        if kind == "distinct":
            return (
                f"SELECT DISTINCT {key} AS d, {predicates.any(1)} AS p FROM {source}",
                kind,
                ["list"],
            )
        ordered = "t.id" + (", u.id" if " u ON" in source else "")
        if kind == "window":
            over = f"OVER (PARTITION BY {key} ORDER BY {ordered.replace(', ', ' NULLS LAST, ')} NULLS LAST)"
            return (
                f"SELECT t.id AS a, CAST(row_number() {over} AS BIGINT) AS r FROM {source}",
                kind,
                ["int", "int"],
            )
        sql = f"SELECT t.id AS a, {key} AS b FROM {source} WHERE {predicates.any(1)} ORDER BY {ordered} LIMIT {rng.randint(1, 40)}"
        # Rows with the same numbers may have any order: only unjoined ones are ordered totally.
        if " u ON" in source:
            sql = f"SELECT t.id AS a, {key} AS b FROM {source} WHERE {predicates.any(1)}"
        return sql, kind, ["list"]

    def answer(self, sql):
        """DuckDB's."""
        return self.duck.sql(sql).to_arrow_table()

    def check(self, sql, expected, families, filters=None):
        """Load a query at a random topology, and compare.

        Raises:
            Difference: What came is not what was expected.
        """
        topology = Topology.random(self.rng)
        if "list" in families:
            topology.output = "arrow"
        rows, world = expected.num_rows, topology.world_size
        steps = math.ceil(math.ceil(rows / world) / topology.options["batch_size"])
        if rows == 0 or (topology.remainder == "even" and rows // world < steps):
            # No rank may be without a row at a step.
            topology.remainder = "uneven"
        may_be_parted = topology.remainder != "uneven" and "split_strategy" in topology.options
        if may_be_parted and self.rng.random() < 0.15:
            topology.options |= {"partitions": world, "split_strategy": "lpt"}
        try:
            query = self.session.sql(sql)
            ranks = [self.load(query, rank, topology, filters) for rank in range(world)]
            schema = query.schema
            # Of an aggregate the schema may say that a column has no nulls, and its batches not.
            tables = [
                pa.Table.from_batches(rank) if rank else schema.empty_table() for rank in ranks
            ]
            delivered = pa.concat_tables(tables, promote_options="default")
            self.judge(delivered, ranks, expected, topology)
        except Exception as error:
            told = f" with filters={filters!r}" if filters else ""
            raise Difference(
                f"seed {self.seed}: {type(error).__name__}: {error}\n{sql}{told}\n{topology}"
            ) from error

    def load(self, query, rank, topology, filters):
        """The batches of one rank, as Arrow."""
        options = {} if topology.output == "arrow" else {"nulls": "mask", "decimal": "int64"}
        loader, _ = tq.create_dataloader(
            query,
            filters=filters,
            rank=rank,
            world_size=topology.world_size,
            remainder=topology.remainder,
            output_format=topology.output,
            stage_dir=self.folder / "stages",
            **topology.options,
            **options,
        )
        if topology.output == "arrow":
            return list(loader)
        return [from_tensors(batch, query.schema) for batch in loader]

    def judge(self, delivered, ranks, expected, topology):
        """What each way to end an epoch promises."""
        size, world = topology.options["batch_size"], topology.world_size
        if topology.remainder in ("even", "uneven"):
            assert_same_answer(delivered, expected)
        if topology.remainder != "uneven":
            steps = {len(rank) for rank in ranks}
            assert len(steps) == 1, f"ranks take {steps} steps"
        if topology.remainder in ("drop", "pad"):
            full = {batch.num_rows for rank in ranks for batch in rank}
            assert full <= {size}, f"batches of {full} rows"
            rows = expected.num_rows
            wanted = rows // (size * world) * size * world
            if topology.remainder == "pad":
                wanted = -(-rows // (size * world)) * size * world
            assert delivered.num_rows == wanted, f"{delivered.num_rows} rows, expected {wanted}"
            more, less = (
                (delivered, expected) if topology.remainder == "pad" else (expected, delivered)
            )
            if not differs_only_by_repeats(more, less, of=expected):
                raise AssertionError(
                    f"{topology.remainder}: rows that are not the query's, or too few of them"
                )


def differs_only_by_repeats(more, less, of):
    """Whether `more` holds each row of `less` as often, and no row that is not one of `of`."""
    more, less, of = (multiset(table) for table in (more, less, of))
    return not less - more and set(more) <= set(of)


def multiset(table):
    """Rows by how they are written; widths of integers and units of time do not matter to that."""
    return Counter(map(repr, map(plain, table.to_pylist())))


def plain(row):
    """A row as both engines write it."""
    return [float(value) if isinstance(value, decimal.Decimal) else value for value in row.values()]


def from_tensors(batch, schema):
    """Tensors and masks as Arrow, without a rounding."""
    arrays = []
    for column in schema:
        values, mask = batch[column.name], batch.get(f"{column.name}_mask")
        missing = None if mask is None else ~np.asarray(mask)
        if isinstance(values, list):
            array = pa.array(values, column.type, mask=missing)
        elif pa.types.is_decimal(column.type):
            unscaled = np.asarray(values).tolist()
            exact = [decimal.Decimal(value).scaleb(-column.type.scale) for value in unscaled]
            array = pa.array(exact, column.type, mask=missing)
        else:
            array = pa.array(np.asarray(values), mask=missing)
            if pa.types.is_date32(column.type):
                array = array.cast(pa.int32())
            array = array.cast(column.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def run_seed(seed, duck):
    """All queries of one seed, in a folder that is gone afterwards."""
    folder = tempfile.mkdtemp(prefix="differential-")
    try:
        return Case(seed, folder, duck).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(queries, first_seed, seconds=None, report=None):
    """Run cases until so many queries are done, or the time is over.

    Returns:
        Queries by kind, the seed after the last one, and the differences found.
    """
    done, differences, seed, start = Counter(), [], first_seed, time.monotonic()
    with duckdb.connect(config={"threads": 1}) as duck:
        while sum(done.values()) < queries and (
            seconds is None or time.monotonic() - start < seconds
        ):
            try:
                done += run_seed(seed, duck)
            except Difference as difference:
                differences.append(str(difference))
                if report:
                    report(str(difference))
            seed += 1
            if report and seed % 50 == 0:
                report(
                    f"{sum(done.values())} queries, {len(differences)} differences, next seed {seed}"
                )
    return done, seed, differences


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument(
        "--replay", type=int, help="run the case of this seed alone, and say what it asks"
    )
    parser.add_argument("--record", type=Path, help="a JSON file that gets the result")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as caches:
        os.environ["TENSORQUERY_CACHE"] = caches
        os.environ["TENSORQUERY_STAGES"] = f"{caches}/stages"
        if arguments.replay is not None:
            with (
                duckdb.connect(config={"threads": 1}) as duck,
                contextlib.suppress(KeyboardInterrupt),
            ):
                print(dict(run_seed(arguments.replay, duck)))
            return
        start = time.monotonic()
        done, seed, differences = run(
            arguments.queries, arguments.seed, report=lambda text: print(text, flush=True)
        )
    result = {
        "queries": sum(done.values()),
        "by_kind": dict(sorted(done.items())),
        "seeds": [arguments.seed, seed],
        "differences": len(differences),
        "duckdb": duckdb.__version__,
        "minutes": round((time.monotonic() - start) / 60, 1),
    }
    print(json.dumps(result, indent=2))
    if arguments.record:
        arguments.record.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
