"""Promise 1 (docs/promises.md): with a store that fails, an epoch delivers each row once, or ends with one clear
`StorageError`; it never hangs and never repeats a row.

`make test-faults` tries every fault on every format with several seeds; `make test` a part of that.
"""

import faulthandler
import itertools
import sys
import threading
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import support
import tensorquery as tq
from effort import LONG
from fault_rules import LYING, PASSING, STAYING, is_clear
from iceberg_servers import fresh
from stores import HASTY, PATIENT

# Not about the machine that runs the tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:the data is sorted by id"),
]

SEEDS = range(5) if LONG else [0]
ROWS = 4000
KINDS = ["parquet", "csv", "json", "orc", "arrow", "gz"]


@pytest.fixture(autouse=True)
def deadline():
    """A hang ends the run, and says where it hung."""
    faulthandler.dump_traceback_later(600, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def tables(minio, tmp_path_factory):
    """The URL and format of each kind of table."""
    folder = tmp_path_factory.mktemp("faults")
    rng = np.random.default_rng(11)
    table = pa.table(
        {
            "id": np.arange(ROWS),
            "v": rng.normal(size=ROWS),
            # Bodies of some length.
            "s": [rng.bytes(20).hex() for _ in range(ROWS)],
        }
    )
    support.write_parquet(folder / "parquet", table, files=6, row_group=150)
    support.write_csv(folder / "csv", table, files=3)
    support.write_csv(folder / "gz", table, files=4, compress="gz")
    support.write_json(folder / "json", table, files=3)
    support.write_orc(folder / "orc", table, files=3, stripe=300)
    support.write_arrow(folder / "arrow", table, files=4)
    prefix = fresh("faults")
    urls = {kind: minio.upload(folder / kind, f"{prefix}/{kind}") for kind in KINDS}
    return {kind: (url, "csv" if kind == "gz" else kind) for kind, url in urls.items()}


def loader_of(faults, place, options, **more):
    """A loader of a table through the proxy."""
    url, kind = place
    more = {"batch_size": 64, "split_bytes": "16KiB", "output_format": "dict", **more}
    if more.get("num_workers"):
        more = {"prefetch_factor": 2, **more}
    storage = {**faults.store.options, **options}
    loader, _ = tq.create_dataloader(
        path=url, format=kind, storage_options=storage, rank=0, world_size=1, **more
    )
    return loader


def ids(loader):
    """The ids of an epoch; rows are whole, whatever happened between."""
    found = []
    for batch in loader:
        assert len(batch["id"]) == len(batch["v"]) == len(batch["s"])
        assert all(len(text) == 40 for text in batch["s"])
        found += batch["id"]
    return found


def exact(found):
    """Assert that each row came once."""
    counts = Counter(map(int, found))
    assert [one for one, times in counts.items() if times > 1] == []
    assert len(counts) == ROWS
    assert counts == Counter(range(ROWS))


def passing():
    """Pairs of a fault and a kind: all, or each fault once with Parquet and once with another kind."""
    # Compressed text is one request, without a range.
    ranged = [kind for kind in KINDS if kind != "gz"]
    kinds = {name: ranged if "bodies said" in name else KINDS for name in PASSING}
    if LONG:
        return [(name, kind) for name in PASSING for kind in kinds[name]]
    others = [kinds[name][1:] for name in PASSING]
    second = [some[number % len(some)] for number, some in enumerate(others)]
    return [pair for name, kind in zip(PASSING, second, strict=True) for pair in ((name, "parquet"), (name, kind))]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "kind"), passing())
def test_rows_are_exact_under_faults_that_pass(faults, tables, name, kind, seed):
    faults.set(*PASSING[name], seed=seed)
    loader = loader_of(faults, tables[kind], PATIENT)
    exact(ids(loader))
    hits = faults.figures()["hits"]
    assert sum(hits.values()) > 0, "the proxy made no fault"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name", list(PASSING) if LONG else ["503 in bursts", "cut bodies", "silence", "all at once"]
)
def test_workers_and_shuffles_are_exact_under_faults_that_pass(faults, tables, name, seed):
    faults.set(*PASSING[name], seed=seed)
    options = {"num_workers": 2, "shuffle": True, "shuffle_buffer_size": 300}
    loader = loader_of(faults, tables["parquet"], PATIENT, **options)
    exact(ids(loader))


def test_a_stall_within_the_time_limit_is_waited_for(faults, tables):
    faults.set({"kind": "stall", "seconds": 2, "after": 4, "times": 1})
    plain = loader_of(faults, tables["csv"], {**PATIENT, "timeout": "30s", "max_retries": "0"})
    exact(ids(plain))
    assert faults.figures()["hits"] == {"stall": 1}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2] if LONG else [0])
@pytest.mark.parametrize(
    ("name", "kind"),
    list(itertools.product(STAYING, KINDS)) if LONG else list(zip(STAYING, itertools.cycle(KINDS), strict=False)),
)  # fmt: skip
def test_faults_that_stay_end_the_epoch_with_an_error(faults, tables, name, kind, workers):
    rules, told = STAYING[name]
    loader = loader_of(faults, tables[kind], HASTY, num_workers=workers)
    # From here on, so that the epoch meets it and not the planning.
    faults.set(*rules)
    with pytest.raises(tq.StorageError, match=told) as error:
        ids(loader)
    is_clear(error.value, faults, tables[kind][0])


@pytest.mark.parametrize("name", STAYING)
def test_faults_that_stay_end_the_planning_with_an_error(faults, tables, name):
    rules, told = STAYING[name]
    faults.set(*rules)
    with pytest.raises(tq.StorageError, match=told) as error:
        loader_of(faults, tables["parquet"], HASTY)
    is_clear(error.value, faults, tables["parquet"][0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LYING)
def test_contradictions_never_change_the_rows(faults, tables, name, kind, seed):
    faults.set(*LYING[name], seed=seed)
    try:
        loader = loader_of(faults, tables[kind], HASTY)
        found = ids(loader)
    except tq.StorageError as error:
        is_clear(error, faults, tables[kind][0])
    except tq.DataError as error:
        # Where the whole object is asked for, its length is its size.
        message = str(error)
        assert (LYING[name][0]["kind"], "changed after the query was planned (size" in message) == ("length", True)  # fmt: skip
        is_clear(error, faults, tables[kind][0])
    else:
        exact(found)


# ------------------------------------------------------------------------------------------------
# In the middle of an epoch.


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [{}, {"shuffle": True, "shuffle_buffer_size": 200}])
@pytest.mark.parametrize("name", list(STAYING) if LONG else ["503", "reset in the body", "silence"])
@pytest.mark.usefixtures("two_cpus")
def test_an_epoch_that_failed_goes_on_from_its_last_state(faults, tables, name, shuffle, workers):
    options = {"num_workers": workers, "batch_size": 16, **shuffle}
    whole = loader_of(faults, tables["parquet"], HASTY, **options)
    faults.set()
    exact(ids(whole))
    requests = len(faults.log())
    loader = loader_of(faults, tables["parquet"], HASTY, **options)
    # The rest is not read ahead, so that the fault is met. One worker may be done before the other one starts: that
    # takes half of the requests, and the first batch is the other's; on a busy machine some are sent twice.
    faults.set({"kind": "hold", "after": requests * 7 // 8})
    found, state = [], None
    with pytest.raises(tq.StorageError):
        for step, batch in enumerate(loader):
            found += batch["id"]
            state = loader.state_dict()
            if step == 2:
                faults.set(*STAYING[name][0])
    assert 0 < len(found) < ROWS
    faults.set()
    resumed = loader_of(faults, tables["parquet"], HASTY, **options)
    resumed.load_state_dict(state)
    exact(found + ids(resumed))
    # And the loader that failed starts the epoch anew.
    exact(ids(loader))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_object_that_is_replaced_between_two_requests_is_an_error_that_names_it(
    faults, tables, workers
):
    url, _ = tables["parquet"]
    loader = loader_of(faults, tables["parquet"], HASTY, num_workers=workers)
    faults.set({"kind": "changed", "path": r"003\.parquet", "after": 1})
    with pytest.raises(tq.DataError, match=r"003\.parquet changed") as error:
        ids(loader)
    assert url in str(error.value)


def test_the_rest_of_a_cut_body_is_asked_for_under_the_same_etag(faults, tables):
    loader = loader_of(faults, tables["gz"], PATIENT)
    faults.set({"kind": "cut", "tries": 1})
    exact(ids(loader))
    log = faults.log()
    cuts = [one for one in log if one["fault"] == "cut" and one["sent"]]
    assert cuts
    for cut in cuts:
        first, last = _span(cut)
        rest = [one for one in log if one["target"] == cut["target"] and one is not cut]
        begun = [one for one in rest if _span(one)[0] == first + cut["sent"]]
        assert begun, (cut, rest)
        assert all(one["if_match"] for one in begun)
        assert last is None or all(_span(one)[1] == last for one in begun)


def _span(note):
    """First and last byte that a request asked for; None: to the end."""
    first, _, last = (note["range"] or "bytes=0-").removeprefix("bytes=").partition("-")
    return int(first), int(last) if last else None


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_requests_at_once_than_the_option_says(faults, tables, most):
    faults.set({"kind": "latency", "seconds": 0.01})
    loader = loader_of(faults, tables["parquet"], {**PATIENT, "max_concurrent_requests": str(most)})
    exact(ids(loader))
    assert 1 <= faults.figures()["most_at_once"] <= most


def test_requests_that_are_held_do_not_lose_their_rows(faults, tables):
    loader = loader_of(faults, tables["parquet"], {**PATIENT, "timeout": "30s"})
    faults.set({"kind": "hold", "path": r"002\.parquet"})
    timer = threading.Timer(0.5, faults.release)
    timer.start()
    exact(ids(loader))
    timer.join()
    assert faults.figures()["hits"]["hold"] > 0
