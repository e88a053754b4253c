"""Strategies of torch-dataloader-utils and of its users deal the same rows through `tensorquery.compat`, each row once."""

import random

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch_dataloader_utils as peer
import torch_dataloader_utils.splits
import torch_dataloader_utils.splits.target_size

from compat_rows import assert_same_rows, numbers, structured, write_files
from tensorquery import compat

PEER = {
    "RoundRobinSplitStrategy": peer.RoundRobinSplitStrategy,
    "SizeBalancedSplitStrategy": peer.SizeBalancedSplitStrategy,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_workers_are_given_one_answer_of_a_strategy(files):
    """Worker processes that asked by themselves would get other shards."""

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        compat.RoundRobinSplitStrategy(shuffle=True),
        compat.SizeBalancedSplitStrategy(),
        compat.TargetSizeSplitStrategy(target_rows=600, shuffle=True, seed=5),
        compat.TargetSizeSplitStrategy("1KiB"),
        # Those of the peer go, too.
        peer.RoundRobinSplitStrategy(shuffle=True),
        peer.splits.target_size.TargetSizeSplitStrategy(target_rows=600, shuffle=True),
    ],
    ids=lambda strategy: f"{type(strategy).__module__.partition('.')[0]}.{type(strategy).__name__}",
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
    """The peer reads a shared row group with each of the ranges."""

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


def test_a_strategy_that_derives_from_a_built_in_one_is_asked(files):
    class Reversed(compat.TargetSizeSplitStrategy):
        def generate(self, *arguments, **place):
            shards = super().generate(*arguments, **place)
            for shard in shards:
                shard.splits.sort(key=lambda split: -split.row_range.offset)
            return shards

    loader, _ = structured(files, split_strategy=Reversed(target_rows=300))
    found = numbers(loader)
    assert sorted(found) == sorted(pq.read_table(files)["id"].to_pylist())
    assert found[0] == 22_400


@pytest.mark.filterwarnings("ignore:the data is sorted")
def test_the_seed_of_a_strategy_is_the_seed_of_the_dataset(files):
    def order(seed, **options):
        strategy = compat.TargetSizeSplitStrategy(target_rows=300, shuffle=True, seed=seed)
        return numbers(structured(files, split_strategy=strategy, **options)[0])

    plain = numbers(structured(files, shuffle=True, shuffle_seed=3, split_rows=300)[0])
    assert order(3) == order(3, shuffle_seed=8) == plain != order(8)
