"""What data of unknown origin may take is bounded, in every format: just above a bound comes an error that names it."""

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import avro_files
import delta_fixtures
import iceberg_fixtures
import orc_by_hand as by_hand
import tensorquery as tq
from iceberg_by_hand import EQUALITY, TableByHand, column, rows_of
from pages import text_of
from storage_servers import web_server
from tensorquery import _core


@contextlib.contextmanager
def lowered(**bounds):
    """Within, bounds are lower; underscores stand for spaces."""
    names = {name.replace("_", " "): most for name, most in bounds.items()}
    try:
        for name, most in names.items():
            _core.lower_bound(name, most)
        yield
    finally:
        for name in names:
            _core.lower_bound(name, None)


def test_security_md_tells_the_bounds():
    def told(most, unit):
        if unit == "bytes":
            return f"{most >> 30} GiB" if most % (1 << 30) == 0 else f"{most >> 20} MiB"
        return f"{most:,} {unit}"

    rows = re.findall(r"(?m)^\| `([a-z ]+)` \| ([^|]+) \|", text_of("SECURITY.md"))
    assert rows == [(name, told(most, unit)) for name, most, unit in _core.bounds()]
    with pytest.raises(tq.ConfigError, match='no bound is named "nothing"'):
        _core.lower_bound("nothing", 1)


# ------------------------------------------------------------------------------------------------
# Files.

COUNT = 1000
ROWS = pa.table({"id": range(COUNT), "s": ["x" * 1000] * COUNT, "l": [[[1]]] * COUNT})


def write(folder, kind):
    """A file of `ROWS`, which repeat themselves, compressed."""
    path = folder / f"t.{kind}"
    match kind:
        case "parquet":
            pq.write_table(ROWS, path)
        case "orc":
            long_name = ROWS.append_column("n" * 5000, ROWS["id"])
            pa.orc.write_table(long_name, path, compression="zlib")
        case "arrow":
            pa.feather.write_feather(ROWS, str(path), compression="zstd")
        case "csv":
            pa.csv.write_csv(ROWS.select(["id", "s"]), path)
        case "avro":
            array = {"type": "array", "items": {"type": "array", "items": "long"}}
            kinds = {"id": "long", "s": "string", "l": array}
            fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
            schema = {"type": "record", "name": "r", "fields": fields}
            with open(path, "wb") as file:
                fastavro.writer(file, schema, ROWS.to_pylist(), codec="deflate")
    return path


def rows_in(path):
    return tq.Session().sql(f"SELECT * FROM '{path}'").to_arrow().num_rows


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {kind: write(folder, kind) for kind in ("parquet", "orc", "arrow", "csv", "avro")}


LOWERED = {
    "types": (3, "parquet orc avro"),
    "levels": (2, "parquet orc avro"),
    "rows": (5, "orc arrow avro"),
    "orc parts": (5, "orc"),
    "orc section": (10, "orc"),
    "orc chunk": (1000, "orc"),
    "orc stripe": (10, "orc"),
    "orc values": (10, "orc"),
    "ipc batch": (100, "arrow"),
    "avro header": (100, "avro"),
    "avro block": (100, "avro"),
    "parquet page": (100, "parquet"),
    "line": (10, "csv"),
    "json values": (2, "avro"),
}


@pytest.mark.parametrize("name", LOWERED)
def test_just_above_a_bound_comes_an_error_that_names_it(files, name):
    most, kinds = LOWERED[name]
    for kind in kinds.split():
        assert rows_in(files[kind]) == COUNT
        with lowered(**{name: most}), pytest.raises(tq.DataError) as caught:
            rows_in(files[kind])
        told = str(caught.value)
        assert f'bound "{name}" of SECURITY.md' in told
        assert files[kind].name in told
        assert rows_in(files[kind]) == COUNT


def test_skipped_files_are_recorded_with_the_bound(tmp_path):
    """One has more types than are read, the other a stripe that declares more."""
    for number, length in enumerate([1, 1, 100]):
        text = pa.array([f"{number}".ljust(length, "x")] * 100)
        table = pa.table({"id": range(100 * number, 100 * number + 100), "s": text})
        pa.orc.write_table(table, tmp_path / f"{number}.orc", compression="zlib")
    wide = pa.table({"id": [7], "s": ["7"], **{f"c{n}": [n] for n in range(20)}})
    pa.orc.write_table(wide, tmp_path / "wide.orc")
    with lowered(types=10, orc_values=200), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader, dataset = tq.create_dataloader(
            path=str(tmp_path), on_error="skip", rank=0, world_size=1, columns=["id", "s"]
        )
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(200))
        skipped = {part.path.rsplit("/", 1)[1]: part.error for part in dataset.quarantined}
    assert skipped.keys() == {"2.orc", "wide.orc"}
    assert 'bound "orc values"' in skipped["2.orc"]
    assert 'bound "types"' in skipped["wide.orc"]


# ------------------------------------------------------------------------------------------------
# Iceberg.


@pytest.fixture
def table(tmp_path):
    table = TableByHand(tmp_path, Schema(NestedField(1, "id", LongType(), required=False)))
    table.commit(table.file(rows_of((column("id", pa.int64(), 1), [1, 2, 3]))))
    return table


@pytest.mark.parametrize(
    ("name", "most", "file"),
    [
        ("table metadata", 100, "metadata.json"),
        ("json values", 10, "metadata.json"),
        ("manifest", 10, ".avro"),
        ("manifest items", 10, ".avro"),
    ],
)
def test_what_a_table_of_iceberg_takes_is_bounded(table, name, most, file):
    assert len(table.read()) == 3
    with lowered(**{name: most}), pytest.raises(tq.DataError) as caught:
        table.read()
    assert f'bound "{name}"' in str(caught.value)
    assert file in str(caught.value)


def test_packed_metadata_are_unpacked_up_to_the_bound(table):
    path = table.write({**table.metadata(), "properties": {"note": "x" * 20_000}})
    packed = path.replace(".metadata.json", ".gz.metadata.json")
    Path(packed).write_bytes(gzip.compress(Path(path).read_bytes()))
    assert os.path.getsize(packed) < 10_000
    tq.Session().register_iceberg_table("t", packed)
    told = r'gz\.metadata\.json.*bound "table metadata"'
    with lowered(table_metadata=10_000), pytest.raises(tq.DataError, match=told):
        tq.Session().register_iceberg_table("t", packed)


ENTRY = 5
"""Numbers of an entry before the path of its file."""


def lying(manifest, before):
    """A manifest, or a list of them, whose one row has a text of 400 MiB behind so many zeros."""
    _, sync, [(_, block)] = avro_files.blocks(manifest)
    head = manifest.removesuffix(avro_files.number(len(block)) + block + sync)
    assert head != manifest
    row = bytes(before) + avro_files.number(400 << 20)
    return head + avro_files.number(len(row)) + row + sync


def test_a_manifest_that_declares_more_than_it_holds(table):
    """Its decoder would take memory for a text of 400 MiB before it looks for it."""
    for path, before in (
        (table.snapshots[-1]["manifest-list"], 0),
        (table.manifests[0].manifest_path, ENTRY),
    ):
        whole = Path(path).read_bytes()
        Path(path).write_bytes(lying(whole, before))
        with pytest.raises(tq.DataError, match=rf"a block ends within a row.*{path}"):
            table.read()
        Path(path).write_bytes(whole)
    assert len(table.read()) == 3


@pytest.mark.parametrize(("kind", "name"), [("iceberg", "dv_v3"), ("delta", "v2_json")])
def test_a_deletion_vector_is_bounded(kind, name):
    session = tq.Session()
    if kind == "iceberg":
        session.register_iceberg_table("t", iceberg_fixtures.open_fixture(name))
    else:
        session.register_delta("t", delta_fixtures.open_fixture(name))
    query = session.sql("SELECT id FROM t")
    with lowered(deletion_vector=10), pytest.raises(tq.DataError) as caught:
        query.to_arrow()
    assert re.search(r'bound "deletion vector".*\.(puffin|bin)', str(caught.value))
    assert query.to_arrow().num_rows > 0


@pytest.mark.parametrize(
    ("name", "version", "bound", "file"),
    [
        ("dml", 3, "delta commit", "commit"),
        ("dml", 3, "json values", "commit"),
        ("v2_json", 3, "delta commit", "checkpoint"),
        ("v2_json", 3, "levels", "checkpoint"),
        ("parts", 3, "types", "checkpoint"),
    ],
)
def test_the_log_of_a_delta_table_is_bounded(name, version, bound, file):
    def register():
        place = delta_fixtures.open_fixture(name)
        tq.Session().register_delta("t", place, version=version)

    register()
    with lowered(**{bound: 2}), pytest.raises(tq.DataError) as caught:
        register()
    assert re.search(rf'bound "{bound}" of SECURITY.md.*{file}: .*_delta_log/', str(caught.value))


@pytest.mark.parametrize("name", ["list_of_billions", "page_of_a_gigabyte"])
def test_delete_files_are_looked_at_as_data_files_are(table, name):
    found = Path(__file__).parents[3] / "fuzz" / "regressions" / "parquet" / name
    path = table.path("parquet")
    Path(path).write_bytes(found.read_bytes())
    table.commit(table.file(path, content=EQUALITY, equality_ids=[1]))
    with pytest.raises(tq.DataError, match=rf"(declares more|a page of).*{path}"):
        table.read()


# ------------------------------------------------------------------------------------------------
# Servers.


@pytest.mark.slow
def test_what_a_catalog_answers_is_bounded(table):
    """One byte more than the bound, of each answer, is an error that names the address and the bound."""
    config, tokens, loads = "/v1/config", "/v1/oauth/tokens", "/v1/namespaces/ns/tables/t"
    loaded = {"metadata": table.metadata(), "config": {}}
    answers = {config: {"defaults": {}}, tokens: {"access_token": "t0ken"}, loads: loaded}
    with web_server() as web:
        web.files = {path: json.dumps(answer).encode() for path, answer in answers.items()}

        def read():
            session = tq.Session()
            given = {"type": "rest", "uri": web.uri, "credential": "me:s3cret"}
            session.register_iceberg("lake", given)
            return session.sql("SELECT id FROM lake.ns.t").to_arrow().num_rows

        for name, path, error in (
            ("token", tokens, r"url: {uri}/v1/oauth/tokens"),
            ("catalog answer", loads, r"url: {uri}/v1/namespaces/ns/tables/t"),
        ):
            size = len(web.files[path])
            with lowered(**{name: size}):
                assert read() == 3
            with lowered(**{name: size - 1}), pytest.raises(tq.StorageError) as caught:
                read()
            told = f'{web.uri} answers with more than {size - 1} bytes.*bound "{name}" of SECURITY'
            assert re.search(told, str(caught.value))
            assert re.search(error.format(uri=web.uri), str(caught.value))


@pytest.mark.slow
def test_what_a_store_lists_is_bounded(files):
    page = (
        "<ListBucketResult><Contents><Key>t/0.parquet</Key><Size>{}</Size>"
        "<LastModified>1970-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>"
    )
    data = files["parquet"].read_bytes()
    with web_server() as web:
        page, none = page.format(len(data)).encode(), b"<ListBucketResult></ListBucketResult>"
        web.files = {"/box/t/0.parquet": data}
        web.special["/box"] = lambda asked: page if "prefix=t%2F" in asked.path else none
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "x"}
        options = {**keys, "aws_endpoint": web.uri, "max_retries": "0", "allow_http": "true"}

        def read():
            session = tq.Session(storage_options=options)
            session.register_parquet("t", "s3://box/t/")
            return session.sql("SELECT id FROM t").count()

        with lowered(store_document=len(page)):
            assert read() == COUNT
        with lowered(store_document=len(page) - 1), pytest.raises(tq.StorageError) as caught:
            read()
    told = rf'{web.uri} answers with more than {len(page) - 1} bytes.*bound "store document" of SECURITY'
    assert re.search(told, str(caught.value))
    assert "s3://box/t" in str(caught.value)


# ------------------------------------------------------------------------------------------------
# A process with 3 GiB of addresses lives on.

READ = """
    import resource, sys
    import tensorquery as tq
    tq.Session()
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    for path in sys.argv[1:]:
        try:
            session = tq.Session()
            if path.endswith("metadata.json"):
                session.register_iceberg_table("t", path)
                path = "t"
            print(session.sql(f"SELECT * FROM '{path}'").to_arrow().num_rows)
        except tq.DataError as error:
            print(error)
"""


def hostile_orc():
    """Small files of ORC that declare much, with the error of each."""
    column, thrice = by_hand.column, by_hand.thrice
    one = [column(by_hand.STRUCT, [1], [b"s"])]
    texts = [*one, column(by_hand.STRING)]
    lists = [*one, column(by_hand.LIST, [2]), column(by_hand.LONG)]
    dictionary = [(by_hand.DIRECT_V2, 0), (by_hand.DICTIONARY_V2, (1 << 32) - 1)]
    deep = [*one, *(column(by_hand.LIST, [level + 2]) for level in range(300))]
    shared = [
        *(column(by_hand.STRUCT, [at + 1, at + 1], [b"a", b"b"]) for at in range(60)),
        column(by_hand.LONG),
    ]
    return {
        "texts": (
            by_hand.orc(texts, streams=[(1, by_hand.LENGTH, thrice(600 << 20))]),
            "orc values",
        ),
        "lists": (by_hand.orc(lists, streams=[(1, by_hand.LENGTH, thrice(1 << 40))]), "orc values"),
        "dictionary": (by_hand.orc(texts, encodings=dictionary), "orc values"),
        "rows": (by_hand.orc([column(by_hand.STRUCT)], rows=1 << 60), "rows"),
        "deep": (by_hand.orc([*deep, column(by_hand.LONG)]), "levels"),
        "shared": (by_hand.orc(shared), "belongs to two others"),
        "lz4": (by_hand.orc(texts, compression=4, block=1 << 60), "orc chunk"),
        "snappy": (
            by_hand.orc(texts, compression=2, packed=by_hand.chunk(b"\xff\xff\xff\xff\x0f", False)),
            "orc section",
        ),
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the addresses of a process")
def test_a_process_with_little_memory_lives_on(table, tmp_path):
    manifest = Path(table.manifests[0].manifest_path)
    manifest.write_bytes(lying(manifest.read_bytes(), ENTRY))
    files = {table.write(): "a block ends within a row"}
    for name, (data, told) in hostile_orc().items():
        path = tmp_path / f"{name}.orc"
        path.write_bytes(data)
        assert len(data) < 5000
        files[str(path)] = told
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ), *files],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for line, (path, told) in zip(done.stdout.splitlines(), files.items(), strict=True):
        assert told in line, line
        assert str(manifest if path.endswith("json") else path) in line, line
