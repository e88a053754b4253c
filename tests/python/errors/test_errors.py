"""Promises 8 and 9 (docs/promises.md): each error names the value, what was allowed and the fix."""

import functools
import gzip
import json
import pathlib
import pickle
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

NOISE = re.compile(
    r"External\(|ParserError|DataFusionError|ArrowError|ParquetError|Some\(|Err\(|Error during planning"
    r"|Execution error|This issue was likely caused by a bug|backtrace|\bpanicked\b"
)


@pytest.fixture
def session(tmp_path):
    session = tq.Session()
    table = pa.table(
        {
            "n": range(100),
            "s": [f"s{n}" for n in range(100)],
            "gap": [None, 1.5] * 50,
            "id": range(100),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    session.register_parquet("t", tmp_path / "t.parquet")
    return session


def raised(kind, call):
    """The message of the error that `call` raises, free of the layers' noise."""
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind, f"{type(error.value).__name__}: {error.value}"
    message = str(error.value)
    assert not NOISE.search(message), message
    assert len(message) < 1500, message
    return message


# --- the hierarchy ---


def test_each_error_is_also_the_built_in_that_python_code_expects():
    for kind, builtin in {
        tq.ConfigError: ValueError,
        tq.TableNotFoundError: LookupError,
        tq.NotShardableError: tq.QueryError,
        tq.UnsupportedTypeError: TypeError,
        tq.StorageError: OSError,
        tq.CheckpointMismatchError: ValueError,
    }.items():
        assert issubclass(kind, builtin)
        assert issubclass(kind, tq.TensorQueryError)
        error = pickle.loads(pickle.dumps(kind("what, bound, fix")))
        assert type(error) is kind
        assert str(error) == "what, bound, fix"


# --- options, at construction ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, ["batch_size=0", "at least 1"]),
        ({"batch_size": -5}, ["batch_size=-5", "at least 1"]),
        ({"batch_size": 1.5}, ["batch_size=1.5", "integer"]),
        ({"batch_size": "12"}, ["batch_size='12'", "integer"]),
        ({"batch_size": True}, ["batch_size=True", "integer"]),
        ({"batch_size": None}, ["batch_size=None", "integer"]),
        ({"rank": 2, "world_size": 2}, ["rank 2", "0..2"]),
        ({"rank": -1, "world_size": 2}, ["rank=-1", "at least 0"]),
        ({"rank": 0, "world_size": 0}, ["world_size=0", "at least 1"]),
        ({"rank": 1}, ["rank=1", "world_size=None", "together"]),
        ({"world_size": 2}, ["rank=None", "world_size=2", "together"]),
        ({"batchsize": 1}, ["'batchsize'", "did you mean 'batch_size'"]),
        ({"drop_last": True}, ["'drop_last'", 'remainder="drop"']),
        ({"zzz": 1}, ["'zzz'", "allowed", "batch_size"]),
        ({"split_bytes": "12XB"}, ["'12XB'", "128MiB"]),
        ({"split_bytes": 0}, ["split_bytes=0", "1..="]),
        ({"split_bytes": -1}, ["split_bytes=-1"]),
        ({"split_rows": 0}, ["split_rows=0", "at least 1"]),
        ({"split_strategy": "ltp"}, ["'ltp'", '"lpt"', '"round_robin"', "generate"]),
        ({"split_strategy": [1]}, ["generate(splits, num_shards, epoch)"]),
        ({"collate_fn": 3}, ["collate_fn=3", "cannot be called"]),
        ({"transform": "x"}, ["transform='x'", "cannot be called"]),
        ({"format": "parquet"}, ["format='parquet'", "path="]),
        ({"partitioning": "hive"}, ["partitioning='hive'", "path="]),
        ({"output_format": "numpyy"}, ["'numpyy'", "did you mean 'numpy'"]),
        ({"nulls": "eror"}, ["'eror'", "did you mean 'error'"]),
        ({"nulls": {"m": 0}}, ['"m"', "the columns are"]),
        ({"nulls": {"s": "nan"}}, ['"s"']),
        ({"stack": {"x": ["m"]}}, ['"x"', '"m"', "the columns are"]),
        ({"stack": {"x": ["s"]}}, ['"x"', '"s"']),
        ({"stack": ["n"]}, ["stack", "dict"]),
        ({"pad": {"n": 0}}, ["pad", '"n"', "not a list"]),
        ({"categories": {"n": [1]}}, ["categories", '"n"', "not a string"]),
        ({"decimal": "float"}, ["'float'", "did you mean 'float64'"]),
        ({"columns": "n"}, ["columns='n'", "list of names"]),
        ({"columns": []}, ["columns=[]"]),
        ({"columns": 3}, ["columns=3", "list of names"]),
        ({"filters": ""}, ["filters=''"]),
        ({"filters": 3}, ["filters=3", "SQL predicate", "pyarrow"]),
        ({"filters": [("n", ">>", 1)]}, ["'>>'", "allowed"]),
        ({"num_workers": -1}, ["num_workers=-1", "at least 0"]),
        ({"num_workers": "2"}, ["num_workers='2'"]),
        ({"shuffle": "yes"}, ["shuffle='yes'", "True, False or"]),
        ({"shuffle_seed": -1}, ["shuffle_seed=-1"]),
        ({"shuffle_buffer_size": 0}, ["shuffle_buffer_size=0"]),
        ({"persistent_workers": True}, ["persistent_workers", "num_workers > 0"]),
        ({"prefetch_factor": 2}, ["prefetch_factor", "num_workers > 0"]),
        ({"multiprocessing_context": "frok", "num_workers": 1}, ["'frok'", "spawn"]),
        ({"path": "x"}, ["exactly one", "query and path"]),
        ({"storage_options": {"a": "b"}}, ["storage_options"]),
    ],
    ids=str,
)
def test_a_bad_option_fails_at_construction(session, options, words):
    message = raised(
        tq.ConfigError, lambda: tq.create_dataloader("SELECT * FROM t", session=session, **options)
    )
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["exactly one of query, path and table", "none was given"]),
        ({"path": ""}, ["path=''"]),
        ({"path": []}, ["path=[]"]),
        ({"path": 3}, ["path=3"]),
        ({"path": [None]}, ["path=[None]"]),
        ({"path": "x.parquet", "format": "prquet"}, ["'prquet'", "did you mean 'parquet'"]),
        ({"path": "x.parquet", "partitioning": True}, ["partitioning=True", '"hive"']),
        ({"query": 3}, ["a query is a SQL string, got int"]),
        ({"query": pa.table({"x": [1]})}, ["got Table", "register_table"]),
        ({"query": "SELECT 1 AS x", "session": "s"}, ["session='s'"]),
        ({"table": pa.table({"x": [1]})}, ["got Table", "session.register_table"]),
        ({"table": pd.DataFrame({"x": [1]})}, ["got DataFrame", '"catalog.namespace.table"']),
        ({"table": {"x": [1]}, "catalog_config": {"type": "in-memory"}}, ["got dict"]),
        ({"table": [1]}, ["got list"]),
        ({"table": pathlib.Path("t.parquet")}, ["got PosixPath", "path="]),
        ({"table": tq.Session().sql("SELECT 1 AS x")}, ["got Query", "query="]),
    ],
    ids=str,
)
def test_what_to_read_is_said_once_and_well(options, words):
    message = raised(tq.ConfigError, lambda: tq.create_dataloader(**options))
    for word in words:
        assert word in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batchsize": 3}, ["QueryDataset has no option 'batchsize'", "mean 'batch_size'"]),
        ({"null": "mask"}, ["'null'", "mean 'nulls'"]),
        ({"num_workers": 2}, ["'num_workers'", "the DataLoader around it"]),
        ({"zzz": 1}, ["'zzz'", "allowed: assignment, batch_size, categories"]),
    ],
    ids=str,
)
def test_a_dataset_refuses_what_it_has_no_option_for(session, options, words):
    message = raised(tq.ConfigError, lambda: tq.QueryDataset(session.table("t"), **options))
    for word in words:
        assert word in message
    assert "tensor_kwargs" not in message


def test_other_constructors_check_as_well(session, tmp_path):
    path = tmp_path / "t.parquet"
    cases = [
        (lambda: tq.Session(memory_limit="lots"), "memory_limit='lots'"),
        (lambda: tq.Session(storage_options={"a": None}), "storage_options['a']"),
        (lambda: session.register_table("x", [1]), "got list"),
        (lambda: session.register_table("x", pa.array([1])), "wrap it in a table"),
        (lambda: session.register_table(" ", pa.table({"x": [1]})), "non-empty string"),
        (lambda: session.register_csv("x", path, delimiter="::"), "delimiter='::'"),
        (lambda: session.register_csv("x", path, compression="gz"), "did you mean 'gzip'"),
        (lambda: session.register_csv("x", path, header=1), "header=1"),
        (lambda: session.register_csv("x", path, infer_rows=0), "infer_rows=0"),
        (lambda: session.register_json("x", path, array="yes"), "array='yes'"),
        (lambda: session.register_parquet("x", path, schema={"n": "int"}), "an Arrow schema"),
        (lambda: session.table("t").head(-1), "rows=-1"),
        (lambda: session.table("t").plan_shards(world_size=0), "world_size=0"),
        (lambda: session.table("t").plan_shards(num_workers=-1), "num_workers=-1"),
        (lambda: session.table("t").plan_shards().splits(rank=1), "rank=1"),
        (lambda: session.register_parquet("x", "s4://host/x.parquet"), '"s4"'),
        (lambda: session.register_parquet("x", tmp_path / "x**.parquet"), '"**"'),
        (lambda: session.register_parquet("x", [path, path]), "named twice"),
    ]
    for call, word in cases:
        assert word in raised(tq.ConfigError, call)


def test_a_batch_size_cannot_be_changed(session):
    loader, dataset = tq.create_dataloader("SELECT n FROM t", session=session, batch_size=40)
    with pytest.raises(
        tq.ConfigError, match=r"batch_size=40 .*; make another one with batch_size=10"
    ):
        dataset.batch_size = 10
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 10
    assert [len(batch["n"]) for batch in loader] == [40, 40, 20]
    assert pickle.loads(pickle.dumps(dataset)).batch_size == dataset.batch_size == 40


def test_a_session_and_a_query_say_why_they_cannot_be_pickled(session):
    for thing in (session, session.table("t")):
        with pytest.raises(TypeError, match="dataset or loader"):
            pickle.dumps(thing)


# --- paths ---


def test_paths_without_files(session, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/_SUCCESS").touch()
    cases = {
        "empty": "holds no files",
        "hidden": "skipped",
        "none.parquet": "no file or directory",
        "t.parqet": 'did you mean "t.parquet"',
        "*.csv": "*.csv",
    }
    for path, words in cases.items():
        message = raised(
            tq.TableNotFoundError, functools.partial(session.register_parquet, "x", tmp_path / path)
        )
        assert words in message
        assert str(tmp_path) in message


def test_a_name_that_says_no_format(tmp_path):
    (tmp_path / "data.xyz").write_text("x")
    message = raised(tq.ConfigError, lambda: tq.create_dataloader(path=tmp_path / "data.xyz"))
    assert "data.xyz" in message
    assert "format=" in message


# --- damaged files ---


@pytest.fixture
def damaged(tmp_path):
    """A function that writes a good file of four row groups with some of its bytes changed."""
    table = pa.table({"n": range(4000), "s": [f"row {n} {n * n}" for n in range(4000)]})
    good = tmp_path / "good.parquet"
    pq.write_table(table, good, row_group_size=1000, compression="zstd")
    column = pq.ParquetFile(good).metadata.row_group(2).column(1)

    def write(at=0, length=100):
        content = bytearray(good.read_bytes())
        start = (column.dictionary_page_offset or column.data_page_offset) + at
        content[start : start + length] = b"\xff" * length
        path = tmp_path / "damaged.parquet"
        path.write_bytes(content)
        session = tq.Session()
        session.register_parquet("t", path)
        return session

    return write


@pytest.mark.parametrize("at", [0, 30])
def test_damage_inside_a_file_names_the_file_and_the_row_group(damaged, at):
    session = damaged(at)
    for read in (
        lambda: session.table("t").to_arrow(),
        lambda: session.sql("SELECT s FROM t WHERE s <> ''").count(),
        lambda: list(tq.create_dataloader(table="t", session=session, split_rows=1000)[0]),
        lambda: list(tq.create_dataloader(table="t", session=session, split_rows=9999)[0]),
    ):
        message = raised(tq.DataError, read)
        assert "damaged.parquet" in message
        assert "row group" in message


def test_rows_before_the_damage_are_delivered(damaged):
    loader, _ = tq.create_dataloader(table="t", session=damaged(), split_rows=1000, batch_size=500)
    batches = iter(loader)
    good = [next(batches)["n"] for _ in range(4)]
    assert sum(map(len, good)) == 2000
    with pytest.raises(tq.DataError, match="row group 2"):
        list(batches)


@pytest.mark.slow
def test_damage_met_in_a_worker_keeps_its_kind(damaged):
    loader, _ = tq.create_dataloader(table="t", session=damaged(), num_workers=1)
    with pytest.raises(tq.DataError, match=r"damaged\.parquet"):
        list(loader)


def test_columns_that_are_not_read_do_not_matter(damaged):
    assert damaged().sql("SELECT n FROM t").to_arrow().num_rows == 4000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PAR1",
        b"hello, this is no Parquet file at all",
        b"PAR1" + b"\0" * 100 + b"\xff\xff\xff\x7fPAR1",
    ],
    ids=["empty", "magic only", "text", "wild footer length"],
)
def test_what_is_no_parquet_file(tmp_path, content):
    (tmp_path / "x.parquet").write_bytes(content)
    message = raised(
        tq.DataError, lambda: tq.Session().register_parquet("t", tmp_path / "x.parquet")
    )
    assert "not a readable Parquet file" in message
    assert str(tmp_path / "x.parquet") in message


def test_files_cut_short(tmp_path):
    table = pa.table({"n": range(4000), "s": [str(n) for n in range(4000)]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(tmp_path / "x.arrows", table.schema) as writer:
        writer.write_table(table)
    with gzip.open(tmp_path / "x.csv.gz", "wb") as file:
        file.write(b"n\n" + b"".join(b"%d\n" % (n * n) for n in range(4000)))
    for name in ("x.parquet", "x.arrow", "x.arrows", "x.csv.gz"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-200])
        session = tq.Session()
        query = f"SELECT * FROM '{path}'"
        for read in (
            lambda session=session, query=query: session.sql(query).to_arrow(),
            lambda session=session, query=query: list(
                tq.create_dataloader(query, session=session)[0]
            ),
        ):
            assert name in raised(tq.DataError, read)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", "n\n" + "1\n" * 2000 + "word\n", ["'word'", "Int64", "schema=", "infer_rows="]),
        ("x.csv", "a,b\n1,2\n" + "1,2\n" * 2000 + "1\n", ["line", "field"]),
        ("x.csv", b"a\ncaf\xe9\n", ["UTF-8"]),
        ("x.json", '{"n":1}\n' * 2000 + '{"n":"word"}\n', ['"n"', "word", "schema="]),
        ("x.csv", "a\n1\n".encode("utf-16"), ["convert the file to UTF-8"]),
        ("x.json", '{"n":"caf\xe9"}\n'.encode("latin-1"), ["convert the file to UTF-8"]),
        ("x.json", '[{"n":"caf\xe9"}]'.encode("latin-1"), ["convert the file to UTF-8"]),
        ("x.json", '{"n":1}\n'.encode("utf-16"), ["convert the file to UTF-8"]),
        ("x.json", '{\n  "n": 1\n}\n', ["one object per line", "array of objects"]),
        ("x.json", '{"n":1}\n{"n":}\n', ["JSON"]),
        ("x.json", '{"n":1}\n' * 2000 + '{"n":}\n', ["JSON"]),
        ("x.json", "1\n2\n", ["one JSON object per line"]),
        ("x.json", "[1, 2]", ["not objects"]),
        ("x.csv.gz", "n\n1\n", ["gzip", "compression="]),
        ("x.arrow", "no arrow file in the least", ["Arrow IPC"]),
        ("x.arrow", "", ["empty"]),
    ],
)  # fmt: skip
def test_malformed_text_names_the_file_and_the_fix(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = raised(tq.DataError, lambda: tq.Session().sql(f"SELECT * FROM '{path}'").to_arrow())
    for word in [*words, str(path)]:
        assert word in message


def test_json_forms_that_were_declared_wrongly(tmp_path):
    (tmp_path / "lines.json").write_text('{"a":1}\n{"a":2}\n')
    (tmp_path / "array.json").write_text(json.dumps([{"a": 1, "secret": "x" * 5000}]))
    session = tq.Session()
    for name, array, fix in (("lines", True, "array=False"), ("array", False, "array=True")):
        register = functools.partial(
            session.register_json, "t", tmp_path / f"{name}.json", array=array
        )
        assert fix in raised(tq.DataError, register)


# --- files that change ---


def test_a_changed_or_vanished_file_is_named(session, tmp_path):
    path = tmp_path / "t.parquet"
    query = session.table("t")
    loader, _ = tq.create_dataloader("SELECT n FROM t", session=session)
    assert len(list(loader)) == 1
    pq.write_table(pa.table({"n": range(7)}), path)
    for read in (lambda: list(loader), query.to_arrow):
        message = raised(tq.DataError, read)
        assert "changed after the query was planned" in message
        assert "register the table again" in message
        assert str(path) in message
    path.unlink()
    assert "vanished" in raised(tq.DataError, lambda: list(loader))


# --- data against the tensors' types ---


def test_a_null_names_the_column_and_the_ways_out(session):
    loader, _ = tq.create_dataloader("SELECT n, gap FROM t", session=session)
    message = raised(tq.DataError, lambda: list(loader))
    for word in ('column "gap"', "50 nulls", "nulls=", "COALESCE"):
        assert word in message


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(1),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([["x"]]),
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_type_without_tensor_form_is_named_at_construction(column):
    session = tq.Session()
    session.register_table("t", pa.table({"fine": [1], "odd": column}))
    message = raised(
        tq.UnsupportedTypeError, lambda: tq.create_dataloader(table="t", session=session)
    )
    assert '"odd"' in message
    assert 'output_format="arrow"' in message
    loader, _ = tq.create_dataloader(table="t", session=session, output_format="arrow")
    assert [batch.num_rows for batch in loader] == [1]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT CAST(s AS INT) AS x FROM t", ["'s0'", "Int32", "TRY_CAST"]),
        ("SELECT CAST(n * 10 AS TINYINT) AS x FROM t", ["Int8"]),
        ("SELECT 1 / (n - n) AS x FROM t", ["zero"]),
    ],
)
def test_values_that_an_expression_cannot_take(session, sql, words):
    query = session.sql(sql)
    for read in (query.to_arrow, lambda: list(tq.create_dataloader(query)[0])):
        message = raised(tq.DataError, read)
        for word in words:
            assert word in message


def test_integers_that_overflow_are_an_error_as_the_types_page_says():
    session = tq.Session()
    session.register_table("t", pa.table({"x": [2**63 - 1, 1]}))

    def value(sql):
        return session.sql(f"SELECT {sql} AS x FROM t").to_arrow()["x"].to_pylist()[0]

    assert "overflows" in raised(tq.QueryError, lambda: value("x + 1"))
    assert "beyond the range" in raised(tq.QueryError, lambda: value("sum(x)"))
    assert value("sum(CAST(x AS DECIMAL(38, 0)))") == 2**63
    assert "Int32" in raised(tq.DataError, lambda: value("CAST(x AS INT)"))


def test_columns_of_nulls_alone_are_text_where_they_come_from_files(tmp_path):
    table = pa.table({"n": pa.nulls(2)})
    pq.write_table(table, tmp_path / "n.parquet")
    session = tq.Session()
    session.register_table("t", table)
    assert session.table("t").schema.field("n").type == pa.null()
    assert (
        session.sql(f"SELECT n FROM '{tmp_path}/n.parquet'").schema.field("n").type == pa.string()
    )


def test_a_transform_that_fails_is_seen_as_it_is(session):
    def transform(batch):
        raise KeyError("mine")

    loader, _ = tq.create_dataloader("SELECT n FROM t", session=session, transform=transform)
    with pytest.raises(KeyError, match="mine"):
        list(loader)


def test_len_says_what_to_do_instead(session):
    loader, _ = tq.create_dataloader("SELECT n FROM t", session=session, remainder="uneven")
    with pytest.raises(TypeError, match=r"dataset\.num_rows"):
        len(loader)
    assert np.sum([len(batch["n"]) for batch in loader]) == 100


# --- secrets ---

SECRETS = {
    "aws_access_key_id": "AKIAVERYSECRET",
    "aws_secret_access_key": "TOPSECRET/123",
    "aws_session_token": "TOKENSECRET",
}


def test_secrets_stay_out_of_reprs_and_errors(tmp_path):
    options = {**SECRETS, "aws_region": "us-east-1"}
    session = tq.Session(storage_options=options)
    session.register_table("t", pa.table({"n": [1]}))
    query = session.table("t")
    loader, dataset = tq.create_dataloader(query)
    texts = [repr(thing) for thing in (session, query, query.plan_shards(), dataset, loader)]
    texts += [str(query.plan_shards().to_dict()), query.explain(), query.plan_shards().fingerprint]
    # An endpoint that refuses the connection, a malformed option, an unknown one, a secret in a URL.
    for path, more in [
        ("s3://bucket/x.parquet", {"allow_http": "TOPSECRET/123"}),
        ("s3://bucket/x.parquet", {"aws_secret_access_keyy": "TOPSECRET/123"}),
        ("https://user:TOPSECRET@127.0.0.1:9/x.parquet", None),
    ]:
        with pytest.raises(tq.TensorQueryError) as error:
            session.register_parquet(
                "x", path, storage_options={**options, **more} if more else None
            )
        texts.append(str(error.value))
    assert len(texts) > 8
    for text in texts:
        for secret in [*SECRETS.values(), "TOPSECRET"]:
            assert secret not in text
