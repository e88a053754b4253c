"""Asks random statements over random tables in every format, and compares what comes with what three judges say: `make differential`.

A case follows from its seed alone: tables, the sources that hold their rows, statements and topologies. A third of its statements
partition a predicate three ways (`p`, `NOT p`, `p IS NULL`), as SQLancer does; the others are of `differential_grammar`. Each is asked
of every source: all answers are the judge's. What is refused by name is counted by its reason; an error that is not a refusal, a
crash and a hang are differences.

    python tests/python/helpers/differential.py --queries 5000 --seed 0
    python tests/python/helpers/differential.py --replay 17
    python tests/python/helpers/differential.py --planted
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa

import differential_sources as sources_of
import differential_spill as spill
import tensorquery as tq
from answers import assert_same_answer
from differential_cases import Predicates, Statement, Topology
from differential_grammar import Grammar
from differential_judges import Judges, JudgesDifferError, NoWordError, duck_session
from differential_loads import ask
from differential_tables import KEYS, make_table
from differential_tally import Tally, reason_of

STATEMENTS = 20
"""Of the grammar, in a case."""

SPILLING = 0.02
"""Share of the cases whose tables are larger than the session's memory."""


def relation(rng, tables):
    """A FROM clause, and the columns that it offers: (how SQL names them, family, values)."""
    t, u = tables
    values = t.values
    offered = [(f"t.{name}", family, values[name]) for name, family in t.columns.items()]
    if rng.random() < 0.6 or t.columns["k"] != u.columns["k"]:
        return f"{t.name} AS t", offered
    kind = rng.choice(["JOIN", "LEFT JOIN", "LEFT SEMI", "LEFT ANTI"])
    if kind.startswith("LEFT S") or kind.startswith("LEFT A"):
        negated = "NOT " * (kind == "LEFT ANTI")
        inner = f"SELECT * FROM {t.name} AS x WHERE {negated}EXISTS (SELECT 1 FROM {u.name} AS u WHERE u.k = x.k)"
        return f"({inner}) AS t", offered
    values = u.values
    offered += [(f"u.{name}", family, values[name]) for name, family in u.columns.items()]
    return f"{t.name} AS t {kind} {u.name} AS u ON t.k = u.k", offered


def projection(rng, predicates, source):
    """The output columns: some of the source's, computed ones, and a predicate as a column."""
    chosen = rng.sample(source, rng.randint(1, min(5, len(source))))
    values = [f"{name} AS c{number}" for number, (name, _, _) in enumerate(chosen)]
    if rng.random() < 0.4:
        values.append(f"{predicates.any(1)} AS p")
    if rng.random() < 0.3 and predicates.pick("int"):
        values.append(f"{predicates.term('int')[0]} AS i")
    return ", ".join(values)


class Case:
    """The tables, sources and statements of one seed.

    Args:
        seed: What all follows from.
        folder: Where the tables are written.
        judges: Who says what is right.
        plant: A fault to plant, of `differential_planted`.
    """

    def __init__(self, seed, folder, judges, plant=None):
        self.seed, self.folder, self.judges, self.plant = seed, Path(folder), judges, plant
        self.rng = rng = random.Random(seed)
        self.tally = Tally()
        self.sources, kinds = sources_of.choose(rng)
        keys = [kind for kind in KEYS if kind in kinds]
        key = rng.choice(keys) if rng.random() < 0.9 else None
        hive = all(source.hive for source in self.sources)
        self.spilling = rng.random() < SPILLING
        self.tables = (
            spill.tables(rng)
            if self.spilling
            else [
                make_table(rng, "t1", kinds=kinds, key=key, hive=hive),
                make_table(rng, "u1", kinds=kinds, key=key, hive=hive, most=12),
            ]
        )
        if self.spilling:
            # The other writers would make thousands of row groups, of three rows each.
            self.sources = [sources_of.OTHERS["memory"], sources_of.Parquet("duckdb", "present")]
        judges.load(self.tables)
        asked = [(source, self.registered(n, source)) for n, source in enumerate(self.sources)]
        self.asked = [(source, session) for source, session in asked if session is not None]

    def registered(self, number, source):
        """A session with the tables in one form; None where they cannot be registered, which is a difference."""
        session = tq.Session(memory_limit=spill.MEMORY if self.spilling else None)
        for table in self.tables:
            folder = str(self.folder / f"{number}" / table.name)
            rng = random.Random(self.seed + number)
            try:
                source.register(rng, session, table, folder, self.plant)
            except tq.TensorQueryError as error:
                text = f"{source.name}: {type(error).__name__}: {str(error)[:600]}"
                self.tally.differences.append(f"seed {self.seed}: not registered, {text}")
                return None
        return session

    def run(self):
        """Ask everything, and return the `Tally`."""
        if self.spilling:
            for statement in spill.statements(self.rng):
                self.compare(statement)
            return self.tally
        self.three_ways()
        grammar = Grammar(self.rng, self.tables)
        for _ in range(STATEMENTS):
            statement = grammar.any()
            if statement is not None:
                self.compare(statement)
        return self.tally

    def three_ways(self):
        """A relation as a whole, and in three parts."""
        rng = self.rng
        source, offered = relation(rng, self.tables)
        predicates = Predicates(rng, offered)
        base = f"SELECT {projection(rng, predicates, offered)} FROM {source}"
        predicate = predicates.any()
        whole = self.compare(Statement("whole table", base))
        parts = [
            self.compare(Statement("part of three", f"{base} WHERE {part}"))
            for part in (predicate, f"NOT ({predicate})", f"({predicate}) IS NULL")
        ]
        if whole is not None and all(part is not None for part in parts):
            # Each is what the loader delivered, so this compares the loader's parts with the whole.
            assert_same_answer(pa.concat_tables(parts), whole)
        if rng.random() < 0.5:
            inner = Predicates(rng, Grammar(rng, self.tables).over("t").columns).any()
            inner, everything = (
                inner.replace("t.", ""),
                f"SELECT {', '.join(self.tables[0].columns)} FROM {self.tables[0].name}",
            )
            judged = f"{everything} WHERE {inner}"
            self.compare(Statement("filters=", everything, judged, filters=inner))

    def compare(self, statement):
        """Ask the judges, and then every source."""
        try:
            expected = self.judges.answer(statement, self.tally.judges)
        except NoWordError as error:
            self.tally.unjudged[reason_of(error)] += 1
            return None
        except JudgesDifferError as error:
            self.tally.differences.append(f"seed {self.seed}: the judges differ: {error}")
            return None
        if self.plant:
            statement = self.plant.rewritten(statement)
        for source, session in self.asked:
            topology = Topology.random(self.rng) if self.rng.random() < 0.25 else None
            if topology and self.spilling:
                topology.options |= {"batch_size": 1000}
                topology.options.pop("split_rows", None)
            stages = self.folder / "stages"
            try:
                ask(session, statement, expected, topology, stages, self.rng)
            except Exception as error:
                if self.tally.is_refusal(error, statement.kind, source.name):
                    continue
                told = f" with filters={statement.filters!r}" if statement.filters else ""
                told += f" head {statement.head}" if statement.head is not None else ""
                self.tally.differences.append(
                    f"seed {self.seed}: {statement.kind}, {source.name}: {type(error).__name__}: {str(error)[:1500]}\n"
                    f"{statement.sql}{told}\n{topology}"
                )
            self.tally.same(statement.kind, source.name)
        return expected


def run_seed(seed, judges, plant=None):
    """All statements of one seed, in a folder that is gone afterwards."""
    folder = tempfile.mkdtemp(prefix="differential-")
    try:
        return Case(seed, folder, judges, plant).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(queries, first_seed, seconds=None, plant=None):
    """Run cases in this process until so many queries are compared, or the time is over."""
    tally, seed, start = Tally(), first_seed, time.monotonic()
    with duck_session() as duck:
        judges = Judges(duck)
        while tally.compared < queries and (seconds is None or time.monotonic() - start < seconds):
            tally += run_seed(seed, judges, plant)
            seed += 1
    return tally, seed


def work(first_seed, step):
    """A line for every seed, until nobody listens: what the processes of `differential_processes` run."""
    with duck_session() as duck:
        judges, seed = Judges(duck), first_seed
        while True:
            print(json.dumps({"seed": seed, "tally": run_seed(seed, judges).plain()}), flush=True)
            seed += step


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--minutes", type=float, help="after which it ends, too")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="side by side")
    parser.add_argument(
        "--replay", type=int, help="run the case of this seed alone, and say what differs"
    )
    parser.add_argument(
        "--planted", action="store_true", help="plant faults, and say when each one is found"
    )
    parser.add_argument("--record", type=Path, help="a JSON file that gets the result")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.seed, arguments.worker)
        return None
    with tempfile.TemporaryDirectory() as caches:
        os.environ["TENSORQUERY_CACHE"] = caches
        os.environ["TENSORQUERY_STAGES"] = f"{caches}/stages"
        if arguments.replay is not None:
            with duck_session() as duck:
                print(run_seed(arguments.replay, Judges(duck)).report())
            return None
        if arguments.planted:
            from differential_planted import find_all

            return find_all(arguments.seed)
        from differential_processes import run_processes

        start = time.monotonic()
        tally, seed = run_processes(
            arguments.queries, arguments.seed, arguments.processes, arguments.minutes
        )
    print(tally.report())
    result = {
        "command": f"make differential QUERIES={tally.compared} SEED={arguments.seed}",
        "queries": tally.compared,
        "by_kind": dict(sorted(tally.asked.items())),
        "by_source": dict(sorted(tally.sources.items())),
        "judges": dict(sorted(tally.judges.items())),
        "refused": dict(tally.refused.most_common()),
        "seeds": [arguments.seed, seed],
        "differences": len(tally.differences),
        "duckdb": duckdb.__version__,
        "minutes": round((time.monotonic() - start) / 60, 1),
    }
    if arguments.record:
        arguments.record.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(tally.differences))


if __name__ == "__main__":
    sys.exit(main())
