"""Promise: with ``on_error="skip"`` a state names the parts that are left out, and ranks and later runs share the
findings."""

import json
import os
import warnings
from pathlib import Path

import pytest

import ranks
import support
import tensorquery as tq
from damaged_tables import (
    GROUP,
    ROWS,
    check_delivered,
    dataset_of,
    numbers,
    query_of,
    read,
    spoil_group,
    spoiled_parquet,
)
from tensorquery.sharding import bad_files


@pytest.fixture
def parquet(tmp_path):
    """Three files of ten row groups, one group damaged. Gives the folder, and the ids that are left."""
    return spoiled_parquet(tmp_path / "t")


def no_verification(monkeypatch):
    """From now on, to verify is an error."""

    def refuse(*_):
        raise AssertionError("verified again")

    monkeypatch.setattr(bad_files, "_verdicts", refuse)


@pytest.mark.slow
@pytest.mark.parametrize("sql", ["SELECT id, word FROM t", "SELECT id FROM t WHERE id % 3 < 2"])
@pytest.mark.parametrize(
    ("before", "after"), [((1, 0), (1, 0)), ((1, 0), (3, 0)), ((3, 0), (2, 0)), ((1, 2), (2, 0))]
)
def test_a_state_names_what_is_left_out(parquet, monkeypatch, tmp_path, before, after, sql):
    folder, left = parquet
    if "WHERE" in sql:
        left = [row for row in left if row % 3 < 2]

    def loaders(topology):
        world_size, workers = topology
        for rank in range(world_size):
            loader, _ = tq.create_dataloader(
                query_of(folder, sql), on_error="skip", shuffle=True, batch_size=64, num_workers=workers,
                split_rows=300, rank=rank, world_size=world_size,
            )  # fmt: skip
            yield loader

    delivered, states = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for loader in loaders(before):
            iterator = iter(loader)
            delivered += support.flat(support.ids_of(next(iterator) for _ in range(5)))
            states.append(json.loads(json.dumps(loader.state_dict())))
            del iterator
    state = tq.merge_state_dicts(states)
    named = state["parts"]["quarantine"]
    assert [len(bad) for _, bad in named["splits"]] == [1]
    # Another machine: nothing was kept there.
    monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path / "elsewhere"))
    no_verification(monkeypatch)
    for loader in loaders(after):
        with pytest.warns(UserWarning, match="row group 4"):
            loader.load_state_dict(state)
        delivered += support.flat(support.ids_of(loader))
        [part] = loader.dataset.quarantined
        assert (part.path, part.unit, part.rows) == (f"{folder}/001.parquet", "row group 4", 100)
    assert sorted(delivered) == left


def test_a_resumed_epoch_is_the_same_bit_for_bit(parquet):
    folder, _ = parquet
    first = dataset_of(query_of(folder), shuffle=True)
    with pytest.warns(UserWarning, match="bad part"):
        iterator = iter(first)
    support.ids_of([next(iterator) for _ in range(7)])
    state = first.state_dict()
    rest = support.ids_of(iterator)
    second = dataset_of(query_of(folder), shuffle=True)
    with pytest.warns(UserWarning, match="bad part"):
        second.load_state_dict(state)
    assert support.ids_of(second) == rest
    # The next epoch leaves out the same.
    assert support.ids_of(second) == support.ids_of(first)


def test_states_of_other_runs_are_refused(parquet, monkeypatch):
    folder, left = parquet
    with pytest.warns(UserWarning, match="bad part"):
        skipping = dataset_of(query_of(folder)).state_dict()
    with pytest.raises(tq.CheckpointMismatchError, match='on_error="skip"'):
        dataset_of(query_of(folder), on_error="raise").load_state_dict(skipping)
    raising = dataset_of(query_of(folder), on_error="raise").state_dict()
    dataset = dataset_of(query_of(folder))
    with (
        pytest.warns(UserWarning, match="bad part"),
        pytest.raises(tq.CheckpointMismatchError, match=r'on_error="raise".*row group 4'),
    ):
        dataset.load_state_dict(raising)
    assert support.flat(support.ids_of(dataset)) == left
    # Of another query: nothing of it is taken over.
    with pytest.warns(UserWarning, match="bad part"):
        other = dataset_of(query_of(folder, "SELECT word, id FROM t")).state_dict()
    fresh = dataset_of(query_of(folder, "SELECT id, word FROM t WHERE id < 1700"))
    with pytest.raises(tq.CheckpointMismatchError, match="the query"):
        fresh.load_state_dict(other)
    assert not fresh._plan.quarantine.is_settled
    damaged = json.loads(json.dumps(skipping))
    damaged["parts"]["quarantine"]["splits"] = [[0, [0]]]
    with pytest.raises(tq.CheckpointMismatchError, match="damaged"):
        dataset_of(query_of(folder)).load_state_dict(damaged)


def test_a_state_wins_over_what_was_found(tmp_path):
    """Parts left out when a run began stay out, though the file is whole again, and no others go."""
    folder = support.write_parquet(tmp_path / "t", numbers(), files=3, row_group=GROUP)
    path = Path(folder) / "001.parquet"
    whole, stamp = path.read_bytes(), path.stat()
    left = [row for row in range(ROWS) if not 1400 <= row < 1500]

    def stamped():
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    spoil_group(path, 4)
    stamped()
    with pytest.warns(UserWarning, match="bad part"):
        state = dataset_of(query_of(folder)).state_dict()
    path.write_bytes(whole)
    stamped()
    dataset = dataset_of(query_of(folder))
    with pytest.warns(UserWarning, match="left out by the run whose state was loaded"):
        dataset.load_state_dict(state)
    assert support.flat(support.ids_of(dataset)) == left


# ------------------------------------------------------------------------------------------------
# Verification is shared and kept.


def test_verdicts_are_kept_on_disk(parquet, monkeypatch):
    folder, left = parquet
    [found] = read(query_of(folder, "SELECT id FROM t WHERE id >= 0 AND word <> ''"))
    assert support.flat(found) == left

    class Refusing:
        def __init__(self, *_):
            raise AssertionError("verified again")

    monkeypatch.setattr(bad_files, "_Verifying", Refusing)
    [again] = read(query_of(folder, "SELECT id FROM t WHERE id >= 0 AND word <> ''"))
    assert again == found


def test_progress_is_shown_where_asked_for(parquet, capsys):
    folder, _ = parquet
    with pytest.warns(UserWarning, match="bad part"):
        assert dataset_of(query_of(folder), show_progress=True).quarantined
    shown = capsys.readouterr().err.split("\r")[-1]
    assert shown.startswith("verifying: 100%")
    assert "30/30" in shown
    assert "2.9 k rows" in shown


def _train(rank, world_size, folder, cache, sql):
    """The ids that a rank of a process group delivers, and how many splits it verified."""
    import torch.distributed as dist

    os.environ["TENSORQUERY_CACHE"] = f"{cache}/{rank}"
    dist.init_process_group("gloo")
    verified = []
    count = bad_files._Verifying.count
    bad_files._Verifying.count = lambda self, ids: (verified.extend(ids), count(self, ids))[1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loader, dataset = tq.create_dataloader(
                query_of(folder, sql), on_error="skip", batch_size=64, shuffle=True
            )
            ids = [batch["id"].tolist() for batch in loader]
        listed = [(part.path, part.unit, part.rows) for part in dataset.quarantined]
        dist.barrier()
        return ids, listed, sorted(verified)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("sql", ["SELECT id, word FROM t", "SELECT id FROM t WHERE id % 3 < 2"])
def test_the_ranks_of_a_process_group_verify_together(parquet, tmp_path, sql):
    folder, left = parquet
    if "WHERE" in sql:
        left = [row for row in left if row % 3 < 2]
    found = ranks.run(_train, 3, folder, str(tmp_path / "cache"), sql)
    check_delivered([ids for ids, _, _ in found], left)
    assert {tuple(listed) for _, listed, _ in found} == {
        ((f"{folder}/001.parquet", "row group 4", 100),)
    }
    # Each split by one rank.
    assert sorted(support.flat([verified for _, _, verified in found])) == list(range(30))
