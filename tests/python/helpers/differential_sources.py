"""Sources of equal rows: every format, and Parquet by every writer, with statistics that are whole, absent or partial.

A source writes the parts of a table below a folder, and registers them in a session. It says which kinds of columns it can hold,
and is never asked for a type that its writer lacks.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import arro3.io
import duckdb
import fastparquet
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog

import avro_files
from differential_tables import KINDS
from parquet_footers import COLUMNS, GROUPS, METADATA, ParquetFile, struct_at, struct_of

REPOSITORY = Path(__file__).parents[3]

PLAIN = ("i32", "i64", "num", "s", "long", "flag")
"""Kinds that every format has, with one exact value for each of ours."""

# ------------------------------------------------------------------------------------------------
# Parquet, by writer. Each gets random numbers, the rows of one file, and its path.


def _by_pyarrow(rng, rows, path):
    pq.write_table(
        rows,
        path,
        row_group_size=rng.choice([3, 17, 64, 1000]),
        compression=rng.choice(["snappy", "zstd", "none", "gzip"]),
        use_dictionary=rng.random() < 0.5,
        write_page_index=rng.random() < 0.5,
        data_page_size=rng.choice([64, 1 << 20]),
        write_batch_size=rng.choice([10, 1024]),
        version=rng.choice(["1.0", "2.4", "2.6"]) if "u32" not in str(rows.schema) else "2.6",
        data_page_version=rng.choice(["1.0", "2.0"]),
    )


def _by_duckdb(rng, rows, path):
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("rows", rows)
        options = {
            "FORMAT": "parquet",
            "PARQUET_VERSION": rng.choice(["V1", "V2"]),
            "COMPRESSION": rng.choice(["snappy", "zstd", "uncompressed"]),
            "ROW_GROUP_SIZE": rng.choice([2048, 122880]),
            "DICTIONARY_SIZE_LIMIT": rng.choice([1, 1000]),
        }
        told = ", ".join(f"{name} {value}" for name, value in options.items())
        connection.execute(f"COPY rows TO '{path}' ({told})")


def _by_polars(rng, rows, path):
    pl.from_arrow(rows).write_parquet(
        path,
        compression=rng.choice(["snappy", "zstd", "uncompressed"]),
        statistics=rng.choice([True, "full", False]),
        row_group_size=rng.choice([3, 17, 1000]),
        data_page_size=rng.choice([64, None]),
    )


def _by_fastparquet(rng, rows, path):
    frame = rows.to_pandas(types_mapper=_NULLABLE.get, date_as_object=True)
    step = rng.choice([3, 17, 1000])
    fastparquet.write(
        path,
        frame,
        row_group_offsets=list(range(0, max(1, rows.num_rows), step)),
        compression=rng.choice(["SNAPPY", "UNCOMPRESSED", "GZIP"]),
        stats=rng.choice([True, False]),
        has_nulls=True,
        object_encoding="infer",
        write_index=False,
    )


def _by_arrow_rs(rng, rows, path):
    arro3.io.write_parquet(
        rows,
        path,
        max_row_group_size=rng.choice([3, 17, 1000]),
        compression=rng.choice(["snappy", "uncompressed", "zstd(1)"]),
        dictionary_enabled=rng.random() < 0.5,
        data_page_row_count_limit=rng.choice([5, 1000]),
        write_batch_size=rng.choice([5, 1024]),
        max_statistics_size=rng.choice([8, 4096]),
        bloom_filter_enabled=rng.random() < 0.3,
        writer_version=rng.choice(["parquet_1_0", "parquet_2_0"]),
    )


class Program:
    """A writer that is a program of its own: it takes a line of JSON for each file, and answers with a line."""

    def __init__(self, command):
        self.command = command
        self.process = None

    def __call__(self, rng, rows, path):
        """Write one file."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        wanted = {
            "path": str(path),
            "columns": [
                {"name": name, "type": str(rows.schema.field(name).type)}
                for name in rows.column_names
            ],
            "rows": [list(row.values()) for row in rows.to_pylist()],
            "row_group": rng.choice([3, 17, 1000]),
            "page": rng.choice([64, 1 << 20]),
            "version": rng.choice([1, 2]),
        }
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if said != "written\n":
            raise RuntimeError(f"{self.command[0]} cannot write {path}: {said}")


def _programs():
    """The writers that `make differential` builds, where they are built."""
    folder = REPOSITORY / ".cache" / "writers"
    found = {}
    if (folder / "parquet-go" / "writer").exists():
        found["parquet-go"] = (Program([str(folder / "parquet-go" / "writer")]), PLAIN)
    if (folder / "parquet-java" / "complete").exists() and shutil.which("java"):
        program = Path(__file__).parent / "writers" / "parquet-java" / "ParquetWriter.java"
        command = ["java", "-cp", f"{folder}/parquet-java/*", str(program)]
        found["parquet-java"] = (Program(command), PLAIN)
    return found


_NULLABLE = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

EVERY = tuple(KINDS)

WRITERS = {
    "pyarrow": (_by_pyarrow, EVERY),
    "duckdb": (_by_duckdb, EVERY),
    "polars": (_by_polars, EVERY),
    "arrow-rs": (_by_arrow_rs, EVERY),
    # No NaN: it writes them as nulls, and its decimals are floats.
    "fastparquet": (_by_fastparquet, ("i32", "i64", "s", "long", "flag", "us")),
    **_programs(),
}
"""By name: the writer of a file, and the kinds of columns that it supports."""

STATISTICS = ("present", "absent", "partial")

_BOUNDS, _INDEX = (1, 2, 5, 6, 7, 8), (4, 5, 6, 7)
STATISTICS_FIELD, NULL_COUNT = 12, 3


def damage(rng, path, how):
    """Take statistics out of a file, which stays valid: all of them, or a few at random."""
    if how == "present":
        return
    file = ParquetFile(Path(path))
    for group in file.footer[GROUPS][1][1]:
        for chunk in group[COLUMNS][1][1]:
            metadata = chunk[METADATA][1]
            choice = "all" if how == "absent" else rng.choice(["count", "bounds", "all", "none"])
            if choice == "all":
                metadata.pop(STATISTICS_FIELD, None)
                # Without the page index, which says as much.
                for field in _INDEX:
                    chunk.pop(field, None)
            statistics = metadata.get(STATISTICS_FIELD, (0, {}))[1]
            if choice == "count":
                statistics.pop(NULL_COUNT, None)
                _forget_null_counts(file, chunk)
            if choice == "bounds":
                for field in _BOUNDS:
                    statistics.pop(field, None)
    file.write()


def _forget_null_counts(file, chunk):
    """Likewise for the page index: a column index may omit the null counts of pages."""
    if 6 not in chunk:
        return
    index, _ = struct_at(bytes(file.body), chunk[6][1])
    index.pop(5, None)
    written = struct_of(index)
    chunk[6], chunk[7] = (chunk[6][0], len(file.body)), (chunk[7][0], len(written))
    file.body += written


# ------------------------------------------------------------------------------------------------
# Sources.


@dataclass
class Source:
    """The rows of tables in one form.

    Attributes:
        name: Of the form, with the writer and what its statistics are.
        kinds: Of columns that it can hold.
    """

    name: str
    kinds: tuple[str, ...]
    hive = False

    def register(self, rng, session, table, folder, plant=None):
        """Write a table below a folder that is not there yet, and register it."""
        raise NotImplementedError


class Memory(Source):
    """An Arrow table in memory."""

    def register(self, rng, session, table, folder, plant=None):
        """Cut into batches of a few rows, as it comes."""
        rows = table.rows
        batches = rows.to_batches(max_chunksize=rng.choice([5, 1000]))
        session.register_table(table.name, pa.Table.from_batches(batches, rows.schema))


class Parquet(Source):
    """Parquet files of one writer."""

    hive = True

    def __init__(self, writer, statistics):
        self.write, kinds = WRITERS[writer]
        super().__init__(f"parquet by {writer}, statistics {statistics}", kinds)
        self.statistics = statistics

    def register(self, rng, session, table, folder, plant=None):
        """With hive directories, where the table has some."""
        for number, part in enumerate(table.parts):
            below = folder
            if table.hive:
                place = table.places[number]
                below = f"{folder}/part={'__HIVE_DEFAULT_PARTITION__' if place is None else place}"
            os.makedirs(below, exist_ok=True)
            path = f"{below}/{number:03}.parquet"
            self.write(rng, part, path)
            damage(rng, path, self.statistics)
            if plant:
                plant.file(path)
        session.register_parquet(table.name, folder, partitioning="hive" if table.hive else False)


class Orc(Source):
    """ORC files by pyarrow."""

    def register(self, rng, session, table, folder, plant=None):
        """With stripes of a few rows."""
        os.makedirs(folder)
        for number, part in enumerate(table.parts):
            # pyarrow 26 writes other structs of a slice: findings/pyarrow-orc-sliced-structs.sh.
            copy = part.take(pa.array(range(part.num_rows), pa.int64()))
            pa.orc.write_table(
                copy,
                f"{folder}/{number:03}.orc",
                batch_size=rng.choice([10, 100]),
                stripe_size=1,
                dictionary_key_size_threshold=rng.choice([0.0, 1.0]),
                compression=rng.choice(["zlib", "zstd", "uncompressed"]),
            )
        session.register_orc(table.name, folder)


class Avro(Source):
    """Avro files by fastavro."""

    def register(self, rng, session, table, folder, plant=None):
        """With blocks of a few rows."""
        os.makedirs(folder)
        schema = {
            "type": "record",
            "name": "row",
            "fields": [
                {"name": name, "type": ["null", _avro_type(kind)]}
                for name, kind in zip(table.rows.column_names, table.rows.schema.types, strict=True)
            ],
        }
        for number, part in enumerate(table.parts):
            path = f"{folder}/{number:03}.avro"
            codec = rng.choice(["null", "deflate"])
            avro_files.write(path, schema, part.to_pylist(), codec, rng.choice([50, 5000]))
        session.register_avro(table.name, folder)


def _avro_type(kind):
    types = pa.types
    if types.is_decimal(kind):
        size = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **size}
    if types.is_timestamp(kind):
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type)]}
    if types.is_boolean(kind):
        return "boolean"
    if types.is_floating(kind):
        return "float" if kind == pa.float32() else "double"
    if types.is_integer(kind):
        return "int" if kind.bit_width < 64 and kind != pa.uint32() else "long"
    return "string"


class Iceberg(Source):
    """An Iceberg table by pyiceberg."""

    def register(self, rng, session, table, folder, plant=None):
        """With an append for each part."""
        os.makedirs(folder)
        catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
        catalog.create_namespace("n")
        made = catalog.create_table(
            f"n.{table.name}",
            table.rows.schema,
            properties={
                "write.parquet.row-group-limit": str(rng.choice([3, 17, 1000])),
                "write.metadata.metrics.default": rng.choice(
                    ["full", "truncate(4)", "none", "counts"]
                ),
            },
        )
        for part in table.parts:
            made.append(part)
        session.register_iceberg_table(table.name, made.metadata_location)


COMMON = (
    "i32",
    "i64",
    "f32",
    "f64",
    "num",
    "s",
    "long",
    "flag",
    "dec",
    "d18",
    "wide",
    "d38",
    "day",
    "us",
    "il",
    "sl",
)
"""Kinds that Avro, Iceberg and ORC have."""  # fmt: skip

OTHERS = {
    "orc": Orc("orc", (*COMMON, "i8", "i16", "d4", "utc", "st")),
    "avro": Avro("avro", (*COMMON, "utc", "i8", "u8")),
    "iceberg": Iceberg("iceberg", (*COMMON, "utc", "st", "clock")),
    "memory": Memory("memory", EVERY),
}


def choose(rng):
    """The sources of a case: Parquet by one writer or two, and mostly another form; and the kinds that all of them have."""
    names = rng.sample(list(WRITERS), rng.choice([1, 1, 2]))
    sources = [Parquet(name, rng.choice(STATISTICS)) for name in names]
    if rng.random() < 0.8:
        (other,) = rng.choices(list(OTHERS), [2, 2, 1, 4])
        sources.append(OTHERS[other])
    kinds = [kind for kind in KINDS if all(kind in source.kinds for source in sources)]
    return sources, tuple(kinds)
