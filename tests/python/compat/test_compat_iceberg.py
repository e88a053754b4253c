"""torch-dataloader-utils and `tensorquery.compat` read pyiceberg's tables alike. Where the peer reads wrong rows,
ours equal pyiceberg's own scan."""

import collections

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import torch_dataloader_utils as peer
from pyiceberg import expressions as ex
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import ranks
import tensorquery as tq
from compat_rows import assert_same_rows, pass_on, rows_of, snippet, substituted, write_files
from iceberg_fixtures import open_fixture, truth
from tensorquery import compat

SCHEMA = Schema(
    NestedField(1, "feature_a", DoubleType(), required=False),
    NestedField(2, "feature_b", LongType(), required=False),
    NestedField(3, "label", LongType(), required=False),
    NestedField(4, "region_id", LongType(), required=False),
    NestedField(5, "score", DoubleType(), required=False),
    NestedField(6, "partition_dt", LongType(), required=False),
    NestedField(7, "name", StringType(), required=False),
)


def rows(start, stop, day=20240101):
    numbers = range(start, stop)
    return pa.table(
        {
            "feature_a": pa.array([n / 2 for n in numbers], pa.float64()),
            "feature_b": pa.array(numbers, pa.int64()),
            "label": pa.array([n % 2 for n in numbers], pa.int64()),
            "region_id": pa.array([n % 10 for n in numbers], pa.int64()),
            "score": pa.array([None if n % 13 == 0 else n % 100 / 100 for n in numbers]),
            "partition_dt": pa.array([day] * len(numbers), pa.int64()),
            "name": pa.array([f"n{n % 7}" for n in numbers]),
        }
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """The properties of a SQL catalog with a table of three days, a commit each."""
    folder = tmp_path_factory.mktemp("lake")
    config = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}",
    }
    catalog = load_catalog(**config)
    catalog.create_namespace("my_db")
    spec = PartitionSpec(PartitionField(6, 1000, IdentityTransform(), "day"))
    properties = {"write.parquet.row-group-limit": "100"}
    tables = [
        catalog.create_table("my_db.my_table", SCHEMA, properties=properties),
        catalog.create_table("my_db.by_day", SCHEMA, partition_spec=spec, properties=properties),
    ]
    for table in tables:
        for day in range(3):
            table.append(rows(day * 1000, day * 1000 + 500 * (day + 1), 20240101 + day))
    deleted = catalog.create_table("my_db.deleted", SCHEMA, properties=properties)
    deleted.append(rows(0, 500))
    deleted.delete(ex.LessThan("feature_a", 100))
    catalog.create_table("my_db.empty", SCHEMA)
    return config


def iceberg(lake, library=compat, table="my_db.my_table", **options):
    options = {"num_workers": 0, "batch_size": 100, **options}
    return library.IcebergDataset.create_dataloader(table=table, catalog_config=lake, **options)


def loader_of(lake, **options):
    return lambda library: iceberg(lake, library, **options)[0]


# --- the examples of the peer's README ---


def run(text, library, **names):
    names = {"pc": pc, "IcebergDataset": library.IcebergDataset, **names}
    exec(compile(text.replace("torch_dataloader_utils", library.__name__), "README", "exec"), names)
    return names["loader"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the data is sorted")
def test_the_example_of_all_parameters(lake):
    table = load_catalog(**lake).load_table("my_db.my_table")
    text = substituted(
        snippet("from torch_dataloader_utils import IcebergDataset"),
        {
            '"type": "rest", ': f'"type": "sql", "warehouse": "{lake["warehouse"]}",',
            "https://catalog.example.com": lake["uri"],
            '        "credential": "token:abc123",\n': "",
            "8271638172635": str(table.snapshots()[1].snapshot_id),
        },
    )
    found = assert_same_rows(lambda library: run(text, library))
    # Of two of the three commits, the regions 5 to 9.
    assert sum(found.values()) == 750


def test_the_example_of_a_scan_filter(lake):
    place = f"table='my_db.my_table', catalog_config={lake!r}, num_workers=0,"
    text = substituted(snippet("scan_filter=GreaterThan"), {"    ...\n": f"    {place}\n"})
    found = assert_same_rows(lambda library: run(text, library))
    scan = load_catalog(**lake).load_table("my_db.my_table").scan
    expected = scan(ex.And(ex.GreaterThan("score", 0.9), ex.GreaterThan("partition_dt", 20240101)))
    assert sum(found.values()) == len(expected.to_arrow())


# --- options ---


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the data is sorted")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "batch_size": 64},
        {"columns": ["name", "label"], "output_format": "numpy"},
        {"output_format": "arrow", "collate_fn": pass_on},
        {"output_format": "dict", "collate_fn": pass_on, "split_rows": 200, "num_workers": 2},
        {"shuffle": True, "shuffle_buffer_size": 300},
        {"split_bytes": "1KiB"},
        {"filters": (pc.field("region_id") >= 5) & (pc.field("name") == "n3")},
        {"split_strategy": compat.RoundRobinSplitStrategy(), "num_workers": 2},
        {"split_strategy": compat.SizeBalancedSplitStrategy(shuffle=True)},
    ],
    ids=lambda options: " ".join(options) or "none",
)
def test_options(lake, options):
    assert_same_rows(loader_of(lake, **options), least=100)


def test_tables_with_the_catalogs_name_and_other_names_of_the_catalog(lake):
    assert_same_rows(loader_of(lake, table="any.my_db.my_table"), least=3000)
    named = {**lake, "name": "second"}
    catalog = load_catalog(**named)
    catalog.create_namespace("ns")
    catalog.create_table("ns.t", SCHEMA).append(rows(0, 50))
    # A SQL catalog keeps its name beside each table.
    assert_same_rows(loader_of(named, table="ns.t"), least=50)
    with pytest.raises(tq.TableNotFoundError, match=r"\bt\b"):
        iceberg(lake, table="ns.t")


def test_ranks(lake):
    found = [rows_of(iceberg(lake, num_ranks=2, rank=rank)[0]) for rank in range(2)]
    assert found[0] + found[1] == rows_of(iceberg(lake)[0])
    assert sum(found[0].values()) == sum(found[1].values()) == 1500


def read_in_a_group(rank, world_size, lake):
    """The values that this rank reads: with and without a strategy, and of two rows of one file."""
    torch.distributed.init_process_group("gloo")
    place = {"num_ranks": world_size, "rank": rank, "num_workers": 1, "columns": ["feature_b"]}
    two = {"filters": pc.field("feature_b").isin([1003, 1004])}
    ways = [{}, {"split_strategy": compat.RoundRobinSplitStrategy()}, two]
    return [
        values_of(iceberg(lake, table="my_db.by_day", **place, **way)[0], "feature_b")
        for way in ways
    ]


@pytest.mark.slow
def test_ranks_of_a_process_group(lake):
    found = ranks.run(read_in_a_group, 2, lake)
    expected = [*range(500), *range(1000, 2000), *range(2000, 3500)]
    for first, second in list(zip(*found, strict=True))[:2]:
        assert sorted(first + second) == expected
        assert len(first) == len(second)
    assert [third for _, _, third in found] == [[1003], [1004]]


@pytest.mark.slow
def test_metrics_and_states(lake):
    loader, dataset = iceberg(lake, num_workers=2)
    batches = iter(loader)
    seen = collections.Counter()
    for _ in range(5):
        seen += rows_of([next(batches)])
    state = dataset.state_dict()
    del batches
    again, resumed = iceberg(lake)
    resumed.load_state_dict(state)
    assert seen + rows_of(again) == rows_of(iceberg(lake)[0])
    [worker] = resumed.get_metrics()
    assert worker.rows_read == 2500


@pytest.mark.slow
def test_what_strategies_know_of_data_files(lake):
    asked = []

    class Strategy:
        def __init__(self, library):
            self.library = library

        def generate(self, files, num_workers, epoch):
            asked.append(files)
            parts = [compat.Split(file) for file in files]
            return [compat.Shard(n, parts[n::num_workers]) for n in range(num_workers)]

    options = {"filters": pc.field("partition_dt") >= 20240102, "num_workers": 0}
    assert_same_rows(
        lambda library: iceberg(lake, library, split_strategy=Strategy(library), **options)[0]
    )
    theirs, ours = (sorted(files, key=lambda file: file.record_count) for files in asked)
    assert [type(file).__name__ for file in ours] == ["IcebergDataFileInfo"] * 2
    for name in ("path", "file_size", "record_count", "snapshot_id"):
        assert [getattr(file, name) for file in ours] == [getattr(file, name) for file in theirs]
    assert [file.partition for file in ours] == [None, None]
    # It is asked when the loader is made.
    iceberg(lake, table="my_db.by_day", split_strategy=Strategy(compat), **options)
    assert len(asked) == 3
    partitions = [{"partition_dt": "20240102"}, {"partition_dt": "20240103"}]
    assert sorted((file.partition for file in asked[-1]), key=str) == partitions


def test_partitioned_tables(lake):
    """The peer fails on them with the pyiceberg of today."""
    with pytest.raises(TypeError, match="cannot convert dictionary"):
        iceberg(lake, peer, table="my_db.by_day")
    found = rows_of(iceberg(lake, table="my_db.by_day")[0])
    assert found == rows_of(iceberg(lake, peer)[0])
    days = pc.field("partition_dt") == 20240102
    loader, dataset = iceberg(lake, table="my_db.by_day", filters=days)
    assert sum(rows_of(loader).values()) == 1000
    [worker] = dataset.get_metrics()
    assert worker.files_read == 1


# --- deletes ---


def test_deleted_rows(lake):
    """pyiceberg rewrites the files that it deletes rows from."""
    found = assert_same_rows(loader_of(lake, table="my_db.deleted"), least=300)
    assert sum(found.values()) == 300


def registered(lake, name):
    """A table that Spark wrote, in the catalog; and the values of its first column that are not deleted."""
    load_catalog(**lake).register_table(f"my_db.{name}", open_fixture(name))
    column = truth(name).column_names[0]
    return f"my_db.{name}", column, sorted(truth(name)[column].to_pylist())


def values_of(loader, column):
    return sorted(value for batch in loader for value in batch[column].tolist())


@pytest.mark.slow
def test_position_deletes(lake):
    """Once there are delete files, the peer reads a file of several parts as a whole for each of them."""
    table, column, expected = registered(lake, "large_v2")
    options = {"table": table, "split_rows": len(expected) // 5, "batch_size": 10_000}
    assert values_of(iceberg(lake, **options)[0], column) == expected
    assert len(values_of(iceberg(lake, peer, **options)[0], column)) >= 2 * len(expected)
    # It takes no columns then, either.
    options["columns"] = [column]
    assert values_of(iceberg(lake, **options)[0], column) == expected
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        values_of(iceberg(lake, peer, **options)[0], column)


def test_equality_deletes(lake):
    table, column, expected = registered(lake, "eq_keys")
    with pytest.raises(ValueError, match="does not yet support equality deletes"):
        iceberg(lake, peer, table=table)
    assert values_of(iceberg(lake, table=table, columns=[column])[0], column) == expected


# --- errors ---


@pytest.mark.parametrize("output_format", ["arrow", "dict", "pandas"])
def test_what_the_peer_refuses_at_once(output_format):
    nowhere = {"type": "rest", "uri": "http://127.0.0.1:9"}
    for library in (peer, compat):
        with pytest.raises(ValueError, match=output_format):
            iceberg(nowhere, library, output_format=output_format)


def test_filters_are_expressions(lake):
    with pytest.raises(TypeError, match=r"must be a pyarrow\.compute\.Expression"):
        iceberg(lake, filters="region_id > 3")


def test_tables_without_data(lake):
    with pytest.raises(FileNotFoundError, match=r"my_db\.empty has no data file"):
        iceberg(lake, table="my_db.empty")
    for library in (peer, compat):
        with pytest.raises(FileNotFoundError):
            iceberg(lake, library, filters=pc.field("partition_dt") > 20250101)


# --- object stores ---


@pytest.mark.slow
def test_an_object_store_with_the_options_of_the_readme(minio, tmp_path):
    write_files(tmp_path / "train")
    url = minio.upload(tmp_path, "compat")
    options = {"format": "parquet", "num_workers": 0}
    local, _ = peer.StructuredDataset.create_dataloader(path=f"{tmp_path}/train", **options)
    expected = rows_of(local)
    for path in (f"{url}train/", f"{url}train", f"{url}train/*.parquet"):
        loader, _ = compat.StructuredDataset.create_dataloader(
            path=path, storage_options=minio.options, **options
        )
        assert rows_of(loader) == expected
    one = f"{url}train/part-0.parquet"
    loader, _ = compat.StructuredDataset.create_dataloader(
        path=one, storage_options=minio.options, **options
    )
    assert (
        sum(rows_of(loader).values())
        == pq.read_metadata(tmp_path / "train/part-0.parquet").num_rows
    )
    listed = compat.discover_files(f"{url}train/", minio.options, [".parquet"])
    assert [file.file_size for file in listed] == [
        (tmp_path / f"train/part-{number}.parquet").stat().st_size for number in range(3)
    ]
    strategy = compat.RoundRobinSplitStrategy()
    loader, _ = compat.StructuredDataset.create_dataloader(
        path=f"{url}train/", storage_options=minio.options, split_strategy=strategy, **options
    )
    assert rows_of(loader) == expected
    with pytest.raises(FileNotFoundError, match="compat"):
        compat.discover_files(url, minio.options)
    with pytest.raises(FileNotFoundError, match="nothing"):
        compat.discover_files(f"{url}nothing/", minio.options)
