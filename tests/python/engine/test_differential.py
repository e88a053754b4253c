"""Random statements over random tables in every format have the judges' answers: a part of `make differential`.

Questions that engines are known to answer differently are not asked: see differential_cases.py and
differential_judges.py.
"""

import random

import pyarrow as pa
import pytest

import differential
import differential_grammar
import differential_planted
import tensorquery as tq
from answers import assert_same_answer
from differential_cases import Statement, Topology
from differential_grammar import KINDS, Grammar
from differential_judges import Judges, NoWordError, duck_session
from differential_loads import ask
from differential_sources import OTHERS, STATISTICS, WRITERS, Parquet, Program
from differential_tables import make_table
from differential_tally import Tally, reason_of

SECONDS = 20


@pytest.fixture(autouse=True)
def stages(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path / "stages"))


@pytest.mark.slow
def test_random_statements_are_what_the_judges_say():
    tally, _ = differential.run(queries=600, first_seed=0, seconds=SECONDS)
    assert tally.differences == []
    # However slow the machine is, this proves something.
    assert tally.compared >= 20
    assert tally.asked["part of three"] >= 3
    assert tally.judges["duckdb"] >= 10


@pytest.mark.parametrize(
    "writer",
    [
        pytest.param(name, marks=pytest.mark.slow if isinstance(write, Program) else ())
        for name, (write, _) in WRITERS.items()
    ],
)
def test_every_writer_writes_what_it_says_that_it_can(tmp_path, writer):
    for number, statistics in enumerate(STATISTICS):
        source, session = Parquet(writer, statistics), tq.Session()
        rng = random.Random(number)
        table = make_table(rng, "t1", kinds=source.kinds, most=60, hive=False)
        source.register(rng, session, table, str(tmp_path / statistics))
        # parquet-go sorts columns by their names.
        found = session.sql("SELECT * FROM t1").to_arrow().select(table.rows.column_names)
        assert_same_answer(found, table.rows)


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_form_holds_what_it_says_that_it_can(tmp_path, name):
    source, session, rng = OTHERS[name], tq.Session(), random.Random(1)
    table = make_table(rng, "t1", kinds=source.kinds, most=60, hive=False)
    source.register(rng, session, table, str(tmp_path / "t"))
    assert_same_answer(session.sql("SELECT * FROM t1").to_arrow(), table.rows)


def test_the_judges_answer_every_kind():
    """A kind that DuckDB does not understand would never be asked."""
    answered = set()
    with duck_session() as duck:
        judges = Judges(duck)
        for seed in range(12):
            rng = random.Random(seed)
            tables = [
                make_table(rng, name, key="i32", most=30, hive=False) for name in ("t1", "u1")
            ]
            judges.load(tables)
            grammar = Grammar(rng, tables)
            for kind in set(KINDS) - answered:
                statement = getattr(grammar, kind)()
                if statement is not None:
                    judges.answer(statement, Tally().judges)
                    answered.add(kind)
    assert answered == set(KINDS)


def test_sqlite_has_a_word_and_no_more_than_it_knows():
    with duck_session() as duck:
        judges, tally = Judges(duck), Tally()
        rng = random.Random(4)
        judges.load([make_table(rng, "t1", kinds=("i32", "s"), hive=False)])
        judges.answer(Statement("distinct", "SELECT DISTINCT k AS d FROM t1"), tally.judges)
        assert tally.judges == {"duckdb": 1, "sqlite": 1, "polars": 1}
        with pytest.raises(NoWordError):
            judges.sqlite.answer("SELECT CAST(1 AS DECIMAL(9, 2)) AS d", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "kind"),
    list(zip(differential_planted.FAULTS, ("nulls", "distinct", "limit"), strict=True)),
)
def test_a_planted_fault_is_found(monkeypatch, plant, kind):
    """With the kind of statements that the fault affects; `make differential-planted` asks all kinds."""
    monkeypatch.setattr(differential_grammar, "KINDS", (kind,))
    monkeypatch.setattr(differential, "SPILLING", 0)
    queries, text = differential_planted.queries_until_found(plant, first_seed=21, most=400)
    assert queries is not None
    assert "seed" in text


@pytest.mark.slow
def test_a_fault_that_is_not_planted_is_not_found(monkeypatch):
    monkeypatch.setattr(differential_grammar, "KINDS", ("nulls",))
    assert (
        differential_planted.queries_until_found(differential_planted.Plant(), 0, most=20)[0]
        is None
    )


class Refusing:
    """A session that answers every statement with the same error."""

    def __init__(self, error):
        self.error = error

    def sql(self, text):
        raise self.error


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (
            tq.QueryError("QUALIFY is not supported; filter the window's column in a query above"),
            True,
        ),
        (tq.DataError("an overflow in column 'a'"), True),
        (tq.QueryError("the engine cannot answer this SQL (an assertion failed)"), False),
        (tq.DataError("the engine panicked; please report it"), False),
        (tq.DataError("the file 'a.parquet' is damaged"), False),
        (tq.StorageError("no such file"), False),
        (ValueError("something else"), False),
    ],
)
def test_what_counts_as_a_refusal(error, refused):
    tally, statement = Tally(), Statement("join", "SELECT 1")
    with pytest.raises(type(error)):
        ask(Refusing(error), statement, pa.table({}), None, None, random.Random(0))
    assert tally.is_refusal(error, "join", "memory") is refused
    assert tally.refused == ({f"join: {reason_of(error)}": 1} if refused else {})


@pytest.mark.parametrize("remainder", ["even", "uneven", "drop", "pad"])
@pytest.mark.parametrize("fault", ["lost", "twice", "changed"])
def test_the_comparison_can_fail(tmp_path, monkeypatch, fault, remainder):
    """A loader that loses a row, delivers one twice, or changes one, is found by every kind of end of an epoch."""
    import differential_loads

    load = differential_loads.load

    def faulty(query, rank, topology, filters, stages):
        table = pa.Table.from_batches(load(query, rank, topology, filters, stages))
        if fault == "lost":
            changed = table.slice(1)
        elif fault == "twice":
            changed = pa.concat_tables([table, table.slice(0, 1)])
        else:
            changed = table.set_column(
                0, table.schema.field(0), pa.nulls(len(table), table.schema.field(0).type)
            )
        return changed.to_batches(max_chunksize=topology.options["batch_size"])

    session, rows = tq.Session(), pa.table({"a": list(range(20))})
    session.register_table("t", rows)
    statement = Statement("whole table", "SELECT a FROM t")
    topology = Topology(1, remainder, {"batch_size": 3, "shuffle": False})
    ask(session, statement, rows, topology, tmp_path, random.Random(0))
    monkeypatch.setattr(differential_loads, "load", faulty)
    with pytest.raises(AssertionError):
        ask(session, statement, rows, topology, tmp_path, random.Random(0))


@pytest.mark.parametrize("most", [0, 3, 50])
def test_a_limit_owes_as_many_rows_as_there_are(most):
    session, rows = tq.Session(), pa.table({"a": list(range(20))})
    session.register_table("t", rows)
    right = Statement("limit", f"SELECT a FROM t LIMIT {most}", some_of="…", most=most)
    ask(session, right, rows, None, None, random.Random(0))
    for sql in (f"SELECT a FROM t LIMIT {most + 1}", f"SELECT -1 - a AS a FROM t LIMIT {most}"):
        if (most == 50 and "-1" not in sql) or (most == 0 and "-1" in sql):
            continue
        with pytest.raises(AssertionError):
            wrong = Statement("limit", sql, some_of="…", most=most)
            ask(session, wrong, rows, None, None, random.Random(0))
