"""Parquet files by many writers, from apache/parquet-testing: read as pyarrow reads them, or refused.

Never a panic, a hang or wrong rows. See the README beside the files for where they come from.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from rows import multiset, sharded

FOLDER = Path(__file__).parents[3] / ".." / "shared" / "real-files" / "parquet"
FILES = sorted(FOLDER.glob("*.parquet"))

REFUSED = {
    # The length of a Bloom filter is a list, and a field that the format's definition requires is missing. pyarrow looks at neither.
    "dict-page-offset-zero.parquet": "a field of another type",
    # A page header with a wrong offset: pyarrow skips it, the Rust reader does not guess.
    "nation.dict-malformed.parquet": "header",
    # Pages that are others than their checksums say, on purpose; pyarrow looks at these where it is asked to.
    "datapage_v1-corrupt-checksum.parquet": "checksum",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "checksum",
    # Two strings of 2^31 bytes together, in pages of some kilobytes: more than 32-bit offsets hold. pyarrow fails on it as well.
    "large_string_map.brotli.parquet": "says that it becomes",
}
"""Files that tensorquery does not read, and what its error says."""


@pytest.fixture(autouse=True)
def present():
    if not FILES:
        pytest.skip(f"the real files are absent: {FOLDER} holds no Parquet file")


def test_the_known_refusals_are_files_that_exist():
    assert set(REFUSED) <= {path.name for path in FILES}


def read(session, path):
    session.register_parquet("t", path)
    return sharded(table="t", session=session, split_rows=1)


@pytest.mark.parametrize(
    "path",
    FILES,
    ids=lambda path: path.name,
)
def test_every_file_is_read_as_pyarrow_reads_it_or_refused(path):
    session = tq.Session()
    if path.name in REFUSED:
        with pytest.raises(tq.DataError, match=REFUSED[path.name]) as error:
            read(session, path)
        assert path.name in str(error.value)
        return
    expected = pq.read_table(path).to_pylist()
    session.register_parquet("t", path)
    assert session.table("t").count() == len(expected)
    assert multiset(session.table("t").to_arrow().to_pylist()) == multiset(expected)
    rows = sharded(table="t", session=session, split_rows=1)
    assert multiset(rows) == multiset(expected)


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name not in REFUSED], ids=lambda path: path.name
)
def test_tensors_of_real_files_are_made_or_refused_by_name(path):
    session = tq.Session()
    session.register_parquet("t", path)
    message = None
    rows = 0
    try:
        loader, _ = tq.create_dataloader(table="t", session=session, nulls="mask", batch_size=1000)
        rows = sum(_length(batch) for batch in loader)
    except (tq.UnsupportedTypeError, tq.DataError) as error:
        message = str(error)
    assert "column" in message if message else rows == session.table("t").count()


def _length(batch):
    first = next(iter(batch.values()))
    while isinstance(first, dict):
        first = next(iter(first.values()))
    codes = getattr(first, "codes", first)
    return codes.size(0) if hasattr(codes, "size") else len(codes)
