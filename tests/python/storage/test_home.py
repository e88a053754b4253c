"""A `~` at the start of a path from Python is the user's folder, as in a shell, and never a folder of that name."""

from pathlib import Path

import pyarrow as pa
import pytest

import support
import tensorquery as tq
from pyiceberg_tables import make_lake
from tensorquery import compat

TABLE = pa.table({"id": range(40), "at": range(40)})


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home of a user who works in another folder."""
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    support.write_parquet(home / "data", TABLE, files=2)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    yield home
    assert not list(here.iterdir())


def count(**options):
    loader, _ = tq.create_dataloader(**options)
    return sum(len(batch["id"]) for batch in loader)


@pytest.mark.parametrize(
    "path", ["~/data", "~/data/", "~/data/*.parquet", Path("~/data"), ["~/data"]], ids=repr
)
def test_files_are_found_below_it(home, path):
    assert count(path=path) == 40
    session = tq.Session()
    session.register_parquet("t", path)
    assert session.table("t").count() == 40


def test_a_url_and_a_name_with_a_tilde_stay_as_they_are(home):
    for path in ("data/~", "./~/data", f"file://{home}/~"):
        with pytest.raises(tq.TableNotFoundError, match="~"):
            tq.create_dataloader(path=path)


def test_other_formats_and_joins(home):
    (home / "users.csv").write_text("id\n1\n2\n")
    (home / "users.json").write_text('{"id": 1}\n')
    session = tq.Session()
    session.register_csv("csv", "~/users.csv")
    session.register_json("json", Path("~/users.json"))
    assert [session.table(name).count() for name in ("csv", "json")] == [2, 1]
    joined = tq.asof_join(Path("~/data"), "csv", on="id", columns={"id": "found"})
    assert session.sql(joined).count() == 40


def test_caches_lie_below_it(home):
    tq.Session(plan_cache="~/plans", local_cache="~/ranges").register_parquet("t", "~/data")
    assert count(path="~/data", plan_cache=Path("~/plans"), local_cache=Path("~/ranges")) == 40
    assert (home / "plans").is_dir()


@pytest.mark.slow
def test_stages_lie_below_it(home, monkeypatch):
    query = tq.Session().sql(f"SELECT id FROM '{home}/data' ORDER BY id DESC LIMIT 7")
    assert count(query=query, stage_dir="~/stages") == 7
    assert len(tq.list_stages("~/stages")) == len(tq.list_stages(home / "stages")) == 1
    assert "not built yet" not in query.explain(stage_dir=Path("~/stages"))
    assert tq.clear_stages(Path("~/stages"), unused_days=0) > 0
    assert count(query=query, stage_from="~/data") == 40
    assert count(query=query, stage_from=Path("~/data")) == 40
    monkeypatch.setenv("TENSORQUERY_STAGES", "~/all")
    assert count(query=query) == 7
    assert count(query=query, shuffle="global") == 7
    assert (home / "all").is_dir()


def test_counts_lie_below_it(home, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_CACHE", "~/cache")
    options = {"path": "~/data", "filters": "id % 2 = 0", "world_size": 2}
    assert sum(count(rank=rank, **options) for rank in range(2)) == 20
    assert list((home / "cache").rglob("*.json"))


def test_iceberg_tables_lie_below_it(home):
    table = make_lake(home).create_table("ns.t", TABLE.schema)
    table.append(TABLE)
    place = table.metadata_location.removeprefix("file://").replace(str(home), "~")
    session = tq.Session()
    session.register_iceberg_table("t", Path(place))
    assert session.table("t").count() == count(table=place) == 40
    assert session.incremental(place, table.current_snapshot().snapshot_id).count() == 0


@pytest.mark.slow
def test_the_other_librarys_interface(home):
    assert len(compat.discover_files("~/data")) == 2
    loader, _ = compat.StructuredDataset.create_dataloader(path="~/data", format="parquet")
    assert sum(len(batch["id"]) for batch in loader) == 40
