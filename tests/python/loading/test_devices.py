"""Promise: `device=` delivers the same batches on another device. One is under way while the one before is in use,
and a state counts the batches that the loop has received."""

import collections
from collections import UserDict, defaultdict
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import support
import tensorquery as tq
from tensorquery.errors import ConfigError, DataError
from tensorquery.loading.ahead import one_ahead
from tensorquery.loading.devices import copies_to

ROWS, SIZE = 1_000, 50
Pair = collections.namedtuple("Pair", ["left", "right"])
WAYS = {
    "in process": {},
    "threads": {"transform": dict, "transform_threads": 2},
    "collated": {"collate_fn": dict},
    "workers": {"num_workers": 2},
    "transform in workers": {"num_workers": 2, "transform": dict},
    "dynamic": {"num_workers": 2, "assignment": "dynamic"},
    "not counted": {"filters": "id % 2 = 0"},
    "shuffled": {"shuffle": True, "shuffle_buffer_size": 300},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    numbers = np.arange(ROWS)
    table = pa.table(
        {
            "id": numbers,
            "name": [f"row {i}" for i in numbers],
            "code": pa.array([f"c{i % 9}" for i in numbers]).dictionary_encode(),
            "some": [list(range(i % 5)) for i in numbers],
            "inner": [{"a": int(i)} for i in numbers],
        }
    )
    return support.write_parquet(
        tmp_path_factory.mktemp("devices") / "t", table, files=4, row_group=100
    )


def loader_of(folder, **options):
    chosen = {"batch_size": SIZE, "rank": 0, "world_size": 1, "columns": ["id"], **options}
    return tq.create_dataloader(path=str(folder), **chosen)[0]


class Recorded:
    """Copies within memory that write down when each begins and when it is waited for."""

    def __init__(self):
        self.log = []

    def __call__(self, batch):
        number = len(self.log)
        self.log.append(("begin", int(batch["id"][0])))
        moved = {name: value.clone() for name, value in batch.items()}
        assert number == len(self.log) - 1

        def arrived():
            self.log.append(("arrive", int(batch["id"][0])))
            return moved

        return arrived


@pytest.fixture
def recorded(monkeypatch):
    copies = Recorded()
    monkeypatch.setattr("tensorquery.loading.devices.copies_to", lambda device: copies)
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_same_batches_arrive(folder, recorded, way):
    options = WAYS[way]
    wanted = [batch["id"].tolist() for batch in loader_of(folder, **options)]
    found = [batch["id"].tolist() for batch in loader_of(folder, **options, device="meta")]
    assert sorted(found) == sorted(wanted)
    if way != "dynamic":
        assert found == wanted
    firsts = [ids[0] for ids in found]
    assert [first for what, first in recorded.log if what == "begin"] == firsts
    assert [first for what, first in recorded.log if what == "arrive"] == firsts


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in process", "threads", "workers"])
def test_the_next_copy_is_under_way_but_not_before_the_first_batch(folder, recorded, way):
    seen = []
    for number, _ in enumerate(loader_of(folder, **WAYS[way], device="meta")):
        seen.append(sum(what == "begin" for what, _ in recorded.log) - number - 1)
    assert seen == [0] + [1] * (ROWS // SIZE - 2) + [0]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 7, ROWS // SIZE - 1])
@pytest.mark.parametrize("way", ["in process", "threads", "workers", "not counted", "shuffled"])
def test_a_state_does_not_count_what_is_on_its_way(folder, recorded, way, steps):
    options = WAYS[way]
    whole = [batch["id"].tolist() for batch in loader_of(folder, **options)]
    steps = min(steps, len(whole) - 1)
    plain, moved = loader_of(folder, **options), loader_of(folder, **options, device="meta")
    left, right = iter(plain), iter(moved)
    begun = []
    for _ in range(steps):
        next(left)
        begun.append(next(right)["id"].tolist())
        assert moved.state_dict() == plain.state_dict()
    state = moved.state_dict()
    rest = loader_of(folder, **options, device="meta")
    rest.load_state_dict(state)
    assert begun + [batch["id"].tolist() for batch in rest] == whole


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_what_comes_before_an_error_arrives(tmp_path, recorded, workers):
    values = [None if i == 700 else i for i in range(ROWS)]
    folder = support.write_parquet(
        tmp_path / "t", pa.table({"id": pa.array(values, pa.int64())}), files=1, row_group=ROWS
    )
    received = []
    with pytest.raises(DataError, match="1 null"):
        for batch in loader_of(folder, num_workers=workers, device="meta"):
            received.extend(batch["id"].tolist())
    assert received == list(range(700))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_tensor_moves(folder, workers):
    columns = ["id", "name", "code", "some", "inner"]
    [plain, *_] = loader_of(folder, columns=columns, num_workers=workers)
    [moved, *_] = loader_of(folder, columns=columns, num_workers=workers, device="meta")
    assert moved.keys() == plain.keys()
    assert moved["name"] == plain["name"]
    assert moved["code"].categories == plain["code"].categories
    for tensor, other in [
        (moved["id"], plain["id"]),
        (moved["code"].codes, plain["code"].codes),
        (moved["inner"]["a"], plain["inner"]["a"]),
        (moved["some"].values(), plain["some"].values()),
    ]:
        assert (tensor.device.type, tensor.dtype, tensor.shape) == ("meta", other.dtype, other.shape)  # fmt: skip
    batch = {"pair": Pair(torch.ones(2), [torch.ones(1), "text"]), "none": None, "text": ["a", "b"]}
    found = copies_to(torch.device("meta"))(batch)()
    assert isinstance(found["pair"], Pair)
    assert found["pair"].left.device.type == found["pair"].right[0].device.type == "meta"
    assert (found["pair"].right[1], found["none"], found["text"]) == ("text", None, ["a", "b"])


class Rows(list):
    """As a collate function may have its own."""


@pytest.mark.parametrize(
    ("batch", "tensor"),
    [
        (defaultdict(list, x=torch.ones(2)), lambda batch: batch["x"]),
        (UserDict(x=torch.ones(2)), lambda batch: batch["x"]),
        (MappingProxyType({"x": torch.ones(2)}), lambda batch: batch["x"]),
        (Rows([torch.ones(2)]), lambda batch: batch[0]),
        (pack_sequence([torch.ones(2), torch.ones(1)]), lambda batch: batch.data),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_tensors_move_in_whatever_holds_them(batch, tensor):
    moved = copies_to(torch.device("meta"))(batch)()
    assert isinstance(moved, dict if isinstance(batch, MappingProxyType) else type(batch))
    assert tensor(moved).device.type == "meta"
    assert tensor(batch).device.type == "cpu"
    if isinstance(batch, PackedSequence):
        assert moved.batch_sizes.device.type == "cpu"


def test_epochs_and_iterations_that_are_broken_off(folder, recorded):
    loader = loader_of(folder, device="meta", shuffle=True)
    epochs = [[batch["id"].tolist() for batch in loader] for _ in range(2)]
    assert epochs[0] != epochs[1]
    next(iter(loader))
    assert sorted(support.flat(batch["id"].tolist() for batch in loader)) == list(range(ROWS))


def test_where_batches_stay(folder):
    for device in (None, "cpu", torch.device("cpu")):
        loader = loader_of(folder, device=device)
        assert loader._copies is None
        assert next(iter(loader))["id"].device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device='gpu' is no device of torch"),
        ({"device": 1.5}, "device must be a torch.device, its name or a number, not 1.5"),
        ({"device": "cuda:99"}, r"device='cuda:99': torch finds \d+ CUDA device"),
        ({"device": "xla"}, "device='xla' cannot be used here: .*name another device"),
        ({"device": "meta", "output_format": "numpy"}, "device='meta' is for tensors; choose"),
    ],
)
def test_devices_that_cannot_be(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        loader_of(folder, **options)


def test_one_ahead_by_itself():
    log = []

    def begin(item):
        log.append(item)
        return lambda: -item

    assert list(one_ahead(iter(()), begin)) == []
    assert list(one_ahead(iter([1]), begin)) == [-1]
    assert list(one_ahead(iter([1, 2, 3]), begin)) == [-1, -2, -3]

    def failing():
        yield from (1, 2)
        raise DataError("bad")

    found = []
    with pytest.raises(DataError, match="bad"):
        found.extend(one_ahead(failing(), begin))
    items = one_ahead(failing(), begin)
    assert [next(items), next(items)] == [-1, -2]
    with pytest.raises(DataError, match="bad"):
        next(items)


def test_blocks_are_pinned_as_a_whole(folder, monkeypatch):
    """Without a GPU nothing can be pinned; a copy stands in for pinned memory."""
    pinned = []

    def pin(tensor):
        pinned.append(tensor.nbytes)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr("tensorquery.loading.dataloader.QueryDataLoader._pinner", lambda self: dict)
    columns = ["id", "name", "code", "some", "inner"]
    found = list(loader_of(folder, columns=columns))
    assert len(pinned) == len(found) == ROWS // SIZE
    monkeypatch.undo()
    for batch, plain in zip(found, loader_of(folder, columns=columns), strict=True):
        assert torch.equal(batch["id"], plain["id"])
        assert torch.equal(batch["some"].values(), plain["some"].values())
        assert batch["name"] == plain["name"]
        storage = batch["id"].untyped_storage().data_ptr()
        assert storage == batch["inner"]["a"].untyped_storage().data_ptr()


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch.cuda can use")
def test_on_a_gpu(folder):
    """Each step computes while the next batch is copied, and sums what it got: a copy that came too late would show."""
    noise = torch.ones(1_000, 1_000, device="cuda")
    for options in WAYS.values():
        wanted = sorted(int(batch["id"].sum()) for batch in loader_of(folder, **options))
        loader = loader_of(folder, **options, device="cuda")
        assert loader.pin_memory
        sums = []
        for batch in loader:
            assert batch["id"].device.type == "cuda"
            for _ in range(20):
                noise = noise @ noise / 1_000
            sums.append(batch["id"].sum())
            del batch
        assert sorted(int(each) for each in sums) == wanted
