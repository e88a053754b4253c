"""The names, parameters, errors, strategies, metrics and states of torch-dataloader-utils, as `tensorquery.compat` has them."""

import dataclasses
import inspect
import json
import logging
import pickle
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
import torch_dataloader_utils as peer
import torch_dataloader_utils.observability
import torch_dataloader_utils.splits
import torch_dataloader_utils.splits.target_size
from test_compat_strategies import FiveArguments
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import ranks
import tensorquery as tq
from compat_rows import numbers, pass_on, rows_of, structured, write_files
from tensorquery import compat

PEER = {
    **{name: getattr(peer, name) for name in peer.__all__},
    **{name: getattr(peer.splits, name) for name in peer.splits.__all__},
    "TargetSizeSplitStrategy": peer.splits.target_size.TargetSizeSplitStrategy,
    "WorkerMetrics": peer.observability.WorkerMetrics,
    "EpochSummary": peer.observability.EpochSummary,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


# --- names and parameters ---


def test_every_name_of_the_peer_is_there():
    assert len(PEER) >= 12
    assert set(PEER) <= set(compat.__all__)
    assert compat.FileSplit is compat.Split


@pytest.mark.slow
def test_it_is_imported_only_when_asked_for():
    code = "import sys, tensorquery; tensorquery.create_dataloader; print('tensorquery.compat' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def parameters(function):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }


@pytest.mark.parametrize("name", ["StructuredDataset", "IcebergDataset"])
def test_parameters_and_defaults_are_the_same(name):
    ours, theirs = getattr(compat, name), PEER[name]
    assert parameters(ours.create_dataloader) == parameters(theirs.create_dataloader)
    assert list(parameters(ours.create_dataloader)) == list(parameters(theirs.create_dataloader))
    built, given = parameters(ours), parameters(theirs)
    assert list(built)[: len(given)] == list(given)
    if name == "StructuredDataset":
        # Either files or a path.
        assert built.pop("path") is built["files"] is built["format"] is None
        given = {**given, "files": None, "format": None}
    assert built == given
    for method in ("set_epoch", "get_metrics", "reset_metrics", "state_dict", "load_state_dict"):
        assert list(parameters(getattr(ours, method))) == list(parameters(getattr(theirs, method)))


@pytest.mark.parametrize(
    "name",
    ["DataFileInfo", "IcebergDataFileInfo", "RowRange", "Split", "Shard", "WorkerMetrics", "EpochSummary"],
)  # fmt: skip
def test_fields_are_the_same(name):
    def fields(kind):
        return [(field.name, field.default) for field in dataclasses.fields(kind)]

    assert fields(getattr(compat, name)) == fields(PEER[name])


@pytest.mark.parametrize("name", [name for name in PEER if name.endswith("Strategy")])
def test_strategies_have_the_same_parameters(name):
    ours, theirs = getattr(compat, name), PEER[name]
    given = parameters(theirs.generate)
    assert dict(list(parameters(ours.generate).items())[: len(given)]) == given
    if name != "SplitStrategy":
        assert list(parameters(ours)) == list(parameters(theirs))


ERRORS = (compat.CheckpointMismatchError, compat.MissingFilesError)


def test_every_public_name_says_what_it_takes():
    checked = 0
    for name in compat.__all__:
        thing = getattr(compat, name)
        members = [member for key, member in vars(thing).items() if not key.startswith("_")]
        for function in [thing, *members]:
            if not callable(function) and not isinstance(function, classmethod):
                continue
            function = getattr(function, "__func__", function)
            text = inspect.getdoc(function)
            assert text, (name, function)
            if function is compat.SplitStrategy or function in ERRORS:
                continue
            for parameter in set(parameters(function)) - {"cls"}:
                assert re.search(rf"^\s*\*{{0,2}}{parameter}: ", text, re.MULTILINE), (
                    name,
                    parameter,
                )
            checked += 1
    assert checked > 20


# --- early errors ---


EARLY = {
    "arrow without collate_fn": {"output_format": "arrow"},
    "dict without collate_fn": {"output_format": "dict"},
    "output_format": {"output_format": "pandas"},
    "format": {"format": "feather"},
    "filters": {"filters": [("id", ">", 3)]},
    "num_ranks": {"num_ranks": 0},
    "rank": {"num_ranks": 2, "rank": 2},
}


@pytest.mark.parametrize("case", EARLY)
def test_what_the_peer_refuses_at_once_is_refused_at_once(files, case):
    with pytest.raises((ValueError, TypeError)) as theirs:
        structured(files, peer, **EARLY[case])
    with pytest.raises(theirs.type) as ours:
        structured(files, **EARLY[case])
    [option, *_] = sorted(EARLY[case], reverse=True)
    assert str(EARLY[case][option]) in str(ours.value)
    if "collate_fn" in case:
        assert "collate_fn" in str(theirs.value)
        assert "collate_fn" in str(ours.value)


def test_what_cannot_be_mapped_names_itself_and_the_way(files, tmp_path):
    with pytest.raises(ValueError, match=r"partitioning=\['year'\] must be None or \"hive\""):
        structured(files, partitioning=["year"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        structured(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="files="):
        compat.StructuredDataset([], "parquet")
    with pytest.raises(ValueError, match="either files"):
        compat.StructuredDataset(format="parquet")
    with pytest.raises(ValueError, match="must be None or an object with generate"):
        structured(files, split_strategy="lpt")
    with pytest.warns(
        UserWarning, match="split_rows and shuffle have no effect beside .*RoundRobin"
    ):
        structured(
            files, split_strategy=compat.RoundRobinSplitStrategy(), split_rows=5, shuffle=True
        )


def test_progress_needs_tqdm(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    for library in (peer, compat):
        with pytest.raises(ImportError, match="pip install tqdm"):
            structured(files, library, show_progress=True)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_progress(files, capfd, num_workers):
    loader, _ = structured(
        files, show_progress=True, progress_interval_sec=0.0, num_workers=num_workers
    )
    for _ in loader:
        pass
    shown = capfd.readouterr().err
    for worker in range(max(1, num_workers)):
        assert f"rank 0, worker {worker}: 100%" in shown
    loader, _ = structured(files, show_progress=True, progress_interval_sec=3600.0)
    for _ in loader:
        pass
    # Only its beginning is due within an hour.
    assert "100%" not in capfd.readouterr().err


# --- metrics ---


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_metrics(files, num_workers, caplog):
    caplog.set_level(logging.INFO)
    found = {}
    for library in (peer, compat):
        loader, dataset = structured(files, library, num_workers=num_workers, batch_size=50)
        assert dataset.get_metrics() == []
        numbers(loader)
        found[library] = dataset.get_metrics()
        assert dataset.get_metrics() == []
    ours = found[compat]
    assert [set(vars(worker)) for worker in ours] == [set(vars(one)) for one in found[peer]]
    assert [worker.worker_id for worker in ours] == list(range(max(1, num_workers)))
    assert sum(worker.rows_read for worker in ours) == 4800
    assert sum(worker.batches_read for worker in ours) == 96
    assert all(worker.bytes_read > 1000 and worker.elapsed_sec > 0 for worker in ours)
    assert num_workers or ours[0].files_read == 3
    theirs, mine = [
        record for record in caplog.records if getattr(record, "event", "") == "epoch_done"
    ]
    assert set(vars(theirs)) == set(vars(mine))
    assert (mine.total_rows, mine.workers, mine.epoch) == (4800, len(ours), 0)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_metrics_are_there_with_the_last_batch(files, num_workers):
    loader, dataset = structured(files, num_workers=num_workers)
    batches = iter(loader)
    for _ in range(48):
        next(batches)
    assert sum(worker.rows_read for worker in dataset.get_metrics()) == 4800
    assert next(batches, None) is None
    # The end says nothing again.
    assert dataset.get_metrics() == []


def test_metrics_of_epochs_and_of_a_part_of_one(files):
    loader, dataset = structured(files)
    numbers(loader)
    dataset.set_epoch(1)
    assert dataset.get_metrics() == []
    batches = iter(loader)
    next(batches)
    del batches
    [worker] = dataset.get_metrics()
    assert (worker.rows_read, worker.batches_read) == (100, 1)
    numbers(loader)
    dataset.reset_metrics()
    assert dataset.get_metrics() == []


def test_a_summary_adds_up():
    workers = [
        compat.WorkerMetrics(0, 10, 2, 100, 1, 2.0),
        compat.WorkerMetrics(1, 30, 3, 200, 1, 4.0),
    ]
    theirs = PEER["EpochSummary"](3, workers)
    ours = compat.EpochSummary(3, workers)
    for name in ("total_rows", "total_bytes", "total_batches", "elapsed_sec", "rows_per_sec"):
        assert getattr(ours, name) == getattr(theirs, name) > 0
    assert compat.EpochSummary(0).rows_per_sec == 0


# --- epochs, states and processes ---


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the data is sorted")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_in_the_middle_loses_nothing(files, num_workers):
    options = {"shuffle": True, "num_workers": num_workers}
    loader, dataset = structured(files, **options)
    batches = iter(loader)
    seen = [number for _ in range(7) for number in next(batches)["id"].tolist()]
    state = json.loads(json.dumps(dataset.state_dict()))
    del batches
    assert state["epoch"] == 0
    for again in (options, {**options, "num_workers": 1, "batch_size": 77}):
        loader, dataset = structured(files, **again)
        dataset.load_state_dict(state)
        assert sorted(seen + numbers(loader)) == sorted(pq.read_table(files)["id"].to_pylist())
        assert dataset.state_dict()["epoch"] == 1


def test_states_of_the_peer_are_named(files):
    loader, dataset = structured(files, peer)
    numbers(loader)
    state = dataset.state_dict()
    _, dataset = structured(files)
    with pytest.raises(
        compat.CheckpointMismatchError, match=r"torch-dataloader-utils.*set_epoch\(0\)"
    ):
        dataset.load_state_dict(state)
    _, other = structured(files, columns=["id"])
    with pytest.raises(compat.CheckpointMismatchError, match="columns"):
        other.load_state_dict(dataset.state_dict())


@pytest.mark.slow
def test_a_dataloader_of_ones_own_says_what_it_does_not_know(files):
    dataset = compat.StructuredDataset(path=str(files), format="parquet", shuffle_buffer_size=10)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert sum(rows_of(loader).values()) == 4800
    assert sum(worker.rows_read for worker in dataset.get_metrics()) == 4800
    with pytest.raises(ValueError, match=r"DataLoader of your own.*StatefulDataLoader"):
        dataset.state_dict()
    dataset.set_epoch(1)
    assert dataset.state_dict()["epoch"] == 1
    stateful = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    batches = iter(stateful)
    seen = next(batches)["id"].tolist()
    state = stateful.state_dict()
    again = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    again.load_state_dict(state)
    assert len(seen + numbers(again)) == 4800


@pytest.mark.slow
def test_spawned_workers(files):
    strategy = pickle.loads(pickle.dumps(FiveArguments()))
    options = {"split_strategy": strategy, "output_format": "dict", "collate_fn": pass_on}
    dataset = compat.StructuredDataset(path=str(files), format="parquet", **options)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, collate_fn=pass_on, multiprocessing_context="spawn"
    )
    assert sum(rows_of(loader).values()) == 4800
    assert sum(worker.rows_read for worker in dataset.get_metrics()) == 4800


def contradict(rank, world_size, path):
    torch.distributed.init_process_group("gloo")
    try:
        structured(path)
    except tq.ConfigError as error:
        return str(error)


@pytest.mark.slow
def test_a_group_that_says_otherwise(files):
    found = ranks.run(contradict, 2, str(files))
    for rank, message in enumerate(found):
        assert (
            f"num_ranks=1, rank=0 contradict torch.distributed, where this process is rank {rank} of 2"
            in message
        )
