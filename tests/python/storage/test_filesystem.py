"""Promise: any file system of fsspec is read like a store: the same rows, pinned, in every process, with clear
errors."""

import time
import zipfile

import fsspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import tensorquery as tq
from effort import METHODS
from storage_servers import parquet_bytes
from support import write_csv, write_parquet

TABLE = pa.table({"id": list(range(120)), "v": [i / 8 for i in range(120)]})
IDS = TABLE["id"].to_pylist()


@pytest.fixture
def memory():
    filesystem = fsspec.filesystem("memory")
    for number in range(4):
        filesystem.pipe(f"/lake/{number}.parquet", parquet_bytes(TABLE.slice(number * 30, 30)))
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


class Faulty(LocalFileSystem):
    """A local file system with faults: what to raise, or how many bytes to keep back."""

    protocol = ("faulty",)
    cachable = False

    def __init__(self, fault=None, **options):
        super().__init__(**options)
        self.fault = fault

    def cat_file(self, path, start=None, end=None, **options):
        if self.fault == "raise" and start != 0:
            raise PermissionError("the dog ate it")
        data = super().cat_file(path, start=start, end=end, **options)
        return data[:-1] if self.fault == "short" else data


def loaded(workers=0, context=None, **options):
    more = {"multiprocessing_context": context} if context else {}
    loader, _ = tq.create_dataloader(batch_size=7, num_workers=workers, **options, **more)
    return sorted(int(i) for batch in loader for i in batch["id"])


# ------------------------------------------------------------------------------------------------
# filesystem=


@pytest.mark.parametrize(
    "path",
    ["/lake/", "lake", "memory://lake", "/lake/*.parquet", "memory:///lake/?.parquet", "/**"],
)
def test_paths_of_a_file_system(memory, path):
    session = tq.Session()
    session.register_parquet("t", path, filesystem=memory)
    assert sorted(session.table("t").to_arrow()["id"].to_pylist()) == IDS
    assert session.tables[0].files == 4


@pytest.mark.slow
def test_lists_of_files_and_every_format(memory, tmp_path):
    paths = ["/lake/2.parquet", "/lake/0.parquet"]
    expected = [*range(30), *range(60, 90)]
    assert loaded(path=paths, filesystem=memory) == expected
    local = LocalFileSystem()
    for kind, write in (("csv", write_csv), ("parquet", write_parquet)):
        folder = write(tmp_path / kind, TABLE, files=3)
        assert loaded(path=folder, filesystem=local) == IDS
        assert loaded(path=folder, format=kind, filesystem=DirFileSystem("/", fs=local)) == IDS
    packed = write_csv(tmp_path / "gz", TABLE, files=2, compress="gz")
    assert loaded(path=packed, filesystem=local) == IDS


def test_hive_directories(memory):
    for part in ("a", "b"):
        memory.pipe(f"/hive/part={part}/x.parquet", parquet_bytes(TABLE.slice(0, 3)))
    session = tq.Session()
    session.register_parquet("t", "/hive", filesystem=memory)
    got = session.sql("SELECT DISTINCT part FROM t ORDER BY part").to_arrow()
    assert got["part"].to_pylist() == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_file_systems_of_pyarrow_are_read_through_their_wrapper(tmp_path, workers):
    """fsspec opens their files as streams where they are read from the beginning, and then seeks in them."""
    folder = write_parquet(tmp_path / "t", TABLE, files=4)
    wrapped = ArrowFSWrapper(pa.fs.LocalFileSystem())
    assert loaded(workers, path=folder, filesystem=wrapped) == IDS
    assert loaded(workers, path="/", filesystem=DirFileSystem(folder, fs=wrapped)) == IDS
    csv = write_csv(tmp_path / "csv", TABLE, files=2)
    assert loaded(workers, path=csv, filesystem=wrapped) == IDS


@pytest.mark.slow
@pytest.mark.parametrize("context", METHODS)
def test_workers_open_it_again(tmp_path, context):
    folder = write_parquet(tmp_path / "t", TABLE, files=4)
    filesystem = DirFileSystem(folder, fs=LocalFileSystem())
    assert loaded(2, context, path="*.parquet", filesystem=filesystem) == IDS
    assert loaded(2, context, path=folder, filesystem=Faulty()) == IDS


@pytest.mark.slow
def test_memory_lives_on_in_a_forked_worker_and_not_in_a_spawned_one(memory):
    assert loaded(2, "fork", path="/lake", filesystem=memory) == IDS
    with pytest.raises((tq.DataError, RuntimeError), match="vanished"):
        loaded(1, "spawn", path="/lake", filesystem=memory)


def test_a_changed_file_is_named(memory, tmp_path):
    session = tq.Session()
    session.register_parquet("t", "/lake", filesystem=memory)
    time.sleep(0.01)
    memory.pipe("/lake/1.parquet", parquet_bytes(TABLE.slice(60, 30)))
    with pytest.raises(tq.DataError, match=r"lake/1\.parquet changed"):
        session.table("t").to_arrow()
    memory.rm("/lake/1.parquet")
    with pytest.raises(tq.DataError, match=r"lake/1\.parquet vanished"):
        session.table("t").to_arrow()
    folder = write_parquet(tmp_path / "t", TABLE, files=2)
    session.register_parquet("u", folder, filesystem=LocalFileSystem())
    pq.write_table(TABLE, f"{folder}/001.parquet")
    with pytest.raises(tq.DataError, match=r"001\.parquet changed"):
        session.table("u").to_arrow()


def test_a_changed_file_of_the_same_size_is_named(memory, tmp_path):
    local = LocalFileSystem()
    for filesystem, path in ((memory, "/lake/a.csv"), (local, str(tmp_path / "a.csv"))):
        filesystem.pipe(path, b"id\n1\n")
        session = tq.Session()
        session.register_csv("t", path, filesystem=filesystem)
        assert session.table("t").to_arrow()["id"].to_pylist() == [1]
        time.sleep(0.01)
        filesystem.pipe(path, b"id\n2\n")
        with pytest.raises(tq.DataError, match=r"a\.csv changed"):
            session.table("t").to_arrow()


@pytest.mark.slow
def test_faults_are_named(tmp_path):
    folder = write_parquet(tmp_path / "t", TABLE)
    with pytest.raises(tq.StorageError) as caught:
        loaded(path=folder, filesystem=Faulty("raise"))
    text = str(caught.value)
    assert "000.parquet" in text
    assert "PermissionError: the dog ate it" in text
    assert isinstance(caught.value.__cause__, PermissionError)
    with pytest.raises(tq.StorageError, match="returned .* bytes of .*000.parquet"):
        loaded(path=folder, filesystem=Faulty("short"))


@pytest.mark.slow
def test_what_is_no_file_system(memory):
    with pytest.raises(tq.ConfigError, match="must be a file system of fsspec"):
        loaded(path="/lake", filesystem="memory")
    with pytest.raises(tq.ConfigError, match="its own options"):
        loaded(path="/lake", filesystem=memory, storage_options={"key": "x"})
    with pytest.raises(tq.ConfigError, match="filesystem goes with path="):
        tq.create_dataloader("SELECT 1", filesystem=memory)
    with pytest.raises(tq.TableNotFoundError, match="memory://nowhere"):
        loaded(path="/nowhere", filesystem=memory)


# ------------------------------------------------------------------------------------------------
# URLs that object_store does not know.


@pytest.mark.slow
def test_schemes_of_fsspec(memory):
    session = tq.Session()
    query = session.sql("SELECT id FROM 'memory://lake/*.parquet'")
    assert sorted(query.to_arrow()["id"].to_pylist()) == IDS
    assert loaded(path="memory://lake/") == IDS
    assert loaded(2, "fork", path=["memory://lake/3.parquet"]) == list(range(90, 120))
    assert {split.path for split in query.plan_shards().splits()} == {
        f"memory://lake/{number}.parquet" for number in range(4)
    }


@pytest.mark.slow
def test_chained_urls(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/a.parquet", parquet_bytes(TABLE))
    url = f"zip://in/a.parquet::file://{tmp_path}/a.zip"
    assert loaded(path=url) == IDS
    assert loaded(1, "spawn", path=url) == IDS


@pytest.mark.slow
def test_a_key_with_colons_is_no_chain():
    with pytest.raises(tq.TensorQueryError) as caught:
        loaded(path="s3://b/a::b.parquet", storage_options={"nonsense": 1})
    assert "nonsense" in str(caught.value)


@pytest.mark.slow
def test_options_reach_the_file_system(memory):
    options = {"memory://": {"nonsense": 1}, "s3://b/": {"key": "x"}}
    assert loaded(path="memory://lake", storage_options={"s3://b/": {"key": "x"}}) == IDS
    with pytest.raises(tq.TensorQueryError):
        loaded(path="github://lake", storage_options=options | {"orgg": "x"})


@pytest.mark.slow
def test_what_is_not_installed_is_an_import_error_with_the_command():
    with pytest.raises(ImportError, match="pip install dropboxdrivefs"):
        loaded(path="dropbox://a/b.parquet")
    with pytest.raises(ImportError, match="pip install s3fs"):
        loaded(path="simplecache::s3://b/a.parquet")


@pytest.mark.slow
def test_an_unknown_scheme_is_named():
    with pytest.raises(tq.ConfigError, match='unknown scheme "s4"'):
        loaded(path="s4://b/a.parquet")
