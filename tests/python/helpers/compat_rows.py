"""torch-dataloader-utils and `tensorquery.compat` side by side: rows of their loaders, whatever batches they come in."""

import collections
import importlib.metadata
import math
import re

import pyarrow as pa
import pyarrow.parquet as pq
import torch_dataloader_utils as peer

from tensorquery import compat

README = importlib.metadata.metadata("torch-dataloader-utils").get_payload()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def snippet(*marks):
    """The one example of the peer's README that holds all of these words."""
    [found] = [text for text in SNIPPETS if all(mark in text for mark in marks)]
    return found


def substituted(text, replacements):
    """An example with other places and numbers; each replacement must be found."""
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def rows_of(loader):
    """The rows of an epoch as a multiset of dicts, with the kind of each column's container."""
    rows = collections.Counter()
    for batch in loader:
        columns = {name: (kind_of(values), plain(values)) for name, values in columns_of(batch)}
        names = sorted(columns)
        for row in zip(*(columns[name][1] for name in names), strict=True):
            cells = [
                (name, columns[name][0], cell(value))
                for name, value in zip(names, row, strict=True)
            ]
            rows[repr(cells)] += 1
    return rows


def columns_of(batch):
    if isinstance(batch, pa.RecordBatch):
        return [(name, batch.column(name)) for name in batch.schema.names]
    return list(batch.items())


def kind_of(values):
    """The class of a column, and its dtype where it has one."""
    kind = getattr(values, "dtype", getattr(values, "type", None))
    return f"{type(values).__name__} {kind}"


def plain(values):
    return values.tolist() if hasattr(values, "tolist") else list(values)


def cell(value):
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def pass_on(batch):
    return batch


def assert_same_rows(make, least=1):
    """Make a loader with either library, and compare all rows.

    Args:
        make: Called with the library.
        least: Rows that there must be.
    """
    theirs, ours = rows_of(make(peer)), rows_of(make(compat))
    assert sum(theirs.values()) >= least
    assert ours == theirs
    return theirs


def table(first, rows):
    """Rows with a column of each kind that has a tensor, and texts; all but id and label have nulls."""
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "feature_a": pa.array([None if n % 7 == 0 else n / 4 for n in numbers], pa.float32()),
            "feature_b": pa.array([n * 1.5 for n in numbers], pa.float64()),
            "label": pa.array([n % 2 for n in numbers], pa.int32()),
            "flag": pa.array([n % 3 == 0 for n in numbers], pa.bool_()),
            "name": pa.array([None if n % 5 == 0 else f"n{n % 9}" for n in numbers]),
            "date": pa.array([f"{2023 + n % 3}-06-01" for n in numbers]),
            "region_id": pa.array([n % 10 for n in numbers], pa.int16()),
        }
    )


def write_files(folder, sizes=(700, 1500, 2600), row_group_size=300):
    """Parquet files of different sizes in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        path = folder / f"part-{number}.parquet"
        pq.write_table(table(number * 10_000, size), path, row_group_size=row_group_size)
    return folder


def structured(path, library=compat, **options):
    options = {"format": "parquet", "num_workers": 0, "batch_size": 100, **options}
    return library.StructuredDataset.create_dataloader(path=str(path), **options)


def numbers(loader):
    return [number for batch in loader for number in batch["id"].tolist()]
