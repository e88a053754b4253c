"""Promises 1, 4, 5 and 8 (docs/promises.md) without torch: a program that has NumPy alone, or pyarrow besides, gets the rows, states
and resumes that it gets with torch, and what needs torch says so."""

import json
import textwrap
import tomllib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import support
import tensorquery as tq
import torchless
from pages import ROOT, programs, snippets
from tensorquery.loading.loader import QueryLoader

ROWS = 403


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of 403 rows, and what programs without torch find."""
    found = tmp_path_factory.mktemp("torchless")
    ids = np.arange(ROWS)
    columns = {
        "id": ids,
        "k": ids % 3,
        "x": (ids / ROWS).astype("f4"),
        "s": [f"w{number % 7}" for number in ids],
        "tokens": pa.array([[*range(number % 5)] for number in ids], pa.list_(pa.int32())),
    }
    support.write_parquet(found / "t", pa.table(columns), files=4, row_group=17)
    return found


# ------------------------------------------------------------------------------------------------
# The loader without torch delivers what the other one does: in this process, which has torch.

DEALS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(2, 90),
        "shuffle": st.sampled_from([False, True, "global"]),
        "shuffle_seed": st.integers(0, 3),
        "remainder": st.sampled_from(["even", "drop", "pad", "uneven"]),
        "split_rows": st.sampled_from([None, 20, 150]),
    }
)


def plain(query, **options):
    """A loader of the class that there is without torch, over the dataset of another one."""
    _, dataset = tq.create_dataloader(query, output_format="numpy", **options)
    return QueryLoader(dataset)


def read(loader, most=None):
    """Ids of batches, and the state after the last of them."""
    found, batches = [], iter(loader)
    while most is None or len(found) < most:
        batch = next(batches, None)
        if batch is None:
            break
        found.append(batch["id"].tolist())
    return found, loader.state_dict()


def steps(loader):
    """Ids of each batch of an epoch, and the state after it."""
    return [(batch["id"].tolist(), loader.state_dict()) for batch in loader]


@pytest.fixture(scope="module")
def query(folder):
    session = tq.Session()
    session.register_parquet("t", folder / "t")
    return session.sql("SELECT id, x FROM t WHERE k <> 1 OR id < 50")


WANTED = [number for number in range(ROWS) if number % 3 != 1 or number < 50]


@pytest.mark.slow
@settings(max_examples=15)
@given(DEALS, st.integers(1, 4), st.integers(1, 6))
def test_it_delivers_the_same_batches_and_states(query, deal, world_size, stop):
    ids = []
    for rank in range(world_size):
        place = {"rank": rank, "world_size": world_size, **deal}
        theirs, _ = tq.create_dataloader(query, output_format="numpy", **place)
        mine, wanted = plain(query, **place), steps(theirs)
        assert steps(mine) == wanted
        ids += [number for batch, _ in wanted for number in batch]
        if stop < len(wanted):
            resumed = plain(query, **place)
            resumed.load_state_dict(json.loads(json.dumps(wanted[stop - 1][1])))
            assert steps(resumed) == wanted[stop:]
        # The epoch that follows.
        assert steps(mine) == steps(theirs)
    if deal["remainder"] in ("even", "uneven"):
        assert sorted(ids) == WANTED
    else:
        assert {*ids} <= {*WANTED}


@pytest.mark.slow
@settings(max_examples=15)
@given(DEALS, st.integers(1, 3), st.integers(1, 4))
def test_it_resumes_on_another_topology(query, deal, before, after):
    deal = {**deal, "remainder": "even"}
    seen, state = [], None
    for rank in range(before):
        batches, state = read(plain(query, rank=rank, world_size=before, **deal), 2)
        seen += [number for batch in batches for number in batch]
    if state["epoch"] == 0:
        for rank in range(after):
            loader = plain(query, rank=rank, world_size=after, **deal)
            loader.load_state_dict(json.loads(json.dumps(state)))
            seen += [number for batch in read(loader)[0] for number in batch]
    assert sorted(seen) == WANTED


def test_it_has_what_users_use(query):
    loader = plain(query, batch_size=50, shuffle=True)
    rows = [number for batch in loader for number in batch["id"].tolist()]
    assert len(loader) == -(-len(rows) // 50)
    assert loader.dataset.metrics()["rows"] == len(rows)
    assert loader.statistics.epoch == 0
    assert loader.state_dict()["epoch"] == 1
    loader.set_epoch(0)
    assert [number for batch in loader for number in batch["id"].tolist()] == rows
    # A newer iterator closes the one before, as of a DataLoader.
    first = iter(loader)
    next(first)
    iter(loader)
    with pytest.raises(tq.ConfigError, match="a newer one was started"):
        next(first)
    collated = QueryLoader(loader.dataset, lambda batch: len(batch["id"]))
    assert sum(collated) == len(rows)


# ------------------------------------------------------------------------------------------------
# In processes that have no torch.

PROLOGUE = """
import importlib.util, json, sys
import tensorquery as tq
assert importlib.util.find_spec("torch") is None
"""


def run(folder, code, *arguments, **options):
    return torchless.run(folder, PROLOGUE + textwrap.dedent(code), *arguments, **options)


@pytest.mark.slow
def test_numpy_alone_is_enough(folder):
    """Every public name but those of torch's own classes is there, and a loop with states and metrics runs."""
    code = """
    # What is not asked for is not imported: NumPy alone takes longer than the rest.
    assert "numpy" not in sys.modules
    assert importlib.util.find_spec("pyarrow") is None
    for name in tq.__all__:
        getattr(tq, name)
    assert not {"QueryDataLoader", "QueryTrainerMixin"} & {*tq.__all__}
    session = tq.Session()
    session.register_parquet("t", "t")
    query = session.sql("SELECT id, x, s FROM t WHERE k = 0")
    options = {"output_format": "numpy", "shuffle": True}
    loader, dataset = tq.create_dataloader(query, batch_size=16, transform=dict, transform_threads=2, **options)
    assert type(loader) is tq.QueryLoader
    iterator = iter(loader)
    seen = [number for _ in range(3) for number in next(iterator)["id"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(3):
        rest, other = tq.create_dataloader(query, batch_size=7, rank=rank, world_size=3, **options)
        rest.load_state_dict(state)
        own = [number for batch in rest for number in batch["id"].tolist()]
        assert other.metrics()["rows"] == len(own)
        seen += own
    print(json.dumps([sorted(seen), tq.QueryRows(query)[3]["s"]]))
    """
    seen, text = json.loads(run(folder, code, packages=torchless.NUMPY))
    assert seen == [*range(0, ROWS, 3)]
    assert text == "w2"


@pytest.mark.slow
def test_receipts(folder):
    code = """
    session = tq.Session()
    session.register_parquet("t", "t")
    query = session.sql("SELECT id, s FROM t WHERE k = 0")
    options = {"output_format": "numpy", "shuffle": True}
    loader, dataset = tq.create_dataloader(query, batch_size=16, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state, receipts = loader.state_dict(), [dataset.receipt("a")]
    later = []
    for rank in range(2):
        rest, other = tq.create_dataloader(query, batch_size=7, rank=rank, world_size=2, **options)
        rest.load_state_dict(state)
        for batch in rest:
            pass
        later.append(other.receipt("b", after=receipts))
    receipts = json.loads(json.dumps(receipts + later))
    [place] = tq.seen(receipts, "id = 30", query)
    print(json.dumps([tq.verify(receipts, query).is_exact, place.epoch, dataset.trace(step=0).rows]))
    """
    is_exact, epoch, traced = json.loads(run(folder, code))
    assert is_exact
    assert epoch == 0
    assert traced == 16


@pytest.mark.slow
def test_other_formats_packs_mixtures_and_failing_rows(folder):
    code = """
    import numpy as np, pyarrow as pa
    session = tq.Session()
    session.register_parquet("t", "t")
    query = session.sql("SELECT id, s FROM t")
    found = {}
    loader, _ = tq.create_dataloader(query, output_format="arrow", batch_size=100)
    assert all(type(batch) is pa.RecordBatch for batch in loader)
    found["arrow"] = sorted(number for batch in loader for number in batch["id"].to_pylist())
    loader, _ = tq.create_dataloader(query, output_format="dict", batch_size=100, shuffle="global")
    found["dict"] = sorted(number for batch in loader for number in batch["id"])
    parts = [session.sql(f"SELECT id FROM t WHERE k = {k}") for k in range(2)]
    mixed = tq.mix([(part, 1) for part in parts])
    loader, _ = tq.create_dataloader(mixed, output_format="numpy", batch_size=10, collate_fn=lambda batch: batch["id"])
    found["mixed"] = sum(map(len, loader))

    def picky(batch):
        if (batch["id"] % 100 == 7).any():
            raise ValueError("seven")
        return batch

    loader, dataset = tq.create_dataloader(query, output_format="numpy", batch_size=50, transform=picky, on_transform_error="skip")
    found["skipped"] = sorted(number for batch in loader for number in batch["id"].tolist())
    found["failed"] = len(dataset.failed_rows)
    loader, dataset = tq.create_dataloader(
        "SELECT tokens FROM t", session=session, output_format="numpy", batch_size=8, pack=tq.Pack(columns=["tokens"], length=16)
    )
    packs = list(loader)
    assert all(type(pack["tokens"]) is np.ndarray for pack in packs)
    found["tokens"] = sum(int((pack["document_ids"] >= 0).sum()) for pack in packs)
    print(json.dumps(found))
    """
    found = json.loads(run(folder, code))
    assert found["arrow"] == found["dict"] == [*range(ROWS)]
    assert found["mixed"] > 200
    assert found["skipped"] == [number for number in range(ROWS) if number % 100 != 7]
    assert found["failed"] == ROWS - len(found["skipped"]) == 4
    assert found["tokens"] == sum(number % 5 for number in range(ROWS))


@pytest.mark.slow
def test_progress_bars(folder):
    code = """
    loader, _ = tq.create_dataloader(path="t", columns=["id"], output_format="numpy", show_progress=True)
    print(sum(len(batch["id"]) for batch in loader))
    """
    process = torchless.start(folder, PROLOGUE + textwrap.dedent(code), packages=torchless.BARS)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, f"{ROWS}\n")
    assert "epoch 0" in errors


NEEDS = {
    "default": (
        {},
        "output_format='torch', the default, needs torch",
        "'numpy', 'jax', 'arrow' or 'dict'",
    ),
    "torch": ({"output_format": "torch"}, "pip install torch", "'numpy'"),
    "kjt": (
        {"output_format": "kjt", "keyed": {"k": ["id"]}},
        "output_format='kjt'",
        "pip install torch",
    ),
    "workers": ({"num_workers": 2}, "num_workers=2", "pip install torch"),
    "all workers": ({"num_workers": None}, "num_workers=None", "pip install torch"),
    "device": ({"device": "cuda"}, "device='cuda'", "pip install torch"),
    "pinned": ({"pin_memory": True}, "pin_memory=True", "pip install torch"),
    "jax": ({"output_format": "jax"}, 'output_format="jax" needs JAX', "pip install jax"),
    "nobody": ({"batchsize": 3}, "batchsize", "batch_size"),
}


@pytest.mark.slow
def test_what_needs_torch_says_so(folder):
    code = """
    found = {}
    for name, options in json.loads(sys.argv[1]).items():
        try:
            tq.create_dataloader(path="nothing-is-read", **options)
        except (ImportError, tq.ConfigError) as error:
            found[name] = [type(error).__name__, str(error)]
    for name in ("QueryDataLoader", "QueryTrainerMixin"):
        try:
            getattr(tq, name)
        except ImportError as error:
            found[name] = [type(error).__name__, str(error)]
    try:
        import tensorquery.compat
    except ImportError as error:
        found["compat"] = [type(error).__name__, str(error)]
    print(json.dumps(found))
    """
    asked = {
        name: options if name == "default" else {"output_format": "numpy", **options}
        for name, (options, *_) in NEEDS.items()
    }
    found = json.loads(run(folder, code, json.dumps(asked)))
    assert {*found} == {*NEEDS, "QueryDataLoader", "QueryTrainerMixin", "compat"}
    for name, (_, *words) in NEEDS.items():
        kind, message = found[name]
        assert kind == ("ConfigError" if name == "nobody" else "ImportError"), found[name]
        for word in words:
            assert word in message
    for name in ("QueryDataLoader", "QueryTrainerMixin", "compat"):
        assert "needs PyTorch: pip install torch" in found[name][1]


@pytest.mark.slow
def test_a_state_crosses_from_torch_and_back(folder, query):
    """Same query, options and format: the state of a process with torch goes on in one without, and the other way."""
    options = {"batch_size": 20, "shuffle": True, "output_format": "numpy"}
    loader, _ = tq.create_dataloader(query, **options)
    seen, state = read(loader, 4)
    code = """
    session = tq.Session()
    session.register_parquet("t", sys.argv[2])
    query = session.sql("SELECT id, x FROM t WHERE k <> 1 OR id < 50")
    loader, _ = tq.create_dataloader(query, batch_size=20, shuffle=True, output_format="numpy")
    loader.load_state_dict(json.loads(sys.argv[1]))
    batches = iter(loader)
    seen = [next(batches)["id"].tolist() for _ in range(3)]
    print(json.dumps([seen, loader.state_dict()]))
    """
    more, state = json.loads(run(folder, code, json.dumps(state), folder / "t"))
    loader.load_state_dict(state)
    rest, _ = read(loader)
    whole, _ = read(tq.create_dataloader(query, **options)[0])
    assert seen + more + rest == whole


@pytest.mark.slow
def test_the_page_runs_without_torch(tmp_path):
    """The snippets and the program of two ranks, as the page has them."""
    page = "docs/without-torch.md"
    own = programs(page)
    assert set(own) == {"ranks.py", "jax_loop.py"}
    plain = [snippet for snippet in snippets(page) if snippet not in own.values()]
    assert len(plain) == 2
    out = torchless.run(tmp_path, PROLOGUE + "\n".join(plain))
    assert out == "y = 3.00 x + 1.00, 1000 rows in the last epoch\n"
    program = tmp_path / "ranks.py"
    program.write_text(own["ranks.py"])
    first, second = torchless.run_ranks(tmp_path, program, 2)
    assert first == "rank 0 of 2: 5 steps, 250 rows\n"
    assert second == "rank 1 of 2: 5 steps, 250 rows\n"
    assert list((tmp_path / "meeting-place").iterdir()) == []


def test_the_package_asks_for_numpy_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [each.partition(">")[0] for each in project["dependencies"]] == ["numpy"]
    assert any(each.startswith("jax") for each in project["optional-dependencies"]["jax"])
