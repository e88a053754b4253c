"""Promises 1 and 5 (docs/promises.md): receipts say which rows each rank has delivered at which step, on any topology and over
resumes. A record that was changed, moved or dropped is found and named."""

import copy
import itertools
import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import stopping
import support
import tensorquery as tq
from tensorquery.sharding.receipt import Chain, Span

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS, GROUP = 600, 20
KIB = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stopping.write_table(
        tmp_path_factory.mktemp("receipts") / "t", rows=ROWS, row_group=GROUP
    )


@pytest.fixture(autouse=True)
def without_processes(monkeypatch, tmp_path):
    """Worker shards are read in this process, so that many topologies take little time."""
    monkeypatch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path / "stages"))


def opened(query, **options):
    options = {"rank": 0, "world_size": 1, "batch_size": 7, "split_rows": GROUP, **options}
    return tq.create_dataloader(query, output_format="dict", **options)


def run(query, topology, steps=None, *, state=None, after=None, every=3, **options):
    """Some steps of all ranks of one run (None: to the end): receipts, state, and (epoch, rank, step, id) of each row."""
    world, workers, batch_size = topology
    receipts, states, log = [], [], []
    for rank in range(world):
        loader, dataset = opened(
            query,
            rank=rank,
            world_size=world,
            num_workers=workers,
            batch_size=batch_size,
            **options,
        )
        epoch = step = 0
        if state is not None:
            loader.load_state_dict(state)
            same = state["layout"] == dataset._plan.epochs.layout(workers)
            epoch, step = state["epoch"], state["step"] if same else 0
        for batch in itertools.islice(iter(loader), steps):
            log += [(epoch, rank, step, row) for row in batch["id"]]
            step += 1
            if step % every == 0:
                dataset.receipt(f"step {step}", after=after)
        receipts.append(json.loads(json.dumps(dataset.receipt("end", after=after))))
        states.append(stopping.state_of(loader))
    return receipts, tq.merge_state_dicts(states), log


def ids_of(rows):
    """Epoch, rank, step and column id of places, read by pyarrow from the files that they name."""
    tables = {path: pq.read_table(path)["id"].to_pylist() for path in {row.path for row in rows}}
    assert {row.counted_from for row in rows} <= {"file"}
    return [(row.epoch, row.rank, row.step, tables[row.path][row.row]) for row in rows]


CASES = [
    {},
    {"shuffle": True, "shuffle_buffer_size": 60},
    {"shuffle_buffer_size": 45},
    {"shuffle": "global"},
    {"shuffle": True, "remainder": "uneven"},
    {"shuffle": True, "partitions": 6},
]


@pytest.mark.parametrize("seed", range(6))
def test_receipts_are_what_was_delivered(folder, seed):
    """An epoch in several runs, each on another topology: every row of every step is in the receipts, and no other."""
    dice = random.Random(seed)
    options = CASES[seed % len(CASES)]
    query = stopping.query_of(folder, dice.choice([None, "k <> 2"]))
    receipts, state, log = [], None, []
    for steps in [*(dice.randrange(0, 6) for _ in range(3)), None]:
        world, workers = dice.choice([1, 3]), dice.choice([0, 0, 2])
        topology = (world, workers, dice.randrange(5, 14))
        if "partitions" in options:
            topology = (world, 0, 6 * dice.randrange(1, 3))
        if steps is None and options.get("remainder") == "uneven":
            topology = (1, 0, 9)
        found, state, delivered = run(
            query,
            topology,
            steps,
            state=state,
            after=receipts,
            every=dice.randrange(1, 5),
            **options,
        )
        receipts += found
        log += delivered
        if steps is not None:
            verified = tq.verify(receipts, query)
            assert sum(epoch.delivered for epoch in verified.epochs) == len(log)
            assert not any(epoch.complete or epoch.doubled for epoch in verified.epochs)
    verified = tq.verify(receipts, query)
    assert verified.is_exact, verified
    [epoch] = verified.epochs
    assert epoch.complete
    assert epoch.rows == epoch.delivered == query.count()
    assert Counter(ids_of(list(tq.seen(receipts, "id >= 0", query)))) == Counter(log)
    some = tq.seen(receipts, "id % 50 = 7", query)
    assert Counter(ids_of(list(some))) == Counter(row for row in log if row[3] % 50 == 7)


def test_epochs_of_one_process(folder):
    query = stopping.query_of(folder, "k <> 2")
    loader, dataset = opened(query, shuffle=True)
    log = []
    for epoch in range(3):
        for step, batch in enumerate(loader):
            log += [(epoch, 0, step, row) for row in batch["id"]]
    receipt = dataset.receipt()
    # Epochs that are alike are one span.
    [span] = receipt["records"][0]["spans"]
    assert (span["epoch"], span["epochs"]) == (0, 3)
    dataset.set_epoch(7)
    log += [(7, 0, step, row) for step in range(2) for row in next(iter(loader))["id"]][:7]
    receipt = dataset.receipt()
    verified = tq.verify([receipt], query)
    assert [epoch.epoch for epoch in verified.epochs] == [0, 1, 2, 7]
    assert [epoch.is_exact for epoch in verified.epochs] == [True, True, True, False]
    assert "not complete" in repr(verified)
    json.dumps(verified.to_dict())
    rows = [row for row in tq.seen([receipt], "id >= 0", query) if row.epoch < 7]
    assert Counter(ids_of(rows)) == Counter(row for row in log if row[0] < 7)


def test_an_iteration_that_was_left_early_is_in_the_receipt(folder):
    query = stopping.query_of(folder)
    loader, dataset = opened(query, shuffle=True)
    twice = support.flat(batch["id"] for batch in itertools.islice(iter(loader), 4))
    list(loader)
    verified = tq.verify([dataset.receipt()], query)
    assert not verified.is_exact
    [epoch] = verified.epochs
    assert (epoch.missing, epoch.doubled, epoch.complete) == (0, len(twice), True)
    places = list(epoch.places("doubled"))
    tables = {one.path: pq.read_table(one.path)["id"].to_pylist() for one in places}
    found = [
        tables[one.path][row]
        for one in places
        for each in one.physical_rows
        for row in range(*each)
    ]
    assert sorted(found) == sorted(twice)
    with pytest.raises(tq.ConfigError, match="places\\('lost'\\) must be of"):
        epoch.places("lost")


def test_what_options_leave_out_or_repeat_is_neither_missing_nor_doubled(folder):
    query = stopping.query_of(folder)
    for remainder, name in (("drop", "left_out"), ("pad", "padded")):
        receipts, _, log = run(query, (3, 0, 7), remainder=remainder)
        verified = tq.verify(receipts, query)
        assert verified.is_exact
        [epoch] = verified.epochs
        assert getattr(epoch, name) == abs(ROWS - len(log)) > 0
        rows = list(tq.seen(receipts, "id >= 0", query))
        assert Counter(ids_of(rows)) == Counter(log)
        assert sum(row.repeated for row in rows) == epoch.padded
    exclude = [(0, 0, 5), (3, 2, 9)]
    receipts, _, log = run(query, (2, 0, 7), exclude=exclude)
    [epoch] = tq.verify(receipts, query).epochs
    assert epoch.is_exact
    assert epoch.rows == len(log) == ROWS - 12


def test_mixtures_draws_and_stages(folder):
    query = stopping.query_of(folder)
    mixture = tq.mix(
        [(query, 2), (query.session.sql("SELECT id FROM t WHERE k = 1"), 1)], stop="first"
    )
    receipts, _, log = run(mixture, (2, 0, 9), shuffle=True)
    [epoch] = tq.verify(receipts, mixture).epochs
    assert epoch.is_exact
    assert epoch.delivered == len(log) == epoch.rows - epoch.left_out
    wanted = Counter(row for row in log if row[3] == 16)
    assert Counter(ids_of(list(tq.seen(receipts, "id = 16", mixture)))) >= wanted

    weighed = query.session.sql("SELECT id, k FROM t")
    receipts, _, log = run(weighed, (1, 0, 9), sample_weight="k", num_samples=50)
    assert Counter(ids_of(list(tq.seen(receipts, "id >= 0", weighed)))) == Counter(log)
    with pytest.raises(tq.ConfigError, match=r"sample_weight='k', which draws rows"):
        tq.verify(receipts, weighed)

    staged = query.session.sql("SELECT k, max(id) AS id FROM t WHERE id < 500 GROUP BY k")
    receipts, _, log = run(staged, (1, 0, 2))
    assert tq.verify(receipts, staged).is_exact
    [row] = tq.seen(receipts, "id = 498", staged)
    assert (row.epoch, row.rank, row.step) in [each[:3] for each in log if each[3] == 498]
    with pytest.raises(tq.ConfigError, match="a part that runs once"):
        tq.seen(receipts, "k = 1", staged, table="t")


def test_touched_checkpoints(folder):
    """A row touches the checkpoints behind it: of its rank, of the other ranks, and of the runs that go on."""
    query = stopping.query_of(folder)
    first, state, log = run(query, (2, 0, 10), 6, every=2)
    step = next(step for _, rank, step, row in log if (rank, step) == (1, 3))
    row = next(row for _, rank, at, row in log if (rank, at) == (1, step))
    second, _, _ = run(query, (1, 0, 10), 3, state=state, after=first, every=2)
    found = tq.seen([*second, *first], f"id = {row}", query)
    [place] = found
    assert (place.receipt, place.rank, place.step, place.record, place.name) == (
        2,
        1,
        3,
        1,
        "step 4",
    )
    touched = [(one.receipt, one.rank, one.record, one.name) for one in found.checkpoints]
    assert touched == [
        (0, 0, 0, "step 2"),
        (0, 0, 1, "end"),
        *((1, 0, record, name) for record, name in enumerate(("step 4", "step 6", "end"), 1)),
        *((2, 1, record, name) for record, name in enumerate(("step 4", "step 6", "end"), 1)),
    ]
    later = next(row for row in range(ROWS) if row not in {each[3] for each in log})
    assert tq.seen(first, f"id = {later}", query).checkpoints == []


def test_only_the_columns_of_the_predicate_are_read(tmp_path):
    """The pages of every other column are garbage, and nobody notices."""
    table = pa.table(
        {
            "id": range(200),
            "user": [n % 9 for n in range(200)],
            "tokens": [[n] * 5 for n in range(200)],
        }
    )
    folder = support.write_parquet(tmp_path / "t", table, files=2, row_group=30)
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.sql("SELECT tokens, id FROM t")
    # Without shuffling, since the order of a shuffle follows from the files' identities.
    receipts, _, log = run(query, (2, 0, 11), 5)
    for path in (tmp_path / "t").iterdir():
        content = bytearray(path.read_bytes())
        footer = pq.ParquetFile(path).metadata
        for group, column in itertools.product(
            range(footer.num_row_groups), range(footer.num_columns)
        ):
            chunk = footer.row_group(group).column(column)
            if chunk.path_in_schema != "user":
                start = min(
                    chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset
                )
                content[start : start + chunk.total_compressed_size] = (
                    b"\xff" * chunk.total_compressed_size
                )
        path.write_bytes(content)
    session = tq.Session()
    session.register_parquet("t", folder)
    query = session.sql("SELECT tokens, id FROM t")
    with pytest.raises(tq.DataError):
        query.to_arrow()
    with pytest.raises(
        tq.CheckpointMismatchError, match=r"what differs: a changed file \(.*parquet"
    ):
        tq.seen(receipts, "user = 4", query, table="t")
    # As if they had been so from the start.
    for receipt in receipts:
        _, dataset = opened(query)
        constant = dataset._plan.constant
        chain = Chain(receipt["rank"], [])
        plan = {**receipt["plans"][0], "fingerprint": constant["fingerprint"]}
        plan["parts"] = {**plan["parts"], "files": constant["parts"]["files"]}
        for record in receipt["records"]:
            spans = [
                (
                    {**receipt["runs"][span["run"]], "plan": plan},
                    Span(0, span["epoch"], span["epochs"], *span["steps"]),
                )
                for span in record["spans"]
            ]
            chain.add(record["name"], spans)
        receipt.update(chain.to_dict())
    found = [
        (row.epoch, row.rank, row.step) for row in tq.seen(receipts, "user = 4", query, table="t")
    ]
    assert Counter(found) == Counter(row[:3] for row in log if row[3] % 9 == 4)
    assert tq.verify(receipts, query).epochs[0].delivered == len(log)


# --- receipts that are not as they were written ---


@pytest.fixture(scope="module")
def written(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataLoader, "__iter__", stopping.shards_in_turn)
        query = stopping.query_of(folder)
        first, state, _ = run(query, (2, 0, 10), 9)
        second, _, _ = run(query, (1, 0, 10), 3, state=state, after=first)
    return query, [*first, *second]


def swap(receipt):
    records = receipt["records"]
    records[1], records[2] = records[2], records[1]


def swap_and_number(receipt):
    swap(receipt)
    for number, record in enumerate(receipt["records"]):
        record["number"] = number


def drop_and_number(receipt):
    del receipt["records"][1]
    for number, record in enumerate(receipt["records"]):
        record["number"] = number


TAMPERED = {
    "record 1 does not belong here": lambda receipt: receipt["records"][1]["spans"][0].update(
        steps=[3, 5]
    ),
    "record 0 does not belong here": lambda receipt: receipt["plans"][0].update(seed=43),
    "record 2 does not belong here": lambda receipt: receipt["records"][2].update(name="another"),
    "record 1 is missing: record 2 stands": lambda receipt: receipt["records"].pop(1),
    "record 0 is missing: record 1 stands": lambda receipt: receipt["records"].pop(0),
    "record 2 stands where record 1 belongs": swap,
    "record 1 is there twice": lambda receipt: receipt["records"].insert(2, receipt["records"][1]),
    "record 1 does not belong": swap_and_number,
    "record 1 does not belong here: its digest": drop_and_number,
    "record 0 does not": lambda receipt: receipt.update(rank=0),
    "its rank is int -1": lambda receipt: receipt.update(rank=-1),
    "has version int 2": lambda receipt: receipt.update(version=2),
    "has version bool True": lambda receipt: receipt.update(version=True),
    "this is no receipt": lambda receipt: receipt.update(format="tensorquery"),
    "the keys note are": lambda receipt: receipt.update(note=1),
    "it has no record": lambda receipt: receipt.update(records=[]),
    "belong to no record": lambda receipt: receipt["runs"].append(
        {**receipt["runs"][0], "left": {"rows": "x", "after": "y" * 16}}
    ),
    "'num_workers' of a layout is int -3": lambda receipt: receipt["runs"][0]["layout"].update(
        num_workers=-3
    ),
    "a run of it is": lambda receipt: receipt["runs"][0].update(plan=7),
    "'splits' of a plan is list [True]": lambda receipt: receipt["plans"][0].update(splits=[True]),
    "a span of record 0 is": lambda receipt: receipt["records"][0]["spans"][0].update(epochs=2**60),
    "the number or digest of a record is": lambda receipt: receipt["records"][0].update(chain="00"),
    "it is of rank 1 of 1": lambda receipt: receipt["runs"][0]["layout"].update(world_size=1),
    "its 'after' is": lambda receipt: receipt.update(after=[None]),
}


@pytest.mark.parametrize("words", TAMPERED)
def test_a_receipt_that_was_changed_is_refused_by_name(written, words):
    query, receipts = written
    forged = copy.deepcopy(receipts)
    TAMPERED[words](forged[1])
    for ask in (lambda: tq.verify(forged, query), lambda: tq.seen(forged, "id = 1", query)):
        with pytest.raises(tq.CheckpointMismatchError, match="receipt 1 of the list: ") as error:
            ask()
        assert words in str(error.value)


def test_a_receipt_that_is_missing_is_named(written):
    query, receipts = written
    with pytest.raises(
        tq.CheckpointMismatchError, match="receipts of ranks 1 are missing, and there are 2"
    ):
        tq.verify(receipts[:1], query)
    with pytest.raises(
        tq.CheckpointMismatchError,
        match="receipt 1 of the list, of rank 0, goes on after a receipt",
    ):
        tq.verify(receipts[1:], query)
    # The last records of a rank are not in the chain of what is left: their rows are missing.
    short = copy.deepcopy(receipts[:2])
    del short[1]["records"][2:]
    whole, less = (tq.verify(given, query).epochs[0] for given in (receipts[:2], short))
    assert less.missing == whole.missing + 30
    # A receipt that was saved earlier says less than the last one, and nothing else.
    assert repr(tq.verify([*short, *receipts], query)) == repr(tq.verify(receipts, query))


def test_hostile_arguments(written, folder):
    query, receipts = written
    with pytest.raises(tq.ConfigError, match="receipts is dict, and must be a list"):
        tq.verify(receipts[0], query)
    with pytest.raises(tq.ConfigError, match="the list of receipts is empty"):
        tq.verify([], query)
    with pytest.raises(tq.ConfigError, match="query is str, and must be the Query"):
        tq.verify(receipts, "SELECT id FROM t")
    with pytest.raises(
        tq.CheckpointMismatchError,
        match="what differs: the query.*Give the query that was trained on",
    ):
        tq.verify(receipts, stopping.query_of(folder, "k = 1"))
    with pytest.raises(tq.QueryError, match='unknown column "user"; the columns are id'):
        tq.seen(receipts, "user = 1", query)
    with pytest.raises(tq.ConfigError, match="predicate is None"):
        tq.seen(receipts, None, query)
    with pytest.raises(tq.ConfigError, match="table=int must be the name of a table"):
        tq.seen(receipts, "k = 1", query, table=3)
    query.session.register_table("other", pa.table({"k": [1]}))
    with pytest.raises(tq.ConfigError, match="has none of the query's files"):
        tq.seen(receipts, "k = 1", query, table="other")
    _, dataset = opened(query)
    for name in ("", "x" * 201, 7):
        with pytest.raises(tq.ConfigError, match="must be a text of 1 to 200 letters"):
            dataset.receipt(name)
    with pytest.raises(tq.ConfigError, match="after=dict .* must be a list of receipts"):
        dataset.receipt(after=receipts[0])
    dataset.receipt(after=receipts)
    with pytest.raises(tq.ConfigError, match="after= differs"):
        dataset.receipt()
    with pytest.raises(tq.ConfigError, match="is for the dataset that was made in this process"):
        copy.copy(dataset).receipt()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assignment": "dynamic", "num_workers": 2}, 'assignment="dynamic"'),
        ({"in_order": False, "num_workers": 2}, "in_order=False"),
    ],
)
def test_an_order_that_nobody_can_repeat_is_refused(folder, options, words):
    loader, dataset = opened(stopping.query_of(folder), **options)
    progress = dataset._state.begin(2, 0, None)
    progress.step = 1
    with pytest.raises(tq.ConfigError, match=words):
        dataset.receipt()
    assert loader.num_workers == 2


def test_a_dataset_says_what_receipts_do_not_have(folder):
    class Backwards:
        def generate(self, splits, num_shards, epoch):
            return [splits[::-1][shard::num_shards] for shard in range(num_shards)]

    query = stopping.query_of(folder)
    receipts, _, log = run(query, (2, 0, 9), split_strategy=Backwards())
    with pytest.raises(tq.CheckpointMismatchError, match=r"split_strategy.*or a dataset made with"):
        tq.verify(receipts, query)
    dataset = tq.QueryDataset(query, rank=0, world_size=1, split_strategy=Backwards())
    assert tq.verify(receipts, dataset).is_exact
    assert Counter(ids_of(list(tq.seen(receipts, "id < 50", dataset)))) == Counter(
        row for row in log if row[3] < 50
    )


def test_a_receipt_is_small(tmp_path):
    session = tq.Session()
    session.register_table("t", pa.table({"id": np.arange(20_000)}))
    query = session.sql("SELECT id FROM t")
    _, dataset = opened(query, split_rows=2, shuffle=True, batch_size=100)
    assert dataset._plan.core.num_splits == 10_000
    for _ in zip(range(50), dataset, strict=False):
        receipt = dataset.receipt()
    assert len(json.dumps(receipt)) < 2 * KIB + 50 * 256
    assert len(receipt["records"]) == 50


def test_bad_parts_of_files_are_left_out(tmp_path):
    table = pa.table({"id": np.arange(200)})
    folder = support.write_parquet(
        tmp_path / "t", table, files=2, row_group=20, use_dictionary=False, compression="none"
    )
    path = tmp_path / "t" / "001.parquet"
    content = bytearray(path.read_bytes())
    at = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    content[at : at + 20] = b"\xff" * 20
    path.write_bytes(content)
    query = stopping.query_of(folder)
    receipts, _, log = run(query, (2, 0, 9), shuffle=True, on_error="skip")
    [epoch] = tq.verify(receipts, query).epochs
    assert epoch.is_exact
    assert epoch.rows == len(log) == 180
    [row] = tq.seen(receipts, "id = 199", query)
    assert (row.path, row.row) == (str(path), 99)


def test_a_delta_table_is_read_at_the_version_that_was_trained_on(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    place = str(tmp_path / "t")

    def table_of():
        session = tq.Session()
        session.register_delta("t", place)
        return session.sql("SELECT id FROM t WHERE id <> 3")

    deltalake.write_deltalake(place, pa.table({"id": range(90), "k": [n % 4 for n in range(90)]}))
    receipts, _, log = run(table_of(), (2, 0, 9), shuffle=True)
    deltalake.write_deltalake(place, pa.table({"id": [7], "k": [9]}), mode="append")
    deltalake.DeltaTable(place).delete("id = 5")
    now = table_of()
    assert sorted(now.to_arrow()["id"].to_pylist()) == sorted([*range(3), 4, *range(6, 90), 7])
    assert tq.verify(receipts, now).is_exact
    for predicate, table in (("id IN (5, 7)", None), ("id IN (5, 7) AND k < 9", "t")):
        rows = [tuple(row[5:8]) for row in tq.seen(receipts, predicate, now, table=table)]
        assert Counter(rows) == Counter(row[:3] for row in log if row[3] in (5, 7))
