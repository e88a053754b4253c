"""No panic of the engine reaches Python as such: it becomes an error of this package that says what to report.

Inputs that the fuzz targets found are in `fuzz/regressions`, by target.
"""

import os
import pathlib
import subprocess
import sys

import pyarrow as pa
import pytest

import tensorquery as tq

FOUND = pathlib.Path(__file__).parents[3] / "fuzz" / "regressions"


def found(target):
    inputs = sorted((FOUND / target).iterdir())
    assert inputs
    return [pytest.param(path, id=path.name) for path in inputs]


@pytest.mark.parametrize("path", found("filter"))
def test_a_filter_on_which_the_planner_panics_is_a_query_error(path):
    session = tq.Session()
    session.register_table("t", pa.table({"id": [1, 2], "list": [[1.0], []]}))
    query = session.sql("SELECT * FROM t")
    with pytest.raises(tq.QueryError, match="please report it with the SQL"):
        query.select(filters=path.read_text())
    assert query.count() == 2


@pytest.mark.parametrize("path", found("parquet"))
def test_what_declares_more_than_it_holds_is_refused_before_memory_is_taken(path, tmp_path):
    """A footer panics when the file is registered, however long it is; a page, when it is read."""
    file = tmp_path / "bad.parquet"
    file.write_bytes(path.read_bytes())
    told = (
        "a page of .* says that it becomes"
        if "page" in path.name
        else "declares more than it holds"
    )
    with pytest.raises(tq.DataError, match=rf"{told}.*bad\.parquet"):
        session = tq.Session()
        session.register_parquet("t", str(file))
        session.sql("SELECT * FROM t").to_arrow()


def test_a_page_index_that_declares_more_than_it_holds_is_left_out(tmp_path):
    import pyarrow.parquet as pq

    file = tmp_path / "index.parquet"
    pq.write_table(pa.table({"id": range(1000)}), file, write_page_index=True, data_page_size=256)
    data = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(0)
    assert column.has_column_index
    # The index of the pages begins behind the last page: a list of booleans, which is now one of two billion.
    start = column.dictionary_page_offset or column.data_page_offset
    index = start + column.total_compressed_size
    assert data[index] == 0x19
    data[index + 1 : index + 7] = b"\xf1\xff\xff\xff\xff\x07"
    file.write_bytes(data)
    session = tq.Session()
    session.register_parquet("t", str(file))
    assert session.sql("SELECT * FROM t WHERE id >= 990").to_arrow().num_rows == 10


PANICS = """
import resource, sys, pathlib, pyarrow as pa, tensorquery as tq
session = tq.Session()
session.register_table("t", pa.table({"id": [1, 2], "list": [[1.0], []]}))
query = session.sql("SELECT * FROM t")
# All threads have begun.
assert query.count() == 2
if sys.argv[2] != "all":
    taken = [line for line in open("/proc/self/status") if line.startswith("VmData:")]
    limit = (int(taken[0].split()[1]) << 10) + (int(sys.argv[2]) << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    query.select(filters=pathlib.Path(sys.argv[1]).read_text())
except tq.QueryError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process so")
@pytest.mark.parametrize("mebibytes", ["all", "16", "4"])
def test_a_panic_without_memory_for_a_backtrace_prints_none(mebibytes):
    """The hook once held a lock that a failing allocation waits for: the process stood still."""
    path = min((FOUND / "filter").iterdir())
    done = subprocess.run(
        [sys.executable, "-c", PANICS, str(path), mebibytes],
        env={**os.environ, "RUST_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "panicked at" in done.stderr
    assert ("stack backtrace:" in done.stderr) == (mebibytes == "all")
    assert "please report it with the SQL" in done.stdout
