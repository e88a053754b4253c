"""A table in an object store is read as on the local disk: the same rows in the same order, from real servers of S3,
Google and Azure."""

import os
from collections import Counter
from datetime import date, timedelta
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq
from iceberg_servers import fresh

STORES = ["moto", "minio", "gcs", "azure"]
ROWS = 600

# Not about the machine that runs the tests.
pytestmark = [
    pytest.mark.servers,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(params=STORES)
def store(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A folder per kind of table."""
    root = tmp_path_factory.mktemp("stores")
    table = support.random_table(np.random.default_rng(3), ROWS, ["s", "i32"])
    values = ["a b", "100%", "größe", "x=y", "%20", "plain"]
    for number, part in enumerate(support.cut(table, 12)):
        # Names as Hive writes them: what a path cannot hold is percent-encoded.
        value = values[number % len(values)].replace("%", "%25").replace("=", "%3D")
        day = date(2026, 1, 1) + timedelta(number // len(values))
        folder = root / "parquet" / f"day={day}" / f"city={value}"
        folder.mkdir(parents=True)
        pq.write_table(part, folder / f"part {number:02}.parquet", row_group_size=13)
    simple = table.select(["id", "k", "i32"])
    support.write_csv(root / "csv", simple, files=3, compress="gz")
    # JSON has no NaN.
    support.write_json(root / "json", table.drop(["v"]), files=3)
    support.write_orc(root / "orc", simple, files=3)
    support.write_arrow(root / "arrow", table, files=3)
    return root


@pytest.fixture(scope="module")
def uploaded(local):
    """A function: the URL of one kind of table in a store, written once for all tests."""
    known = {}

    def url(store, kind):
        if (store, kind) not in known:
            known[store, kind] = store.upload(local / kind, f"{fresh('tables')}/{kind}")
        return known[store, kind]

    return url


def rows(path, kind, **options):
    """The rows that a loader delivers, in its order."""
    options = {"batch_size": 50, "output_format": "arrow", "remainder": "uneven", **options}
    loader, _ = tq.create_dataloader(path=path, format=kind, **options)
    return [row for batch in loader for row in batch.to_pylist()]


def same(found, wanted):
    """NaN is not equal to itself."""
    assert len(found) == len(wanted) > 0
    assert list(map(repr, found)) == list(map(repr, wanted))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "orc", "arrow"])
def test_rows_and_order_are_those_of_the_local_table(store, local, uploaded, kind, workers):
    url = uploaded(store, kind)
    here = {"num_workers": workers, "storage_options": store.options}
    there = str(local / kind)
    same(rows(url, kind, **here), rows(there, kind, num_workers=workers))
    # Which permutation it is depends on the files' names.
    mixed = rows(url, kind, shuffle=True, shuffle_seed=5, shuffle_buffer_size=70, **here)
    assert Counter(map(repr, mixed)) == Counter(map(repr, rows(there, kind)))
    if workers == 0:
        shares = [rows(url, kind, rank=rank, world_size=3, **here) for rank in range(3)]
        ids = [row["id"] for row in support.flat(shares)]
        assert sorted(ids) == list(range(ROWS))


@pytest.mark.parametrize(
    "pattern",
    ["day=2026-01-0[1]/*/*.parquet", "**/part 0?.parquet", "*/city=a b/", "day=2026-01-02/"],
)
def test_patterns_match_what_they_match_locally(store, local, uploaded, pattern):
    url = uploaded(store, "parquet")
    here = rows(url + pattern, "parquet", storage_options=store.options)
    same(here, rows(f"{local}/parquet/{pattern}", "parquet"))


def test_filters_and_partitions_prune_as_locally(store, local, uploaded):
    filters = "city IN ('größe', 'x=y', '%20') AND id % 3 = 0"
    url = uploaded(store, "parquet")
    here = rows(
        url, "parquet", storage_options=store.options, filters=filters, columns=["id", "city"]
    )
    same(here, rows(f"{local}/parquet", "parquet", filters=filters, columns=["id", "city"]))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_path_literals_take_the_options_of_the_session(store, local, uploaded, workers):
    sql = "SELECT a.id, b.i32 FROM '{0}/**/*.parquet' a JOIN '{1}/*.csv.gz' b ON a.id = b.id"
    there = sql.format(local / "parquet", local / "csv")
    here = sql.format(*(uploaded(store, kind).rstrip("/") for kind in ("parquet", "csv")))
    options = {"num_workers": workers, "output_format": "arrow", "batch_size": 50}
    found = []
    for text, session in ((here, tq.Session(storage_options=store.options)), (there, tq.Session())):
        loader, _ = tq.create_dataloader(text, session=session, **options)
        found.append([row for batch in loader for row in batch.to_pylist()])
    same(*found)


@pytest.mark.slow
def test_http_serves_single_files(local, tmp_path):
    files = [path for path in sorted(local.rglob("*")) if path.is_file()]
    assert len(files) == 12 + 4 * 3
    with support.serve(local, tmp_path / "log") as base:
        for path in files:
            name = path.relative_to(local)
            kind = name.parts[0]
            url = f"{base}/{'/'.join(map(quote, name.parts))}"
            for workers in (0, 2) if path.name.startswith("000") else (0,):
                found = rows(url, kind, num_workers=workers, partitioning=False)
                same(found, rows(str(path), kind, num_workers=workers, partitioning=False))


AWKWARD = ["a b", "100%", "%20", "größe", "x=1", "a+b", "a&b", "#1", "it's", "~", "a;b", "日本", "a:b", "(1)", "@", "a\\b"]  # fmt: skip


def test_keys_may_have_any_characters(store):
    prefix = fresh("awkward")
    names = sorted(f"{word}.csv" for word in AWKWARD)
    if store.root.startswith("az://"):
        # Azure takes a backslash for a slash.
        names.remove("a\\b.csv")
    store.put_all(
        (f"{prefix}/{name}", f"id,name\n{number},x\n".encode()) for number, name in enumerate(names)
    )
    session = tq.Session(storage_options=store.options)
    session.register_csv("t", f"{store.root}/{prefix}/")
    found = session.sql("SELECT id FROM t").to_arrow()["id"].to_pylist()
    assert sorted(found) == list(range(len(names)))
    for number, name in enumerate(names):
        one = fresh("t")
        session.register_csv(one, f"{store.root}/{prefix}/{name}")
        assert session.sql(f"SELECT id FROM {one}").to_arrow()["id"].to_pylist() == [number], name


@pytest.mark.parametrize("name", ["moto", "faults"])
def test_a_listing_of_several_pages_is_whole(request, name):
    store = request.getfixturevalue(name)
    store = store.store if name == "faults" else store
    prefix = fresh("pages")
    count = 1100
    store.put_all((f"{prefix}/k={n % 3}/{n:05}.csv", f"id\n{n}\n".encode()) for n in range(count))
    session = tq.Session(storage_options=store.options)
    session.register_csv("t", f"{store.root}/{prefix}/")
    found = session.sql("SELECT id, k FROM t").to_arrow().to_pylist()
    assert sorted((row["id"], int(row["k"])) for row in found) == [(n, n % 3) for n in range(count)]
    if name == "faults":
        pages = [one["target"] for one in request.getfixturevalue("faults").log()]
        assert any("continuation-token" in target for target in pages)


# ------------------------------------------------------------------------------------------------
# Pins.


def _parquet(start, rows):
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"id": np.arange(start, start + rows)}),
        sink,
        row_group_size=10,
        compression="none",
    )
    return sink.getvalue().to_pybytes()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_object_that_is_overwritten_during_the_job_is_an_error_that_names_it(store, workers):
    prefix = fresh("pins")
    store.put_all((f"{prefix}/{n}.parquet", _parquet(1000 * n, 200)) for n in range(4))
    loader, _ = tq.create_dataloader(
        path=f"{store.root}/{prefix}/",
        format="parquet",
        batch_size=20,
        num_workers=workers,
        output_format="arrow",
        storage_options=store.options,
        split_rows=40,
    )
    # Other rows in as many bytes.
    other = _parquet(9000, 200)
    assert len(other) == len(_parquet(3000, 200))
    store.put(f"{prefix}/3.parquet", other)
    with pytest.raises(tq.DataError, match=rf"{prefix}/3\.parquet") as error:
        for batch in loader:
            assert max(batch["id"].to_pylist()) < 9000
    assert "changed" in str(error.value)


def test_an_object_that_vanishes_during_the_job_is_an_error_that_names_it(minio):
    prefix = fresh("pins")
    minio.put_all((f"{prefix}/{n}.parquet", _parquet(1000 * n, 200)) for n in range(4))
    session = tq.Session(storage_options=minio.options)
    session.register_parquet("t", f"{minio.root}/{prefix}/")
    query = session.sql("SELECT id FROM t")
    minio.client().delete_object(Bucket=minio.bucket, Key=f"{prefix}/2.parquet")
    with pytest.raises(tq.DataError, match=rf"{prefix}/2\.parquet"):
        query.to_arrow()


# ------------------------------------------------------------------------------------------------
# Refusals.

NO_BUCKET = {"moto": "NoSuchBucket", "minio": "NoSuchBucket", "azure": "ContainerNotFound"}


@pytest.mark.parametrize("name", NO_BUCKET)
def test_a_bucket_that_is_missing(request, name):
    store = request.getfixturevalue(name)
    scheme = store.root.split("://")[0]
    with pytest.raises(tq.StorageError, match=NO_BUCKET[name]) as error:
        rows(f"{scheme}://nobucket/t/", "csv", storage_options=store.options)
    assert f"{scheme}://nobucket/t" in str(error.value)


@pytest.mark.parametrize("path", ["none.csv", "none/", "*.parquet", "none/*.csv"])
def test_an_object_that_is_missing(store, path):
    prefix = fresh("missing")
    store.put(f"{prefix}/000.csv", b"id\n1\n")
    url = f"{store.root}/{prefix}/{path}"
    with pytest.raises(tq.TableNotFoundError) as error:
        rows(url, "csv", storage_options=store.options)
    assert url.rstrip("/") in str(error.value)


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("moto", {"aws_secret_access_key": "wr0ng+secret"}, "SignatureDoesNotMatch"),
        ("minio", {"aws_secret_access_key": "wr0ng+secret"}, "SignatureDoesNotMatch"),
        ("moto", {"aws_access_key_id": "AKIAWRONG"}, "InvalidAccessKeyId"),
        ("minio", {"aws_access_key_id": "AKIAWRONG"}, "InvalidAccessKeyId"),
        ("moto", {"aws_session_token": "wr0ng+token"}, "InvalidToken"),
        ("minio", {"aws_skip_signature": "true"}, "AccessDenied"),
        ("azure", {"azure_storage_account_key": "d3Iwbmc="}, "AuthorizationFailure"),
        ("azure", {"azure_skip_signature": "true"}, "AuthorizationFailure"),
    ],
)
def test_credentials_that_are_wrong(request, name, wrong, told):
    store = request.getfixturevalue(name)
    with pytest.raises(tq.StorageError, match=told) as error:
        rows(f"{store.root}/t/", "csv", storage_options={**store.options, **wrong})
    message = str(error.value)
    assert f"{store.root}/t" in message
    for value in wrong.values():
        assert value == "true" or value == "AKIAWRONG" or value not in message


def test_a_server_that_is_not_there(minio):
    options = {**minio.options, "aws_endpoint": "http://127.0.0.1:9", "max_retries": "1"}
    with pytest.raises(tq.StorageError, match=r"127\.0\.0\.1:9"):
        rows(f"{minio.root}/t/", "csv", storage_options=options)


# ------------------------------------------------------------------------------------------------
# Other ways in.


def test_a_public_bucket_needs_no_key(minio, monkeypatch):
    public = minio.open_to_all(fresh("public"))
    public.put("t/000.csv", b"id\n1\n2\n")
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    options = {
        "aws_endpoint": minio.endpoint,
        "aws_skip_signature": "true",
        "aws_allow_http": "true",
    }
    found = rows(f"{public.root}/t/", "csv", storage_options=options)
    assert [row["id"] for row in found] == [1, 2]


@pytest.mark.slow
def test_the_environment_names_the_store_and_the_keys(minio, uploaded, local, monkeypatch):
    for name, value in minio.options.items():
        monkeypatch.setenv(name.upper(), value)
    for workers in (0, 2):
        found = rows(uploaded(minio, "parquet"), "parquet", num_workers=workers)
        same(found, rows(f"{local}/parquet", "parquet", num_workers=workers))


def test_google_without_signature(gcs, uploaded, local):
    options = {"google_base_url": gcs.endpoint, "google_skip_signature": "true"}
    found = rows(uploaded(gcs, "orc"), "orc", storage_options=options)
    same(found, rows(f"{local}/orc", "orc"))


def test_google_with_a_file_of_a_service_account(gcs, uploaded, local, tmp_path):
    path = tmp_path / "account.json"
    path.write_text(gcs.options["google_service_account_key"])
    options = {"google_service_account": str(path), "allow_http": "true"}
    found = rows(uploaded(gcs, "orc"), "orc", storage_options=options)
    same(found, rows(f"{local}/orc", "orc"))


@pytest.mark.slow
def test_azure_with_a_shared_access_signature(azure, uploaded, local):
    options = {name: value for name, value in azure.options.items() if not name.endswith("_key")}
    options["azure_storage_sas_token"] = azure.sas()
    for workers in (0, 2):
        found = rows(uploaded(azure, "orc"), "orc", storage_options=options, num_workers=workers)
        same(found, rows(f"{local}/orc", "orc", num_workers=workers))


def test_a_public_container_needs_no_key(azure):
    name = fresh("public")
    azure.ask("PUT", name, b"", {"x-ms-blob-public-access": "container"}, {"restype": "container"})
    public = type(azure)(azure.endpoint, name)
    public.put("t/000.csv", b"id\n1\n2\n")
    options = {name: value for name, value in azure.options.items() if not name.endswith("_key")}
    options["azure_skip_signature"] = "true"
    found = rows(f"{public.root}/t/", "csv", storage_options=options)
    assert [row["id"] for row in found] == [1, 2]
