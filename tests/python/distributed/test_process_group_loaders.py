"""Promise: loaders of ranks that met without torch share the rows, the counting and what fails, as those of torch.distributed do."""

import json
import os
import signal
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import support
import tensorquery as tq
import torchless
from process_groups import KINDS, address_of, joined, together
from tensorquery.distributed.topology import Topology, detect, group_store


def query(folder, rows=403, sql="SELECT id FROM t WHERE k <> 1", **options):
    if not (folder / "t").exists():
        ids = np.arange(rows)
        table = pa.table({"id": ids, "k": ids % 3})
        support.write_parquet(folder / "t", table, files=5, row_group=17)
    session = tq.Session(**options)
    session.register_parquet("t", folder / "t")
    return session.sql(sql)


def test_a_single_rank_needs_nobody(tmp_path):
    group = tq.ProcessGroup(tmp_path / "nowhere", rank=0, world_size=1)
    assert group.store is None
    assert repr(group) == "ProcessGroup(rank 0 of 1)"
    assert not (tmp_path / "nowhere").exists()
    loader, dataset = tq.create_dataloader(query(tmp_path), process_group=group)
    assert (dataset.rank, dataset.world_size, len(loader)) == (0, 1, 1)


def test_the_place_is_that_of_the_group(groups, tmp_path):
    for rank, group in enumerate(groups):
        place = detect(process_group=group)
        assert (place.rank, place.world_size, place.source) == (rank, 3, "process_group")
        assert group_store(place, group) is group.store
    with pytest.raises(tq.ConfigError, match="rank=1, world_size=3 contradict process_group"):
        tq.create_dataloader(query(tmp_path), process_group=groups[0], rank=1, world_size=3)
    assert group_store(Topology(0, 2), groups[0]) is None


@pytest.mark.slow
@given(
    kind=st.sampled_from(KINDS),
    world_size=st.integers(2, 4),
    batch_size=st.integers(2, 60),
    shuffle=st.sampled_from([False, True, "global"]),
    stop=st.integers(0, 3),
    after=st.integers(1, 3),
)
def test_each_row_once_before_and_after_a_resume(
    tmp_path_factory, kind, world_size, batch_size, shuffle, stop, after
):
    folder = tmp_path_factory.mktemp("jobs")
    wanted = [number for number in range(403) if number % 3 != 1]
    query(folder)

    def load(groups, state):
        def work(rank):
            own = query(folder, process_group=groups[rank])
            loader, _ = tq.create_dataloader(
                own,
                process_group=groups[rank],
                batch_size=batch_size,
                shuffle=shuffle,
                output_format="numpy",
            )
            length = len(loader)
            if state is not None:
                loader.load_state_dict(state)
            ids, batches = [], iter(loader)
            for step, batch in enumerate(batches):
                ids += batch["id"].tolist()
                if state is None and step + 1 == stop:
                    break
            return ids, length, loader.state_dict()

        found = together(len(groups), work)
        for answer in found:
            assert isinstance(answer, tuple), answer
        assert len({length for _, length, _ in found}) == 1
        return [number for ids, _, _ in found for number in ids], found[0][2]

    groups = joined(kind, folder, world_size)
    ids, state = load(groups, None)
    for group in reversed(groups):
        group.close()
    if state["epoch"] == 0:
        groups = (
            joined(kind, folder, after)
            if after > 1
            else [tq.ProcessGroup(folder / "one", rank=0, world_size=1)]
        )
        more, _ = load(groups, state)
        ids += more
        for group in reversed(groups):
            group.close()
    assert sorted(ids) == wanted


def test_bad_files_are_found_together(groups, tmp_path):
    query(tmp_path)
    bad = sorted((tmp_path / "t").glob("*.parquet"))[1]
    content = bytearray(bad.read_bytes())
    content[40:60] = b"\xff" * 20
    bad.write_bytes(content)

    def work(rank):
        loader, dataset = tq.create_dataloader(
            query(tmp_path),
            process_group=groups[rank],
            on_error="skip",
            output_format="numpy",
            batch_size=10,
        )
        return len(loader), [each.path for each in dataset.quarantined]

    first, *others = together(3, work)
    assert all(other == first for other in others)
    assert len(first[1]) >= 1


JOB = """
import importlib.util, json, sys, time
import tensorquery as tq
assert importlib.util.find_spec("torch") is None
address, how = sys.argv[1:3]
group = tq.ProcessGroup(address)
session = tq.Session(process_group=group)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_footers_are_read_once_without_torch(kind, tmp_path):
    """Three processes that have no torch: one lists and reads footers for all, and each row comes once."""
    query(tmp_path)
    log = tmp_path / "log"
    log.touch()
    code = JOB + textwrap.dedent("""
    session.register_parquet("t", [f"{how}/{name}" for name in sys.argv[3:]], storage_options={"allow_http": "true"})
    loader, dataset = tq.create_dataloader(
        "SELECT id FROM t", session=session, process_group=group, output_format="numpy", batch_size=7, shuffle=True
    )
    steps = len(loader)
    group.store.add("planned", 1)
    while group.store.add("planned", 0) < group.world_size:
        time.sleep(0.01)
    planned = open("log").read()
    group.store.add("read", 1)
    while group.store.add("read", 0) < group.world_size:
        time.sleep(0.01)
    ids = [number for batch in loader for number in batch["id"].tolist()]
    print(json.dumps([group.rank, steps, ids, planned]))
    """)
    names = sorted(path.name for path in (tmp_path / "t").glob("*.parquet"))
    with support.serve(tmp_path / "t", log) as url:
        out = torchless.run_ranks(
            tmp_path, code, 3, address_of(kind, tmp_path), url, *names, packages=torchless.NUMPY
        )
    ranks, steps, ids, planned = zip(*map(json.loads, out), strict=True)
    assert ranks == (0, 1, 2)
    assert len({*steps}) == 1
    assert sorted(number for own in ids for number in own) == [*range(403)]
    asked = [line.split()[1] for line in planned[0].splitlines()]
    assert {*asked} == {*names}
    # A listing and a footer of each file, for three ranks as for one.
    assert max(asked.count(name) for name in names) <= 2


def test_moments_that_nobody_can_agree_on_are_refused(tmp_path):
    alone = query(tmp_path, sql="SELECT id, now() AS at FROM t")
    with pytest.raises(tq.NotShardableError, match=r"process_group=tensorquery\.ProcessGroup"):
        tq.create_dataloader(alone, rank=0, world_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_counting_is_shared_and_moments_are_one(kind, tmp_path):
    """Ranks count each split once together, and agree on the `now()` of the first to come."""
    query(tmp_path)
    code = JOB + textwrap.dedent("""
    import os
    from tensorquery.sharding import row_counts
    # A cache on this machine's disk would be shared, too.
    os.environ["TENSORQUERY_CACHE"] = f"cache-{group.rank}"
    counted, real = [], row_counts._Counting.count

    def count(self, ids):
        counted.extend(ids)
        return real(self, ids)

    row_counts._Counting.count = count
    session = tq.Session()
    session.register_parquet("t", "t")
    time.sleep(group.rank * 0.01)
    query = session.sql("SELECT id, CAST(now() AS VARCHAR) AS at FROM t WHERE k <> 1")
    loader, _ = tq.create_dataloader(query, process_group=group, batch_size=50, output_format="numpy", split_rows=40)
    # The others count meanwhile, and the store goes with rank 0.
    steps = len(loader)
    group.store.add("counted", 1)
    while group.store.add("counted", 0) < group.world_size:
        time.sleep(0.01)
    print(json.dumps([query.moment, steps, sorted({text for batch in loader for text in batch["at"]}), counted]))
    """)
    out = torchless.run_ranks(tmp_path, code, 3, address_of(kind, tmp_path), "")
    own, steps, delivered, counted = zip(*map(json.loads, out), strict=True)
    assert len({*own}) == 3
    assert {*steps} == {2}
    assert delivered[0] == delivered[1] == delivered[2]
    assert len(delivered[0]) == 1
    every = [split for one in counted for split in one]
    assert len(every) == len({*every}) > 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_killed_ends_the_waiting(kind, tmp_path):
    """Rank 0 is killed before it plans: the others plan themselves, or end with an error; none hangs."""
    query(tmp_path)
    code = JOB + textwrap.dedent("""
    session = tq.Session()
    session.register_parquet("t", "t")
    if group.rank == 0:
        print("met", flush=True)
        time.sleep(600)
    time.sleep(1)
    try:
        loader, _ = tq.create_dataloader(
            "SELECT id FROM t WHERE k <> 1", session=session, process_group=group, output_format="numpy", batch_size=7
        )
        print(len(loader))
    except tq.StorageError as error:
        print(error)
    """)
    address = address_of(kind, tmp_path)
    processes = [
        torchless.start(
            tmp_path, code, address, "", variables={"RANK": str(rank), "WORLD_SIZE": "3"}
        )
        for rank in range(3)
    ]
    try:
        assert processes[0].stdout.readline() == "met\n"
        os.kill(processes[0].pid, signal.SIGKILL)
        answers = [torchless.finish(process, 120) for process in processes[1:]]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if kind == "files":
        # The next rank works for both.
        assert answers[0] == answers[1]
        assert int(answers[0]) == 13  # 90 rows of 269 in batches of 7
    else:
        assert all("store does not answer" in answer for answer in answers)
