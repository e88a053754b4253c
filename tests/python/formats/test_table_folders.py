"""Promise: a folder of a Delta, Hudi or Iceberg table is never read as plain files, wherever in it a path leads:
that would deliver deleted and replaced rows, too. The error names the folder and says what to do."""

import json

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from storage_servers import parquet_bytes, s3_store

OLD, NEW = pa.table({"x": [1, 2, 3]}), pa.table({"x": [9]})
DATA = {"k=1/a.parquet": OLD, "k=1/b.parquet": NEW, "Zq/c.parquet": NEW}
METADATA = json.dumps({"format-version": 2}).encode()

# The files of a table of each kind, by path.
TABLES = {
    "Delta": {**DATA, "_delta_log/00000000000000000000.json": b"{}"},
    "Hudi": {
        **DATA,
        ".hoodie/hoodie.properties": b"hoodie.table.name=t",
        "k=1/.hoodie_partition_metadata": b"depth=1",
        "Zq/.hoodie_partition_metadata": b"depth=1",
    },
    "Iceberg": {
        **{f"data/{path}": table for path, table in DATA.items()},
        "metadata/00000-5d0b8f4e.metadata.json": METADATA,
    },
    "Iceberg of Hadoop": {
        **{f"data/{path}": table for path, table in DATA.items()},
        "metadata/v1.gz.metadata.json": METADATA,
        "metadata/version-hint.text": b"1",
    },
}

# Paths below a table, before `data/` of Iceberg.
FOLDERS = ["", "{data}", "{data}k=1", "{data}k=1/", "{data}Zq"]
PATTERNS = [
    "**",
    "**/*.parquet",
    "{data}*/*.parquet",
    "{data}k=*/*.parquet",
    "{data}k=1/*.parquet",
    "{data}?q/*",
]
FILES = ["{data}k=1/a.parquet", "{data}Zq/c.parquet"]


def below(kind, path):
    return path.format(data="data/" if kind.startswith("Iceberg") else "")


def rows(path, **more):
    options = {"format": "parquet", "partitioning": False, **more}
    loader, _ = tq.create_dataloader(path=path, **options)
    return sorted(x for batch in loader for x in batch["x"].tolist())


def refusal(path, **more):
    with pytest.raises(tq.DataError, match="hold rows that were deleted or replaced") as error:
        rows(path, **more)
    return str(error.value)


@pytest.fixture
def tables(tmp_path):
    """A folder with a table of each kind, and one of plain files."""
    for kind, files in {**TABLES, "plain": DATA}.items():
        for path, content in files.items():
            target = tmp_path / kind / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                target.write_bytes(content)
            else:
                pq.write_table(content, target)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("path", FOLDERS + PATTERNS)
@pytest.mark.parametrize("kind", TABLES)
def test_local_folders_are_refused(tables, kind, path):
    word = kind.split()[0]
    told = refusal(f"{tables}/{kind}/{below(kind, path)}")
    assert f"{tables}/{kind} is the folder of a" in told
    assert f"{word} table" in told
    assert rows(f"{tables}/plain/{path.format(data='')}")


@pytest.mark.parametrize("kind", TABLES)
def test_a_file_that_is_named_is_refused_where_deletes_may_hide_in_it(tables, kind):
    files = [f"{tables}/{kind}/{below(kind, path)}" for path in FILES]
    if kind == "Delta":
        for path in (files, files[0], files[1]):
            assert "session.register_delta" in refusal(path, partitioning=False)
    else:
        assert rows(files, partitioning=False) == [1, 2, 3, 9]


def test_every_way_to_name_a_path_is_refused(tables, monkeypatch):
    delta = tables / "Delta"
    session = tq.Session()
    for name in (
        delta,
        f"{delta}/k=1/a.parquet",
        f"{tables}/*/k=1/*.parquet",
        [f"{tables}/plain/Zq", f"{delta}/Zq"],
    ):
        with pytest.raises(tq.DataError, match="Delta table"):
            session.register_parquet("t", name, partitioning=False)
    for kind, path in (("Delta", "k=1"), ("Hudi", "Zq/*.parquet"), ("Iceberg", "data")):
        with pytest.raises(tq.DataError, match=f"{kind} table"):
            session.sql(f"SELECT * FROM '{tables}/{kind}/{path}'")
    monkeypatch.chdir(delta / "k=1")
    assert "Delta table" in refusal("a.parquet")
    assert "Delta table" in refusal(".")
    # A folder of several tables.
    assert "is the folder of a" in refusal(str(tables))


def test_links_lead_to_the_table(tables):
    (tables / "linked").symlink_to(tables / "Delta" / "k=1")
    assert "Delta table" in refusal(f"{tables}/linked")
    assert "Delta table" in refusal(f"{tables}/linked/a.parquet")
    (tables / "plain" / "more").symlink_to(tables / "Hudi" / "Zq")
    assert "Hudi table" in refusal(f"{tables}/plain")


def test_a_history_is_read_as_what_it_is_and_common_names_are_no_tables(tables):
    log = tq.Session().sql(f"SELECT count(*) AS n FROM '{tables}/Delta/_delta_log/*.json'")
    assert log.to_arrow()["n"].to_pylist() == [1]
    metadata = tq.Session().sql(
        f"SELECT \"format-version\" AS v FROM '{tables}/Iceberg/metadata/*.json'"
    )
    assert metadata.to_arrow()["v"].to_pylist() == [2]
    plain = tables / "plain"
    (plain / "metadata").mkdir()
    (plain / "metadata" / "images.metadata.json").write_text("{}")
    (plain / "metadata" / "v1.json").write_text("{}")
    (plain / "_delta_log").mkdir()
    (plain / ".hoodie").touch()
    assert rows(f"{plain}/*/*.parquet", partitioning=False) == [1, 2, 3, 9, 9]


@pytest.fixture(scope="module")
def store():
    with s3_store() as store:
        objects = {
            f"t/{kind}/{path}": content
            for kind, files in TABLES.items()
            for path, content in files.items()
        }
        store.put("lake", {**objects, **{f"t/plain/{path}": table for path, table in DATA.items()}})
        yield store


@pytest.mark.parametrize("kind", TABLES)
def test_stores_are_refused_with_few_requests(store, kind):
    options = {"storage_options": store.options(), "partitioning": False}
    for path in FOLDERS + PATTERNS:
        before = len(store.guard.seen())
        told = refusal(f"s3://lake/t/{kind}/{below(kind, path)}", **options)
        assert f"s3://lake/t/{kind}" in told
        # Nothing is read before the refusal.
        assert len(store.guard.seen()) - before <= 12, path
    files = [f"s3://lake/t/{kind}/{below(kind, path)}" for path in FILES]
    if kind == "Delta":
        assert "Delta table" in refusal(files, **options)
        assert "Delta table" in refusal(files[1], **options)
    else:
        assert rows(files, **options) == [1, 2, 3, 9]


def test_a_plain_folder_of_a_store_costs_a_request_for_each_folder_above(store):
    options = {"storage_options": store.options(), "partitioning": False}
    for path, expected in (
        ("", [1, 2, 3, 9, 9]),
        ("k=1", [1, 2, 3, 9]),
        ("**/*.parquet", [1, 2, 3, 9, 9]),
        ("Zq/c.parquet", [9]),
    ):
        before = len(store.guard.seen())
        assert rows(f"s3://lake/t/plain/{path}", **options) == expected
        listings = [
            seen for seen in store.guard.seen()[before:] if seen["path"].strip("/") == "lake"
        ]
        # Its own listing, and one each in `t/plain`, `t` and the bucket.
        assert len(listings) <= 5, path


def test_file_systems_of_fsspec_are_refused():
    filesystem = fsspec.filesystem("memory")
    for kind, files in TABLES.items():
        for path, content in files.items():
            data = content if isinstance(content, bytes) else parquet_bytes(content)
            filesystem.pipe(f"/lake/{kind}/{path}", data)
    try:
        for kind in TABLES:
            for path in ("", below(kind, "{data}k=1"), "**/*.parquet"):
                with pytest.raises(tq.DataError, match=f"{kind.split()[0]} table"):
                    tq.Session().register_parquet(
                        "t", f"/lake/{kind}/{path}", filesystem=filesystem
                    )
    finally:
        filesystem.store.clear()
        filesystem.pseudo_dirs[:] = [""]
