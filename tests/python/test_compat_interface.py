"""The names, parameters, errors, strategies, metrics and states of torch-dataloader-utils, as `tensorquery.compat` has them."""

import dataclasses
import inspect
import json
import logging
import pickle
import random
import re
import subprocess
import sys

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import torch_dataloader_utils as peer
import torch_dataloader_utils.observability
import torch_dataloader_utils.splits
import torch_dataloader_utils.splits.target_size
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import ranks
import tensorquery as tq
from compat_rows import assert_same_rows, pass_on, rows_of, write_files
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


def structured(path, library=compat, **options):
    options = {"format": "parquet", "num_workers": 0, "batch_size": 100, **options}
    return library.StructuredDataset.create_dataloader(path=str(path), **options)


def numbers(loader):
    return [number for batch in loader for number in batch["id"].tolist()]


# --- names and parameters ---


def test_every_name_of_the_peer_is_there():
    assert len(PEER) >= 12
    assert set(PEER) <= set(compat.__all__)
    assert compat.FileSplit is compat.Split


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


# --- strategies ---


class ThreeArguments:
    """A file each in turn; counts how often it is asked."""

    def __init__(self):
        self.asked = []

    def generate(self, files, num_workers, epoch):
        self.asked.append((num_workers, epoch))
        shards = [compat.Shard(id=n) for n in range(num_workers)]
        for number, file in enumerate(files):
            shards[(number + epoch) % num_workers].splits.append(compat.Split(file=file))
        return shards


class FiveArguments(ThreeArguments):
    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        return super().generate(list(files)[rank::num_ranks], num_workers, epoch)


class RowGroups:
    """Row groups of 300 rows in turn."""

    def generate(self, files, num_workers, epoch):
        shards = [compat.Shard(id=n) for n in range(num_workers)]
        for file in files:
            rows = pq.read_metadata(file.path).num_rows
            for first in range(0, rows, 300):
                part = compat.FileSplit(file, compat.RowRange(first, min(300, rows - first)))
                shards[first // 300 % num_workers].splits.append(part)
        return shards


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("strategy", [ThreeArguments, FiveArguments, RowGroups])
def test_strategies_of_the_users_own(files, strategy, num_workers):
    made = []

    def make(library):
        made.append(structured(files, library, split_strategy=strategy(), num_workers=num_workers))
        return made[-1][0]

    assert_same_rows(make, least=4800)
    # Each worker has read what it was dealt.
    theirs, ours = (
        sorted((worker.worker_id, worker.rows_read) for worker in dataset.get_metrics())
        for _, dataset in made
    )
    assert ours == theirs


def test_a_strategys_order_is_the_order_of_the_rows(files):
    class Backwards:
        def generate(self, files, num_workers, epoch):
            chosen = files[::-1] if epoch == 0 else files
            return [compat.Shard(0, [compat.Split(file) for file in chosen])]

    loader, dataset = structured(files, split_strategy=Backwards())
    first = numbers(loader)
    assert first[0] == 20_000
    assert first[-1] == 699
    dataset.set_epoch(1)
    assert numbers(loader) == sorted(first)
    dataset.set_epoch(0)
    assert numbers(loader) == first


def test_workers_are_given_one_answer_of_a_strategy(files):
    """Worker processes would get other ones, were they to ask by themselves."""

    class Random:
        def generate(self, files, num_workers, epoch):
            shards = [compat.Shard(n) for n in range(num_workers)]
            for file in files:
                random.SystemRandom().choice(shards).splits.append(compat.Split(file))
            return shards

    loader, dataset = structured(files, split_strategy=Random(), num_workers=2)
    for epoch in range(8):
        dataset.set_epoch(epoch)
        assert len(set(numbers(loader))) == 4800


@pytest.mark.parametrize("strategy", [ThreeArguments, FiveArguments, "size"])
def test_ranks_with_a_strategy_read_every_row_once(files, strategy):
    made = compat.SizeBalancedSplitStrategy() if strategy == "size" else strategy()
    found = []
    for rank in range(2):
        loader, _ = structured(files, split_strategy=made, num_ranks=2, rank=rank, num_workers=2)
        found += [numbers(loader)]
    assert sorted(found[0] + found[1]) == sorted(pq.read_table(files)["id"].to_pylist())
    assert abs(len(found[0]) - len(found[1])) <= 1
    if strategy is ThreeArguments:
        # Of the peer each rank reads everything.
        loader, _ = structured(files, peer, split_strategy=made, num_ranks=2, rank=0)
        assert len(numbers(loader)) == 4800
        assert (4, 0) in made.asked


def test_the_built_in_strategies_deal_alike(files):
    listed = compat.discover_files(str(files))
    assert [file.file_size for file in listed] == [
        (files / f"part-{number}.parquet").stat().st_size for number in range(3)
    ]
    theirs = [peer.DataFileInfo(file.path, file.file_size) for file in listed]
    for name in ("RoundRobinSplitStrategy", "SizeBalancedSplitStrategy"):
        for place in [(1,), (2,), (4,), (2, 3), *([(2, 3, 2, 1)] if "Round" in name else [])]:
            dealt = [
                [[split.file.path for split in shard.splits] for shard in kind().generate(known, *place)]
                for kind, known in ((getattr(compat, name), listed), (PEER[name], theirs))
            ]  # fmt: skip
            assert dealt[0] == dealt[1]
    sized = compat.TargetSizeSplitStrategy(target_rows=600)
    shards = sized.generate(listed, 2)
    parts = [split for shard in shards for split in shard.splits]
    assert sum(part.row_range.length for part in parts) == 4800
    assert max(part.row_range.length for part in parts) == 600
    loads = [sum(part.row_range.length for part in shard.splits) for shard in shards]
    assert abs(loads[0] - loads[1]) <= 600
    whole = sized.generate([compat.DataFileInfo("a.csv", 10)], 1)
    assert whole == [compat.Shard(0, [compat.Split(compat.DataFileInfo("a.csv", 10))])]
    shuffled = compat.TargetSizeSplitStrategy(target_rows=300, shuffle=True)
    assert shuffled.generate(listed, 1, 0) != shuffled.generate(listed, 1, 1)


@pytest.mark.parametrize(
    "strategy",
    [
        compat.RoundRobinSplitStrategy(shuffle=True),
        compat.SizeBalancedSplitStrategy(),
        compat.TargetSizeSplitStrategy(target_rows=600, shuffle=True, seed=5),
        compat.TargetSizeSplitStrategy("1KiB"),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.filterwarnings("ignore:the data is sorted")
def test_the_built_in_strategies_read_the_same_rows(files, strategy):
    options = {"split_strategy": strategy, "num_workers": 2}
    assert_same_rows(lambda library: structured(files, library, **options)[0], least=4800)


def dealing(shards):
    class Fixed:
        def generate(self, files, num_workers, epoch):
            return shards(files)

    return Fixed()


def parts(files, *ranges):
    return [
        compat.Shard(
            0, [compat.Split(file, rows) for file, rows in zip(files, ranges, strict=False)]
        )
    ]


WRONG = {
    "left out row group": lambda files: parts(files, compat.RowRange(0, 600)),
    "none of the 3 files": lambda files: parts([compat.DataFileInfo("other.parquet")], None),
    "twice": lambda files: parts([*files, files[0]], None, None, None, compat.RowRange(300, 10)),
    "the whole file and others": lambda files: parts([files[0], files[0]], None, None),
    "which holds no row": lambda files: parts(files, compat.RowRange(0, 0)),
    "must return a list of Shard": lambda files: {"a": 1},
    "2 shards for 1 workers": lambda files: [*parts(files), compat.Shard(1)],
}


@pytest.mark.parametrize("message", WRONG)
def test_a_strategy_that_loses_or_repeats_rows_is_refused_at_once(files, message):
    with pytest.raises(ValueError, match=message):
        structured(files, split_strategy=dealing(WRONG[message]))


def test_row_groups_that_several_ranges_touch_are_read_once(files):
    """The peer reads them with each of them."""

    def halves(files):
        cut = [[compat.RowRange(0, 450), compat.RowRange(450, 10_000)] for _ in files]
        return [
            compat.Shard(0, [compat.Split(file, rows) for file, pair in zip(files, cut, strict=True) for rows in pair])
        ]  # fmt: skip

    loader, _ = structured(files, split_strategy=dealing(halves))
    assert len(numbers(loader)) == len(set(numbers(loader))) == 4800
    loader, _ = structured(files, peer, split_strategy=dealing(halves))
    assert len(numbers(loader)) > 4800


def test_ranges_of_text_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    with pytest.raises(ValueError, match="deal it whole"):
        strategy = dealing(lambda files: parts(files, compat.RowRange(0, 1)))
        numbers(structured(tmp_path, format="csv", split_strategy=strategy)[0])


def test_filters_may_leave_nothing_of_a_file(files):
    options = {"split_strategy": ThreeArguments(), "filters": pc.field("id") >= 10_000}
    assert_same_rows(lambda library: structured(files, library, **options)[0], least=4100)


# --- metrics ---


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


def test_a_group_that_says_otherwise(files):
    found = ranks.run(contradict, 2, str(files))
    for rank, message in enumerate(found):
        assert (
            f"num_ranks=1, rank=0 contradict torch.distributed, where this process is rank {rank} of 2"
            in message
        )
