"""ORC files by many writers are read as their writers meant them, or refused by name: never a crash, never wrong rows.

The fixtures beside these tests are Iceberg's and Spark's; the real files are the examples of apache/orc (see the README
beside them), which are judged by pyarrow and, where it does not read them, by their expected rows.
"""

import datetime as dt
import gzip
import importlib.util
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pytest

import tensorquery as tq
from rows import multiset, sharded

FIXTURES = Path(__file__).parents[2] / "fixtures" / "orc"
REAL = Path(__file__).parents[3] / ".." / "shared" / "real-files" / "orc"
FILES = sorted(REAL.glob("*.orc"))

REFUSED = {
    "TestOrcFile.testTimestamp.orc": (tq.UnsupportedTypeError, "no structs"),
    "TestOrcFile.testWithoutCompressionBlockSize.orc": (tq.UnsupportedTypeError, "no structs"),
    "decimal64_v2.orc": (tq.UnsupportedTypeError, r"version 1\.9999"),
    "decimal64_v2_cplusplus.orc": (tq.UnsupportedTypeError, r"version 1\.9999"),
    "version1999.orc": (tq.UnsupportedTypeError, r"version 19\.99"),
    "zero.orc": (tq.DataError, "it is empty"),
}
"""Files that tensorquery does not read, and what its error says. pyarrow warns of the versions and reads a guess."""

UNBOUNDED = {"orc-file-11-format.orc", "orc_split_elim.orc"}
"""Files whose column `decimal1` has no precision, which is refused where it is read. pyarrow takes it for one of (38, 6)."""

BY_EXPECTED_ROWS = {"TestVectorOrcFile.testLzo.orc"}
"""Files that pyarrow does not read."""


def fixture_rows(name):
    """The rows that a fixture's writer put in, from the script that made it."""
    spec = importlib.util.spec_from_file_location("make_orc", FIXTURES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(getattr(module, name)())


def test_icebergs_types_are_read_as_they_were_written():
    session = tq.Session()
    session.register_orc("t", FIXTURES / "iceberg.orc")
    schema = session.table("t").schema
    assert schema.field("zoned").type == pa.timestamp("ns", tz="UTC")
    assert schema.field("local").type == pa.timestamp("ns")
    found = session.table("t").to_arrow().to_pylist()
    written = fixture_rows("iceberg_rows")
    assert len(found) == len(written) == 200
    for row, given in zip(found, written, strict=True):
        clock = given["clock"] and dt.time.fromisoformat(given["clock"])
        assert row == {
            "id": given["id"],
            "tags": given["tags"],
            "counts": given["counts"] and list(given["counts"].items())
            if given["counts"] != {}
            else [],
            "point": given["point"],
            "uuid": given["uuid"] and bytes.fromhex(given["uuid"].replace("-", "")),
            "fixed": given["fixed"] and bytes.fromhex(given["fixed"]),
            "clock": clock
            and ((clock.hour * 60 + clock.minute) * 60 + clock.second) * 10**6 + clock.microsecond,
            "zoned": given["zoned"]
            and dt.datetime.fromisoformat(given["zoned"]).replace(tzinfo=dt.UTC),
            "local": given["local"] and dt.datetime.fromisoformat(given["local"]),
            "day": given["day"] and dt.date.fromisoformat(given["day"]),
            "price": given["price"] and Decimal(given["price"]),
            "raw": given["raw"] if given["raw"] is None else bytes.fromhex(given["raw"]),
        }


def test_sparks_clock_is_what_it_said_in_its_own_zone():
    """Wall-clock times of a writer in Los Angeles: before 1970, with fractions, and around daylight saving."""
    session = tq.Session()
    session.register_orc("t", FIXTURES / "spark.orc")
    found = session.table("t").to_arrow().to_pylist()
    written = fixture_rows("spark_rows")
    assert len(found) == len(written) == 600
    for row, given in zip(found, written, strict=True):
        assert row["id"] == given["id"]
        assert row["text"] == given["t"]
        assert row["day"] == dt.date.fromisoformat(given["day"])
        assert row["t"] == dt.datetime.fromisoformat(given["t"]), given
    rows = sharded(table="t", session=session)
    assert multiset(rows) == multiset(found)


@pytest.mark.slow
def test_fractions_before_1970_of_the_cpp_writer(tmp_path):
    """Arrow's ORC writer stores them with negative nanoseconds."""
    step = 7_654_321_987
    numbers = [None if n % 9 == 0 else n * step - 1000 * step for n in range(3000)]
    edges = [-1, -999, -1000, -999_999, -1_000_000, -(10**9) - 1, -(10**9), 10**9 - 1, 0]
    times = pa.array(edges + numbers, pa.timestamp("ns"))
    nested = pa.array(
        [{"l": [t, None]} for t in (*edges, *numbers)],
        pa.struct([("l", pa.list_(pa.timestamp("ns")))]),
    )
    table = pa.table({"t": times, "zoned": times.cast(pa.timestamp("ns", tz="UTC")), "s": nested})
    for compression in ("uncompressed", "zlib"):
        for version in ("0.11", "0.12"):
            orc.write_table(
                table, tmp_path / "t.orc", compression=compression, file_version=version
            )
            session = tq.Session()
            session.register_orc("t", tmp_path / "t.orc")
            judged = orc.read_table(tmp_path / "t.orc")
            assert judged.equals(table)
            found = session.table("t").to_arrow()
            assert found.column("t").cast(pa.int64()).equals(table.column("t").cast(pa.int64()))
            assert found.to_pylist() == table.to_pylist()


@pytest.fixture
def real():
    if not FILES:
        pytest.skip(f"the real files are absent: {REAL} holds no ORC file")


def test_the_known_refusals_are_files_that_exist(real):
    assert set(REFUSED) | UNBOUNDED | BY_EXPECTED_ROWS <= {path.name for path in FILES}


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_real_file_is_read_as_pyarrow_reads_it_or_refused(path):
    session = tq.Session()
    if path.name in REFUSED:
        kind, message = REFUSED[path.name]
        with pytest.raises(kind, match=message) as error:
            session.register_orc("t", path)
        assert path.name in str(error.value)
        return
    session.register_orc("t", path)
    if path.name in BY_EXPECTED_ROWS:
        expected = path.parent / "expected" / f"{path.stem}.jsn.gz"
        rows = [json.loads(line) for line in gzip.decompress(expected.read_bytes()).splitlines()]
        assert session.table("t").to_arrow().to_pylist() == rows
        return
    if path.name == "TestOrcFile.testDate2038.orc":
        # Summers to 2249 of a writer in California: after 2099 daylight saving time is not known here.
        with pytest.raises(tq.DataError, match=r"after 2099 in the time zone.*Date2038\.orc"):
            session.table("t").to_arrow()
        days = session.sql("SELECT date FROM t").to_arrow()
        assert days["date"].equals(orc.read_table(path, columns=["date"])["date"])
        return
    expected = orc.read_table(path)
    if path.name in UNBOUNDED:
        with pytest.raises(tq.UnsupportedTypeError, match='"decimal1".*without precision'):
            session.table("t").to_arrow()
        expected = expected.drop_columns(["decimal1"])
        session.register_view("u", f"SELECT {', '.join(expected.column_names)} FROM t")
        assert session.table("u").to_arrow().equals(expected)
        return
    found = session.table("t").to_arrow()
    assert found.column_names == expected.column_names
    assert session.table("t").count() == expected.num_rows
    for name in expected.column_names:
        one, two = found[name].combine_chunks(), expected[name].combine_chunks()
        assert one.equals(two) or one.to_pylist() == two.to_pylist(), name
    if expected.num_rows < 100_000:
        rows = sharded(table="t", session=session, split_rows=1)
        assert multiset(rows) == multiset(expected.to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name not in REFUSED], ids=lambda path: path.name
)
def test_tensors_of_real_files_are_made_or_refused_by_name(path):
    session = tq.Session()
    session.register_orc("t", path)
    message, rows = None, 0
    try:
        loader, _ = tq.create_dataloader(
            table="t", session=session, nulls="mask", batch_size=10_000, columns=None
        )
        rows = sum(len(next(iter(batch.values()))) for batch in loader)
    except (tq.UnsupportedTypeError, tq.DataError) as error:
        message = str(error)
    # Of the file where it is not the type that has no tensor.
    assert (
        "column" in message or path.name in message
        if message
        else rows == session.table("t").count()
    )


def test_a_column_of_a_union_is_refused_by_name_and_its_neighbours_are_read(real):
    session = tq.Session()
    session.register_orc("t", REAL / "TestOrcFile.testUnionAndTimestamp.orc")
    with pytest.raises(tq.UnsupportedTypeError, match='"union"'):
        tq.create_dataloader(table="t", session=session, columns=["union"])
    loader, _ = tq.create_dataloader(
        "SELECT decimal FROM t", session=session, nulls=0.0, batch_size=1000
    )
    assert sum(len(batch["decimal"]) for batch in loader) == 5077
