"""The tables that epochs read, what a query over them must deliver, and whether a batch's rows are whole."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.feather

import support

from . import lake

FOREIGN = 10**9
"""Ids of a file's replacement begin here: a row of it can be told from every row of the table."""

DELETED = 2 * 10**9
"""An Iceberg table has deleted rows among the others, whose ids begin here."""

_DELETED_EVERY = 10

_TEXT_REPEATS = 20


@dataclass(frozen=True)
class Profile:
    """The size of a table."""

    rows: int
    files: int
    group: int
    has_text: bool
    batch_sizes: tuple[int, ...]


PROFILES = {
    # Worker processes send many of its batches in one message.
    "short": Profile(4_000, 5, 60, True, (16, 25, 32, 40, 64)),
    # A loader has up to 65,536 rows ready ahead of the training loop: what happens to storage meets the rest.
    "long": Profile(400_000, 8, 5_000, False, (1_000, 1_500, 2_048, 3_000)),
    # What is staged is written and read in whole, so it is no larger than it must be for eight splits of each rank.
    "medium": Profile(240_000, 8, 3_000, False, (600, 1_000, 1_500, 2_048)),
    # An epoch of a hundred runs.
    "many runs": Profile(40_000, 8, 500, False, (16, 32, 48, 64, 100)),
}

FORMATS = ("parquet", "csv", "json", "orc", "arrow")


WHERE = {
    "": lambda ids: np.full(ids.shape, True),
    "k <> 2": lambda ids: ids % 7 != 2,
    "id % 3 = 0": lambda ids: ids % 3 == 0,
}

FEW_ROWS = ("id % 3 = 0",)
"""Those that keep a small part of a table."""


def columns(profile):
    """The columns of its query."""
    return "id, k, v" + (", s" if PROFILES[profile].has_text else "")


def wanted(profile, where):
    """The ids of the query's rows, ascending: from the definition of the table, not from a loader."""
    ids = np.arange(PROFILES[profile].rows)
    return ids[WHERE[where](ids)]


def ids_of(batch, profile):
    """The ids of a batch.

    Raises:
        AssertionError: Its columns do not belong together, or not to the table.
    """
    ids = np.asarray(batch["id"])
    found = np.asarray(batch["k"]), np.asarray(batch["v"])
    assert np.array_equal(found[0], ids % 7), "a batch mixes the columns of different rows (k)"
    assert np.array_equal(found[1], ids * 0.5), "a batch mixes the columns of different rows (v)"
    if PROFILES[profile].has_text:
        texts = [_text(one) for one in ids.tolist()]
        assert list(batch["s"]) == texts, "a batch mixes the columns of different rows (s)"
    return ids.astype(np.int64)


def _text(one):
    return f"{one:010d}" * _TEXT_REPEATS


def write(folder, profile, kind):
    """Write a table as `kind` below `folder`, and beside it its replacement, with other rows and the same borders."""
    _write(folder / "t", profile, kind, 0)
    _write(folder / "other", profile, kind, FOREIGN)


def _write(folder, profile, kind, first):
    size = PROFILES[profile]
    ids = np.arange(first, first + size.rows)
    if kind == "iceberg":
        places = np.arange(0, size.rows, _DELETED_EVERY)
        ids = np.insert(ids, places, DELETED + places)
    data = {"id": ids, "k": ids % 7, "v": ids * 0.5}
    if size.has_text:
        data["s"] = [_text(one) for one in ids.tolist()]
    table = pa.table(data)
    match kind:
        case "parquet":
            support.write_parquet(folder, table, files=size.files, row_group=size.group)
        case "csv":
            support.write_csv(folder, table, files=size.files)
        case "json":
            support.write_json(folder, table, files=size.files)
        case "orc":
            support.write_orc(folder, table, files=size.files, stripe=size.group)
        case "arrow":
            _write_arrow(folder, table, size)
        case "avro":
            _write_avro(folder, table, size)
        case "iceberg":
            lake.write(
                folder, table, files=size.files, row_group=size.group, is_deleted=ids >= DELETED
            )


def _write_arrow(folder, table, size):
    folder.mkdir(parents=True)
    for number, part in enumerate(support.cut(table, size.files)):
        pa.feather.write_feather(
            part,
            str(folder / f"{number:03}.arrow"),
            compression="uncompressed",
            chunksize=size.group,
        )


def _write_avro(folder, table, size):
    folder.mkdir(parents=True)
    kinds = {"int64": "long", "double": "double", "string": "string"}
    fields = [{"name": one.name, "type": kinds[str(one.type)]} for one in table.schema]
    schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
    for number, part in enumerate(support.cut(table, size.files)):
        with open(folder / f"{number:03}.avro", "wb") as file:
            fastavro.writer(file, schema, part.to_pylist(), sync_interval=4_000)


def split_options(profile, kind, folder):
    """Options of the loader with which the table has some 70 splits."""
    if kind in ("csv", "json", "avro"):
        return {"split_bytes": stored_bytes(folder) // 70}
    return {"split_rows": PROFILES[profile].group}


def stored_bytes(folder):
    """The size of a table's files."""
    return sum(path.stat().st_size for path in Path(folder).iterdir())


def copied(source, target):
    """A copy of a table and its replacement, with the same times."""
    shutil.copytree(source, target, copy_function=shutil.copy2)
