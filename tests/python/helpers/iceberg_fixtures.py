"""The Iceberg tables of tests/fixtures/iceberg and what Spark reads in them.

`open_fixture(name)` unpacks a table and returns its metadata.json; `truth(name, version)` returns the rows. The
metadata names files by absolute paths, so that the tables are unpacked at the one place where they were made.
"""

import fcntl
import functools
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parents[2] / "fixtures" / "iceberg"
ROOT = Path("/tmp/tensorquery-iceberg-fixtures")
INDEX = json.loads((FOLDER / "index.json").read_text())


def names():
    """The names of all tables."""
    return list(INDEX)


def versions(name):
    """The recorded versions of a table: label to {"snapshot_id", "timestamp_ms", "rows"}, and "ref" for a tag or branch.

    The label "now" is the newest snapshot.
    """
    return INDEX[name]["versions"]


def open_fixture(name):
    """The path of the current metadata.json of table `name`, unpacked where its paths point to."""
    _unpack()
    return str(ROOT / name / INDEX[name]["metadata"])


def truth(name, version="now"):
    """The rows that Spark reads in table `name`, as an Arrow table.

    Args:
        name: The table.
        version: A label of `versions`, or of INDEX[name]["queries"] or INDEX[name]["incremental"].
    """
    _unpack()
    return pq.read_table(ROOT / name / "truth" / f"{version}.parquet")


@functools.cache
def _unpack():
    """Unpack all archives, once a process, and write only what is not there with the same bytes.

    Other test processes may read the same files: nothing that is right is touched, a file comes whole under
    its name, and two processes do not unpack at once.
    """
    ROOT.mkdir(exist_ok=True)
    with (ROOT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in INDEX:
            with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
                for entry in archive:
                    path, content = ROOT / entry.name, archive.extractfile(entry).read()
                    if path.is_file() and path.read_bytes() == content:
                        continue
                    path.parent.mkdir(parents=True, exist_ok=True)
                    whole = path.with_name(f".{path.name}.new")
                    whole.write_bytes(content)
                    whole.rename(path)


# ------------------------------------------------------------------------------------------------
# Comparing.


def plain_type(kind):
    """The Arrow type without what readers may choose: views, large offsets, dictionaries, nullability, zone's name."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def plain_rows(table):
    """Rows that compare exactly: sorted reprs, since NaN is not equal to itself and -0.0 equals 0.0."""
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            # Nanoseconds have no Python value without pandas.
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_map(column.type):
            values = [value if value is None else sorted(value, key=repr) for value in values]
        columns.append(values)
    return sorted(map(repr, zip(*columns, strict=True)))


def assert_same(found, expected):
    """Two Arrow tables have the same columns, types (see `plain_type`) and rows in any order."""
    assert found.schema.names == expected.schema.names
    kinds = [
        {field.name: str(plain_type(field.type)) for field in table.schema}
        for table in (found, expected)
    ]
    assert kinds[0] == kinds[1]
    left, right = plain_rows(found), plain_rows(expected)
    if left != right:
        missing, extra = _without(right, left), _without(left, right)
        raise AssertionError(
            f"{len(left)} rows for {len(right)}; missing {len(missing)}, such as {missing[:3]}; "
            f"too many {len(extra)}, such as {extra[:3]}"
        )


def _without(rows, others):
    counts = {}
    for row in others:
        counts[row] = counts.get(row, 0) + 1
    left = []
    for row in rows:
        if counts.get(row, 0):
            counts[row] -= 1
        else:
            left.append(row)
    return left
