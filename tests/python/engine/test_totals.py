"""Promise 7 (docs/promises.md): sums, means and arithmetic are exact, or an error by name: nothing wraps around."""

import random
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest

import tensorquery as tq

TYPES = {
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "decimal32": pa.decimal32(9, 2),
    "decimal64": pa.decimal64(18, 3),
    "decimal128": pa.decimal128(38, 4),
    "decimal256": pa.decimal256(76, 4),
}


def one(session, sql):
    """The only value of the answer."""
    [row] = session.sql(sql).to_arrow().to_pylist()
    [value] = row.values()
    return value


def session_of(values, of, **more):
    session = tq.Session()
    session.register_table("t", pa.table({"x": pa.array(values, of), **more}))
    return session


def bounds(of):
    """The least and the largest value of a type, and its unit."""
    if pa.types.is_decimal(of):
        unit = Decimal(1).scaleb(-of.scale)
        with localcontext() as context:
            context.prec = 80
            most = (Decimal(10) ** of.precision - 1) * unit
        return -most, most, unit
    unsigned = pa.types.is_unsigned_integer(of)
    bits = of.bit_width - (0 if unsigned else 1)
    return (0 if unsigned else -(2**bits)), 2**bits - 1, 1


@pytest.mark.parametrize("name", TYPES)
def test_sums_and_means_are_those_of_python(name):
    of = TYPES[name]
    rng = random.Random(name)
    _, _, unit = bounds(of)
    with localcontext() as context:
        context.prec = 90
        for span in (9, 99):
            # Small enough for the result's type, except where the type itself is full.
            values = [unit * rng.randint(0, span) for _ in range(200)] + [None] * 5
            keys = [rng.randint(0, 3) for _ in values]
            session = session_of(values, of, k=keys, i=list(range(len(values))))
            known = [v for v in values if v is not None]
            assert one(session, "SELECT sum(x) AS r FROM t") == sum(known)
            assert one(session, "SELECT sum(DISTINCT x) AS r FROM t") == sum(set(known))
            mean = one(session, "SELECT avg(x) AS r FROM t")
            assert abs(Decimal(mean) - Decimal(sum(known)) / len(known)) <= Decimal(unit) / 10
            found = session.sql(
                "SELECT k, sum(x) AS s, avg(x) AS a, count(x) AS n FROM t GROUP BY k"
            )
            for row in found.to_arrow().to_pylist():
                group = [
                    v for v, k in zip(values, keys, strict=True) if k == row["k"] and v is not None
                ]
                assert (row["s"], row["n"]) == (sum(group), len(group))
            sliding = session.sql(
                "SELECT i, sum(x) OVER (ORDER BY i ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s, "
                "avg(x) OVER (ORDER BY i ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS a FROM t"
            )
            for row in sliding.to_arrow().to_pylist():
                frame = [v for v in values[max(0, row["i"] - 2) : row["i"] + 1] if v is not None]
                assert row["s"] == (sum(frame) if frame else None)
                assert (row["a"] is None) == (not frame)


@pytest.mark.parametrize("name", ["int64", "uint64", "decimal128", "decimal256"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(x) AS r FROM t",
        "SELECT k, sum(x) AS r FROM t GROUP BY k",
        "SELECT sum(x) OVER (ORDER BY i) AS r FROM t",
        "SELECT sum(x) OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS r FROM t",
        "SELECT sum(x) FILTER (WHERE i < 2) AS r FROM t",
        "SELECT sum(DISTINCT x), count(DISTINCT k) FROM t",
    ],
)
def test_a_sum_beyond_its_type_is_an_error(name, sql):
    of = TYPES[name]
    _, most, unit = bounds(of)
    with localcontext() as context:
        context.prec = 90
        session = session_of([most, most - unit, unit], of, k=[1, 1, 1], i=[0, 1, 2])
    with pytest.raises(tq.TensorQueryError, match=r"beyond the range of its type.*CAST"):
        session.sql(sql).to_arrow()


def test_a_total_may_pass_the_bounds_on_its_way():
    most = 2**63 - 1
    session = session_of([most, most, -most, -most, 5], pa.int64(), i=list(range(5)))
    assert one(session, "SELECT sum(x) AS r FROM t") == 5
    big = Decimal(9 * 10**37)
    session = session_of([big, big, -big, -big, Decimal(7)], pa.decimal128(38, 0))
    assert one(session, "SELECT sum(x) AS r FROM t") == 7
    assert one(session, "SELECT avg(CAST(x AS DECIMAL(76, 0))) AS r FROM t") == Decimal("1.4")


def test_wider_types_have_the_sum():
    session = session_of([2**63 - 1] * 3, pa.int64())
    assert one(session, "SELECT sum(CAST(x AS DECIMAL(38, 0))) AS r FROM t") == 3 * (2**63 - 1)
    session = session_of([Decimal(9 * 10**37)] * 3, pa.decimal128(38, 0))
    assert one(session, "SELECT sum(CAST(x AS DECIMAL(76, 0))) AS r FROM t") == 27 * 10**37


@pytest.mark.parametrize("of", [pa.decimal32(5, 0), pa.decimal64(16, 0), pa.decimal128(5, 0)])
def test_means_of_narrow_decimals(of):
    session = session_of([Decimal(99999)] * 2000, of)
    assert one(session, "SELECT avg(x) AS r FROM t") == 99999
    assert one(session, "SELECT sum(x) AS r FROM t") == 99999 * 2000
    assert one(session, "SELECT avg(DISTINCT x) AS r FROM t") == 99999


def test_means_are_rounded():
    session = session_of([Decimal(2), Decimal(0), Decimal(0)], pa.decimal128(10, 0))
    assert one(session, "SELECT avg(x) AS r FROM t") == Decimal("0.6667")
    assert one(session, "SELECT avg(-x) AS r FROM t") == Decimal("-0.6667")


def test_durations():
    session = session_of([2**62, 2**62 - 1], pa.duration("us"))
    total = session.sql("SELECT sum(x) AS r FROM t").to_arrow()["r"].cast(pa.int64()).to_pylist()
    assert total == [2**63 - 1]
    session = session_of([2**62, 2**62], pa.duration("us"))
    with pytest.raises(tq.TensorQueryError, match="beyond the range"):
        session.sql("SELECT sum(x) AS r FROM t").to_arrow()


def test_sums_of_spilled_groups():
    rows = 200_000
    table = pa.table({"k": list(range(rows)), "x": pa.array([2**62] * rows, pa.int64())})
    session = tq.Session(memory_limit=24 << 20)
    session.register_table("t", table)
    found = session.sql(
        "SELECT count(*) AS n, sum(CAST(s AS DECIMAL(38, 0))) AS s FROM (SELECT k, sum(x) AS s FROM t GROUP BY k)"
    )
    assert found.to_arrow().to_pylist() == [{"n": rows, "s": rows * 2**62}]


@pytest.mark.parametrize(
    "of", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()]
)
def test_integers_do_not_wrap_around(of):
    least, most, _ = bounds(of)
    session = session_of([most, least], of, one=pa.array([1, 1], of), two=pa.array([2, 2], of))
    for e in ("x + one", "x - one", "x * two", "(x + one) - one", "x + one + one"):
        with pytest.raises(tq.TensorQueryError, match=r"overflows.*CAST"):
            session.sql(f"SELECT {e} AS r FROM t").to_arrow()
    if least:
        with pytest.raises(tq.TensorQueryError, match="overflows"):
            session.sql("SELECT -x AS r FROM t").to_arrow()
    assert one(session, "SELECT x - x AS r FROM t WHERE x > 1") == 0
    wide = "CAST(x AS DECIMAL(38, 0)) + CAST(one AS DECIMAL(38, 0))"
    assert one(session, f"SELECT {wide} AS r FROM t WHERE x > 1") == most + 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 9223372036854775807 + 1 AS r",
        "SELECT x FROM t WHERE x + 1 > 0",
        "SELECT x FROM t ORDER BY x + 1",
        "SELECT x + 1 AS y, count(*) FROM t GROUP BY x + 1",
        "SELECT a.x FROM t a JOIN t b ON a.x + 1 = b.x",
        "SELECT sum(x * 2) AS r FROM t",
        "SELECT max(x + 1) OVER () AS r FROM t",
        "SELECT CASE WHEN true THEN x * x END AS r FROM t",
        "SELECT coalesce(x + 1, 0) AS r FROM t",
    ],
)
def test_every_clause_counts_rightly(sql):
    session = session_of([2**63 - 1], pa.int64())
    with pytest.raises(tq.TensorQueryError, match="overflow"):
        session.sql(sql).to_arrow()


def test_arithmetic_without_overflow():
    rng = random.Random(3)
    rows = [(rng.randint(-1000, 1000), rng.choice([None, rng.randint(-9, 9)])) for _ in range(50)]
    session = tq.Session()
    session.register_table("t", pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]}))
    found = session.sql("SELECT a + b AS p, a - b AS m, a * b AS t, -a AS n, a + 1 AS q FROM t")
    wanted = [
        {
            "p": None if b is None else a + b,
            "m": None if b is None else a - b,
            "t": None if b is None else a * b,
            "n": -a,
            "q": a + 1,
        }
        for a, b in rows
    ]
    assert found.to_arrow().to_pylist() == wanted
    names = session.sql("SELECT a + 1, -a FROM t").to_arrow().column_names
    assert names == ["t.a + Int64(1)", "(- t.a)"]


def test_decimals_that_overflow_are_an_error():
    session = session_of([Decimal(10**37)], pa.decimal128(38, 0))
    with pytest.raises(tq.TensorQueryError):
        session.sql("SELECT x * x AS r FROM t").to_arrow()
