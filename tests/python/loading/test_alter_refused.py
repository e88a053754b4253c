"""Promise 8 (docs/promises.md): what `alter` cannot do exactly is refused by name, and then the loader goes on as it was."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest

import stopping
import support
import tensorquery as tq
from tensorquery.sharding.checkpoint import check_sum
from tensorquery.sharding.file_rows import FileRows

ROWS = 60


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root = tmp_path_factory.mktemp("refused")
    session = tq.Session()
    for name, start in (("a", 0), ("b", 1000)):
        ids = np.arange(start, start + ROWS)
        table = pa.table({"id": ids, "k": ids % 4, "tags": [[1, 2]] * ROWS})
        session.register_parquet(
            name, support.write_parquet(root / name, table, files=3, row_group=10)
        )
    (root / "lines.csv").write_text("id\n" + "\n".join(map(str, range(400))))
    session.register_csv("lines", str(root / "lines.csv"))
    session.register_table("held", pa.table({"id": np.arange(ROWS)}))
    session.register_table("names", pa.table({"k": [0, 0, 1, 2, 3], "n": [1, 2, 3, 4, 5]}))
    return session


def loader_of(query, **options):
    options = {"rank": 0, "world_size": 1, "batch_size": 7, "split_rows": 10, **options}
    return tq.create_dataloader(query, output_format="dict", **options)[0]


def refused(loader, words, error=tq.ConfigError, *, steps=3, **change):
    """Ask for a change after some steps; what comes then is what would have come without it."""
    running = iter(loader)
    for _ in range(steps):
        next(running)
    state = loader.state_dict()
    with pytest.raises(error, match=words):
        loader.alter(**change)
    assert loader.state_dict() == state
    rest = [batch["id"] for batch in running]
    assert rest
    return rest


def mixed(session, **options):
    queries = {name: session.sql(f"SELECT id FROM {name}") for name in "ab"}
    return loader_of(tq.mix(queries, weights=[1, 1], stop="all"), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shuffle": "global"}, 'shuffle="global" does not go with alter'),
        ({"sample_weight": "id"}, "sample_weight='id' does not go with alter"),
        (
            {"on_transform_error": "skip", "transform": dict},
            'on_transform_error="skip" does not go',
        ),
        ({"on_error": "skip"}, 'on_error="skip" does not go with alter'),
        ({"exclude": [(0, 0, 2)]}, "exclude= names splits of the query as it was"),
        ({"remainder": "uneven", "world_size": 2}, 'remainder="even"'),
    ],
)
def test_options_that_do_not_go_with_it(session, tmp_path, monkeypatch, options, words):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    rest = refused(loader_of(session.sql("SELECT id FROM a"), **options), words, filters="id > 5")
    plain = loader_of(session.sql("SELECT id FROM a"), **options)
    assert rest == stopping.ids(plain)[3:]


def test_packs_do_not_go_with_it(session):
    packs, _ = tq.create_dataloader(
        "SELECT tags FROM a",
        session=session,
        pack=tq.Pack(columns=["tags"], length=8),
        batch_size=2,
    )
    with pytest.raises(tq.ConfigError, match="packs and batches by tokens are planned once"):
        packs.alter(filters="1 = 1")


def test_dynamic_assignment_does_not_go_with_it(session):
    loader = loader_of(session.sql("SELECT id FROM a"), assignment="dynamic")
    with pytest.raises(tq.ConfigError, match='assignment="dynamic" does not go with alter'):
        loader.alter(filters="id > 5")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT max(id) AS id, k FROM a GROUP BY k, id", "a part that runs once"),
        ("SELECT id FROM a ORDER BY id", "a part that runs once"),
        ("SELECT id, unnest(tags) AS tag FROM a", "several rows of the result come from one row"),
        (
            "SELECT a.id, names.n FROM a JOIN names ON a.k = names.k",
            "has a join .* give key=",
        ),
        (
            "SELECT id FROM a WHERE id < 40 UNION ALL SELECT id FROM a WHERE id >= 20",
            r"reads .* twice \(UNION ALL\)",
        ),
    ],
)
def test_rows_that_are_not_those_of_a_file(session, tmp_path, monkeypatch, sql, words):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    loader = loader_of(session.sql(sql))
    rest = refused(loader, words, filters="id % 2 = 0")
    assert rest == stopping.ids(loader_of(session.sql(sql)))[3:]


@pytest.mark.parametrize(
    ("sql", "is_staged"),
    [
        ("SELECT id FROM a ORDER BY id", True),
        ("SELECT id FROM a WHERE id < 40 UNION ALL SELECT id FROM a WHERE id >= 20", False),
        ("SELECT a.id FROM a JOIN names ON a.k = names.k", False),
    ],
)
def test_a_query_that_stays_goes_on_beside_one_that_changes(
    session, tmp_path, monkeypatch, sql, is_staged
):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    queries = {"q": session.sql(sql), "b": session.sql("SELECT id FROM b")}
    loader = loader_of(tq.mix(queries, weights=[1, 1], stop="all"))
    running = iter(loader)
    found = [next(running)["id"] for _ in range(4)]
    loader.alter(weights=[1, 3])
    found += [next(running)["id"] for _ in range(2)]
    if is_staged:
        # Its rows lie elsewhere once the mixture is another one.
        with pytest.raises(tq.ConfigError, match="query 'q' has a part that runs once"):
            loader.alter(filters={"b": "id % 2 = 0"})
    else:
        loader.alter(filters={"b": "id % 2 = 0"})
    found = support.flat(found + [batch["id"] for batch in running])
    wanted = session.sql(sql).to_arrow()["id"].to_pylist()
    assert sorted(row for row in found if row < 1000) == sorted(wanted)
    assert set(range(1000, 1060, 2)) <= set(found)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT a.id, names.n FROM a JOIN names ON a.k = names.k", ["id", "n"]),
        ("SELECT id, max(k) AS n FROM a GROUP BY id", "id"),
        ("SELECT id, unnest(tags) AS n FROM a", ["id", "n"]),
        (
            "SELECT id, k AS n FROM a WHERE id < 40 UNION ALL SELECT id, 9 FROM a WHERE id >= 20",
            ["id", "n"],
        ),
    ],
)
def test_a_key_tells_rows_apart(session, tmp_path, monkeypatch, sql, key, shuffle):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    loader = loader_of(session.sql(sql), shuffle=shuffle)
    received = []
    for step, batch in enumerate(loader, start=1):
        received += zip(batch["id"], batch["n"], strict=True)
        if step == 3:
            report = loader.alter(filters="id % 3 <> 0", key=key)
            first = set(received)
    wanted = {
        (row["id"], row["n"])
        for row in session.sql(sql).select(filters="id % 3 <> 0").to_arrow().to_pylist()
    }
    assert len(received) == len(set(received))
    assert set(received) == first | wanted
    assert report.delivered == len(first & wanted)
    # What was filtered away is not known any more.
    loader = loader_of(session.sql(sql))
    running = iter(loader)
    found = [next(running) for _ in range(3)]
    loader.alter(filters="id % 3 <> 0", key=key)
    words = (
        "rows were delivered in this epoch of which nothing is known|altered before in this epoch"
    )
    for more in ({}, {"key": key}):
        with pytest.raises(
            tq.ConfigError, match=words + "|has a join|runs once|twice|several rows"
        ):
            loader.alter(query=session.sql(sql), **more)
    assert found


def test_keys_that_tell_nothing(session):
    sql = "SELECT id, k FROM a"
    for key, error, words in [
        (
            "k",
            tq.DataError,
            r"key=\['k'\] does not tell the rows of query '0' apart: \(0,\) is there twice",
        ),
        ("kk", tq.ConfigError, "'kk', which is no column of the query; did you mean 'k'"),
        (5, tq.ConfigError, "key=5 must be the name of a column"),
        ([None], tq.ConfigError, r"key=\[None\] must be the name of a column"),
    ]:
        refused(loader_of(session.sql(sql)), words, error, filters="id > 5", key=key)
    null = session.sql("SELECT id, nullif(k, 1) AS k FROM a")
    refused(
        loader_of(session.sql("SELECT id, tags FROM a")),
        "has a list",
        tq.DataError,
        filters="id > 5",
        key="tags",
    )
    nan = session.sql("SELECT id, CASE WHEN id = 9 THEN 'NaN'::DOUBLE ELSE id END AS x FROM a")
    refused(loader_of(nan), "or NaN", tq.DataError, filters="id > 5", key="x")
    refused(loader_of(null), "has a null", tq.DataError, filters="id > 5", key=["id", "k"])


def test_places_alone_do_not_tell_queries_of_one_table_apart(session):
    def parts(*conditions):
        return [session.sql(f"SELECT id FROM a WHERE {condition}") for condition in conditions]

    loader = loader_of(tq.mix(parts("id < 20", "id >= 20"), weights=[1, 1], stop="all"))
    swapped = tq.mix(parts("id >= 25", "id < 15"), weights=[1, 1], stop="all")
    refused(loader, "by their places alone nothing tells", query=swapped)
    named = {"low": "id < 20", "high": "id >= 20"}
    queries = dict(zip(named, parts(*named.values()), strict=True))
    loader = loader_of(tq.mix(queries, weights=[1, 1], stop="all"))
    running = iter(loader)
    found = [next(running)["id"] for _ in range(3)]
    high, low = parts("id >= 25", "id < 15")
    loader.alter(tq.mix({"high": high, "low": low}, weights=[1, 1], stop="all"))
    found = support.flat(found + [batch["id"] for batch in running])
    assert len(found) == len(set(found))
    assert {*range(15), *range(25, ROWS)} <= set(found)


def test_a_query_whose_rows_are_not_those_of_a_file_is_dropped(session, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    queries = {
        "b": session.sql("SELECT id FROM b"),
        "q": session.sql("SELECT max(id) AS id FROM a GROUP BY k"),
    }
    loader = loader_of(tq.mix(queries, weights=[3, 1], stop="all"))
    running = iter(loader)
    found = [next(running)["id"] for _ in range(2)]
    loader.alter(drop="q")
    found += [next(running)["id"]]
    for name, words in (("q", "of query 'q' rows were delivered"), ("other", "name it 'q'")):
        with pytest.raises(tq.ConfigError, match=words):
            loader.alter(add={name: (session.sql("SELECT id FROM a WHERE id > 5"), 1)})
    found = support.flat(found + [batch["id"] for batch in running])
    assert sorted(row for row in found if row >= 1000) == list(range(1000, 1000 + ROWS))
    # In the next epoch it is no matter.
    loader.alter(add={"q": (session.sql("SELECT id FROM a WHERE id > 5"), 1)})
    assert len(support.flat(stopping.ids(loader))) == 2 * ROWS - 6


def test_a_table_in_memory_goes_on(session):
    loader = loader_of(session.sql("SELECT id FROM held"), shuffle=True)
    running = iter(loader)
    first = support.flat(next(running)["id"] for _ in range(3))
    loader.alter(filters="id % 2 = 0")
    rest = support.flat(batch["id"] for batch in running)
    assert sorted(rest) == [row for row in range(0, ROWS, 2) if row not in first]
    # Other rows under its name are another table.
    loader = loader_of(session.sql("SELECT id FROM held"))
    other = tq.Session()
    other.register_table("held", pa.table({"id": np.arange(1, ROWS)}))
    refused(
        loader,
        "files of query '0' with delivered rows are gone",
        query=other.sql("SELECT id FROM held"),
    )


def test_text_files_in_parts(session):
    loader = loader_of(session.sql("SELECT id FROM lines"), split_bytes=300, split_rows=None)
    running = iter(loader)
    first = support.flat(next(running)["id"] for _ in range(30))
    loader.alter(filters="id % 2 = 0")
    rest = support.flat(batch["id"] for batch in running)
    assert sorted(rest) == [row for row in range(0, 400, 2) if row not in first]


def test_a_new_query_over_the_files_of_a_dropped_one(session):
    loader = mixed(session)
    running = iter(loader)
    found = [next(running)["id"] for _ in range(4)]
    loader.alter(drop="a")
    found.append(next(running)["id"])
    with pytest.raises(tq.ConfigError, match="query 'other' is new and reads .*; name it 'a'"):
        loader.alter(add={"other": (session.sql("SELECT id FROM a WHERE id > 5"), 0.5)})
    loader.alter(add={"a": (session.sql("SELECT id FROM a WHERE id > 5"), 0.5)})
    found = support.flat(found + [batch["id"] for batch in running])
    assert len(found) == len(set(found))
    assert set(range(6, ROWS)) | set(range(1000, 1000 + ROWS)) <= set(found)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({}, tq.ConfigError, "changes nothing: give query=, weights="),
        ({"query": "SELECT 1"}, tq.ConfigError, "query=str must be a Query"),
        ({"query": ..., "weights": [1, 2]}, tq.ConfigError, "query= is the whole altered query, so that weights"),
        ({"weights": [1]}, tq.ConfigError, "1 weights for 2 queries"),
        ({"weights": [1, 0]}, tq.ConfigError, "weight 0 must be a number above 0"),
        ({"weights": {"a": 1, "x": 2}}, tq.ConfigError, r"weights= names \['a', 'x'\]"),
        ({"weights": "ab"}, tq.ConfigError, "weights='ab' must be"),
        ({"weights": 5}, tq.ConfigError, "weights=5 must be"),
        ({"weights": tq.Schedule([(0, [1, 1, 1])], by="step")}, tq.ConfigError, "3 weights for 2 queries"),
        ({"drop": "c"}, tq.ConfigError, "no query 'c' in the mixture; it has 'a', 'b'"),
        ({"drop": 2.5}, tq.ConfigError, "drop=2.5 must be names or numbers"),
        ({"drop": ["a", "b"]}, tq.ConfigError, "leaves no query"),
        ({"drop": True}, tq.ConfigError, "no query True"),
        ({"filters": {"x": "id > 1"}}, tq.ConfigError, "no query 'x'"),
        ({"filters": "nothing > 1"}, tq.QueryError, "nothing"),
        ({"filters": {"a": 5}}, tq.ConfigError, "filters=5 is a int"),
        ({"refresh": 1}, tq.ConfigError, "refresh=1 must be True or False"),
        ({"add": 5}, tq.ConfigError, "add= takes pairs"),
        ({"add": [("x", 1)]}, tq.ConfigError, "takes queries, got str"),
        ({"add": {"a": (..., 1)}}, tq.ConfigError, "add= has a query named 'a'"),
        ({"query": "columns"}, tq.ConfigError, r"other columns \(id, k\) than batches have until now \(id\)"),
    ],
)  # fmt: skip
def test_hostile_arguments(session, change, error, words):
    loader = mixed(session)
    query = session.sql("SELECT id FROM a WHERE id > 2")
    if change.get("query") is ...:
        change = {**change, "query": query}
    if change.get("query") == "columns":
        change = {"query": session.sql("SELECT id, k FROM a")}
    if isinstance(change.get("add"), dict):
        change = {"add": {"a": (query, 1)}}
    rest = refused(loader, words, error, **change)
    assert rest == stopping.ids(mixed(session))[3:]


def test_a_single_query_has_no_weights(session):
    query = session.sql("SELECT id FROM a")
    refused(
        loader_of(query), "give weights= of all queries", add=[(session.sql("SELECT id FROM b"), 1)]
    )
    loader = loader_of(query)
    running = iter(loader)
    found = [next(running)["id"] for _ in range(3)]
    loader.alter(add={"b": session.sql("SELECT id FROM b")}, weights={"0": 1, "b": 3})
    found += [next(running)["id"] for _ in range(3)]
    assert [sum(row < 1000 for row in batch) for batch in found[3:]] in (
        [2, 2, 2],
        [2, 2, 1],
        [2, 1, 2],
        [1, 2, 2],
    )


def test_equal_steps_that_are_impossible(session):
    loader = loader_of(session.sql("SELECT id FROM a"), world_size=3)
    refused(loader, "1 rows .N. cannot give each of 3 ranks", steps=2, filters="id = 59")


def test_a_schedule_has_weights_for_the_queries_of_before(session):
    queries = {name: session.sql(f"SELECT id FROM {name}") for name in "ab"}
    schedule = tq.Schedule([(0, [1, 3])], by="step")
    loader = loader_of(tq.mix(queries, weights=schedule, stop="all"))
    refused(loader, "follow a Schedule, .* give weights= of the altered mixture", drop="a")


def test_another_query_does_not_go_on_from_an_altered_state(session):
    loader = mixed(session)
    running = iter(loader)
    next(running)
    loader.alter(filters={"a": "id > 5"})
    next(running)
    state = json.loads(json.dumps(loader.state_dict()))
    with pytest.raises(tq.CheckpointMismatchError, match="what differs: filters"):
        mixed(session).load_state_dict(state)
    single = loader_of(session.sql("SELECT id FROM a"))
    with pytest.raises(tq.CheckpointMismatchError):
        single.load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"log": []},
        {"log": [{"epoch": 0}]},
        {"log": [{"epoch": 0, "step": "1", "change": "x"}]},
        {"names": "ab"},
        {"past": 5},
        {"past": {"a": {"0" * 16: [5, 2]}}},
        {"past": {"a": {"0" * 16: [5, "%%%"]}}},
        {"past": {"a": {"0" * 16: [1 << 40, "c"]}}},
        {"past": {"a": {"0" * 16: ["x", 5]}}},
        {"more": 1},
    ],
)
def test_damaged_states_are_refused(session, damage):
    loader = mixed(session)
    running = iter(loader)
    next(running)
    loader.alter(weights=[1, 2])
    state = json.loads(json.dumps(loader.state_dict()))
    mixed(session).load_state_dict(state)
    state["altered"].update(damage)
    with pytest.raises(tq.CheckpointMismatchError, match="numbers do not fit|its 'altered'"):
        mixed(session).load_state_dict(state)
    state["check"] = check_sum(state)
    with pytest.raises(tq.CheckpointMismatchError, match="its 'altered'"):
        mixed(session).load_state_dict(state)


def test_a_state_whose_delivered_rows_were_changed_is_refused(session):
    loader = mixed(session)
    running = iter(loader)
    for _ in range(4):
        next(running)
    loader.alter(filters={"a": "id > 5"})
    narrowed = {
        "a": session.sql("SELECT id FROM a").select(filters="id > 5"),
        "b": session.sql("SELECT id FROM b"),
    }
    again = loader_of(tq.mix(narrowed, weights=[1, 1], stop="all"))
    state = json.loads(json.dumps(loader.state_dict()))
    again.load_state_dict(state)
    [file] = list(state["altered"]["past"]["a"])[:1]
    state["altered"]["past"]["a"][file][1] -= 1
    with pytest.raises(tq.CheckpointMismatchError, match="numbers do not fit together"):
        again.load_state_dict(state)


def test_weights_that_a_state_has_are_followed_or_refused(session):
    loader = mixed(session)
    running = iter(loader)
    next(running)
    loader.alter(weights=tq.Schedule([(0, [1, 2]), (9, [3, 1])], by="step", linear=True))
    expected = [batch["id"] for batch in itertools.islice(running, 3)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [batch["id"] for batch in running]
    again = mixed(session)
    again.load_state_dict(state)
    assert expected
    assert stopping.ids(again) == rest
    for weights in (None, 5, [1], {"points": 3}, "x"):
        state["altered"]["weights"] = weights
        state["check"] = check_sum(state)
        with pytest.raises(tq.CheckpointMismatchError):
            mixed(session).load_state_dict(state)


def test_receipts_of_an_altered_run_are_those_of_no_query(session):
    query = session.sql("SELECT id, k FROM a")
    loader = loader_of(query)
    batches = iter(loader)
    next(batches)
    loader.alter(filters="k < 2")
    list(batches)
    receipt = loader.dataset.receipt()
    for of in (query, query.select(filters="k < 2")):
        with pytest.raises(tq.CheckpointMismatchError, match="belong to another query"):
            tq.verify([receipt], of)
        with pytest.raises(tq.CheckpointMismatchError, match="belong to another query"):
            list(tq.seen([receipt], "id = 3", of))


def test_rows_of_files_are_packed(tmp_path):
    rows = FileRows()
    rows.add("a" * 16, np.arange(5, 1_000_000))
    rows.add("b" * 16, np.arange(0, 100_000, 7))
    rows.add("b" * 16, np.array([1, 2]))
    rows.note("c" * 16)
    packed = json.loads(json.dumps(rows.to_dict()))
    assert packed["a" * 16] == [5, 1_000_000]
    assert len(json.dumps(packed)) < 400
    read = FileRows.read(packed)
    assert len(read) == len(rows) == 999_995 + 14_286 + 2
    assert read.has("b" * 16, np.array([0, 1, 3, 7, 10**9])).tolist() == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert (read.files, read.known) == ({"a" * 16, "b" * 16}, {"a" * 16, "b" * 16, "c" * 16})
    assert read.to_dict() == packed
