"""The table "Where rows differ" of docs/migration.md: the rows of torch-dataloader-utils, and those of
`tensorquery.compat`."""

import time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch_dataloader_utils as peer
import torch_dataloader_utils.filesystem
import torch_dataloader_utils.splits
from pyiceberg.catalog import load_catalog
from torch.utils.data import DataLoader

from compat_rows import assert_same_rows, pass_on, rows_of, write_files
from tensorquery import compat

SHARDS = {peer: peer.splits, compat: compat}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"), sizes=(600, 600))


def structured(path, library=compat, **options):
    options = {"format": "parquet", "num_workers": 0, "batch_size": 100, **options}
    return library.StructuredDataset.create_dataloader(path=str(path), **options)


def numbers(batches):
    return [number for batch in batches for number in batch["id"].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("library", [peer, compat])
def test_a_checkpoint_of_what_workers_read_ahead(files, library):
    """A worker's shard is no longer than its read-ahead, so the first worker has ended when one batch has arrived."""
    options = {"num_workers": 2, "batch_size": 300}
    loader, dataset = structured(files, library, **options)
    batches = iter(loader)
    seen = numbers([next(batches)])
    time.sleep(2)
    state = dataset.state_dict()
    loader, dataset = structured(files, library, **options)
    dataset.load_state_dict(state)
    seen += numbers(loader)
    if library is compat:
        assert sorted(seen) == sorted(pq.read_table(files)["id"].to_pylist())
    else:
        assert len(seen) == len(set(seen)) == 900


@pytest.mark.filterwarnings("ignore:the data is sorted")
@pytest.mark.parametrize("library", [peer, compat])
def test_an_epoch_after_another_without_set_epoch(tmp_path, library):
    """Over 17 parts: the order depends on the paths, and two orders of few parts may happen to be equal."""
    files = write_files(tmp_path)
    loader, _ = structured(files, library, shuffle=True, split_rows=300)
    first, second = numbers(loader), numbers(loader)
    assert sorted(first) == sorted(second)
    assert (first == second) == (library is peer)


@pytest.mark.slow
def test_a_dataloader_with_fewer_workers(files):
    listed = peer.filesystem.discover_files(str(files))
    for library, rows in ((peer, 600), (compat, 1200)):
        dataset = library.StructuredDataset(listed, "parquet", num_workers=2)
        assert sum(rows_of(DataLoader(dataset, batch_size=None, num_workers=1)).values()) == rows


def test_answers_of_strategies_that_lose_files(files):
    class Half:
        def __init__(self, library):
            self.library = SHARDS[library]

        def generate(self, files, num_workers, epoch):
            return [self.library.Shard(0, [self.library.Split(files[0])])]

    class TooMany(Half):
        def generate(self, files, num_workers, epoch):
            return [
                self.library.Shard(n, [self.library.Split(file)]) for n, file in enumerate(files)
            ]

    for strategy, message in ((Half, "left out"), (TooMany, "2 shards for 1 workers")):
        loader, _ = structured(files, peer, split_strategy=strategy(peer))
        assert len(numbers(loader)) == 600
        with pytest.raises(ValueError, match=message):
            structured(files, split_strategy=strategy(compat))


def test_ranges_of_text(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n2\n")

    class Halves:
        def __init__(self, library):
            self.library = SHARDS[library]

        def generate(self, files, num_workers, epoch):
            kinds = self.library
            parts = [kinds.Split(files[0], kinds.RowRange(first, 1)) for first in (0, 1)]
            return [kinds.Shard(0, parts)]

    loader, _ = structured(tmp_path, peer, format="csv", split_strategy=Halves(peer))
    assert numbers(loader) == [1, 2, 1, 2]
    with pytest.raises(ValueError, match="deal it whole"):
        structured(tmp_path, format="csv", split_strategy=Halves(compat))


def test_hidden_names(tmp_path):
    write_files(tmp_path, sizes=(50,))
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(pa.ArrowInvalid):
        numbers(structured(tmp_path, peer)[0])
    assert len(numbers(structured(tmp_path)[0])) == 50


def test_an_empty_text_of_csv(tmp_path):
    (tmp_path / "a.csv").write_text("id,name\n1,\n2,x\n")
    options = {"format": "csv", "output_format": "dict", "collate_fn": pass_on}
    found = [[batch["name"] for batch in structured(tmp_path, lib, **options)[0]] for lib in SHARDS]
    assert found == [[["", "x"]], [[None, "x"]]]


def test_values_of_directories_beside_csv_are_typed(tmp_path):
    for year in (2023, 2024):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pyarrow.csv.write_csv(pa.table({"id": [year * 10, year * 10 + 1]}), folder / "a.csv")
    options = {"format": "csv", "partitioning": "hive"}
    [ours] = structured(tmp_path, **options)[0]
    [theirs, _] = structured(f"{tmp_path}/*/*.csv", peer, **options)[0]
    assert ours["year"].tolist() == [2023, 2023, 2024, 2024]
    assert theirs["year"].tolist() == [2023, 2023]


def test_filters_of_directories(tmp_path):
    for month in ("01", "02"):
        write_files(tmp_path / f"month={month}", sizes=(50,))
    options = {"partitioning": "hive", "filters": pc.field("month") == "02"}
    with pytest.raises(pa.ArrowInvalid, match="No match for FieldRef"):
        numbers(structured(f"{tmp_path}/*/*", peer, **options)[0])
    loader, dataset = structured(tmp_path, **options)
    assert len(numbers(loader)) == 50
    assert dataset.get_metrics()[0].files_read == 1


@pytest.mark.slow
def test_renamed_columns(tmp_path):
    config = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}",
    }
    catalog = load_catalog(**config)
    catalog.create_namespace("ns")
    rows = pa.table({"old": [1, 2, 3]})
    table = catalog.create_table("ns.t", rows.schema)
    table.append(rows)
    with table.update_schema() as update:
        update.rename_column("old", "id")
    options = {"table": "ns.t", "catalog_config": config, "num_workers": 0}
    [theirs] = peer.IcebergDataset.create_dataloader(**options)[0]
    assert list(theirs) == ["old"]
    assert numbers(compat.IcebergDataset.create_dataloader(**options)[0]) == [1, 2, 3]


@pytest.mark.slow
def test_workers_are_counted_alike(files, monkeypatch):
    """None is every processor but one, here of those that this process may use."""
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    monkeypatch.setattr("tensorquery.distributed.topology.cpu_count", lambda: 3)
    for library in SHARDS:
        assert structured(files, library, num_workers=None)[0].num_workers == 2
    assert_same_rows(lambda library: structured(files, library, num_workers=None)[0], least=1200)


def test_fewer_rows_than_ranks(tmp_path):
    write_files(tmp_path, sizes=(1,))
    ranks = [structured(tmp_path, peer, num_ranks=2, rank=rank)[0] for rank in range(2)]
    assert [len(numbers(loader)) for loader in ranks] == [1, 0]
    with pytest.raises(ValueError, match="1 rows .* cannot give each of 2 ranks"):
        structured(tmp_path, num_ranks=2)
