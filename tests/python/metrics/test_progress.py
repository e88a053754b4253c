"""`show_progress=True` shows the running work and its progress; bars close however an iteration ends, and cost
nothing."""

import io
import re
import sys
import threading
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tqdm

import ranks
import support
import tensorquery as tq
from tensorquery.distributed.topology import Topology
from tensorquery.loading import plan as planning
from tensorquery.metrics import progress

ROWS = 4_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("progress")
    for number in range(4):
        rows = np.arange(number * ROWS // 4, (number + 1) * ROWS // 4)
        pq.write_table(pa.table({"id": rows}), path / f"{number}.parquet", row_group_size=100)
    return path


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    assert len(tqdm.tqdm._instances) == 0


def loader_of(source, **options):
    options = {"batch_size": 100, "show_progress": True, **options}
    if isinstance(source, tq.Query):
        return tq.create_dataloader(source, **options)
    return tq.create_dataloader(path=source, **options)


def in_thread(work, *arguments):
    """The result of a call in a thread of its own, which must end."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work(*arguments)), daemon=True)
    thread.start()
    thread.join(30)
    assert results, f"{work} waits for ever, or failed"
    return results[0]


def bars_of(text):
    """The last thing that each bar has shown, by its name."""
    shown = {}
    for line in re.split(r"[\r\n]", text):
        name, colon, rest = line.partition(":")
        if colon and "\x1b" not in name:
            shown[name.strip()] = rest
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_a_bar(folder, capsys, workers):
    loader, dataset = loader_of(folder, num_workers=workers)
    for epoch in range(2):
        for _ in loader:
            pass
        last = bars_of(capsys.readouterr().err)[f"epoch {epoch}"]
        assert "100%" in last
        assert "4.00k/4.00k [" in last
        assert "rows/s, wait " in last
    assert dataset.metrics()["rows"] == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bar_closes_where_the_loop_is_left(folder, capsys, workers):
    loader, _ = loader_of(folder, num_workers=workers)
    for number, _ in enumerate(loader):
        if number == 9:
            break
    assert " 1.00k/4.00k [" in bars_of(capsys.readouterr().err)["epoch 0"]
    assert len(tqdm.tqdm._instances) == 0
    # The epoch goes on, from where it was left.
    state = loader.state_dict()
    loader.load_state_dict(state)
    for number, _ in enumerate(loader):
        if number == 4:
            break
    assert "1.50k/4.00k [" in bars_of(capsys.readouterr().err)["epoch 0"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bar_closes_after_an_error(folder, workers):
    loader, _ = loader_of(folder, num_workers=workers, transform=support.fail)
    with pytest.raises(ZeroDivisionError):
        list(loader)
    assert len(tqdm.tqdm._instances) == 0


def test_a_newer_iteration_closes_the_bar_of_the_older(folder):
    loader, _ = loader_of(folder)
    first = iter(loader)
    next(first)
    assert len(tqdm.tqdm._instances) == 1
    second = iter(loader)
    assert len(tqdm.tqdm._instances) == 0
    next(second)
    assert len(tqdm.tqdm._instances) == 1
    loader.load_state_dict(loader.state_dict())
    assert len(tqdm.tqdm._instances) == 0


def test_rows_are_not_counted_for_a_bar(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path))
    query = tq.Session().sql(f"SELECT id FROM '{folder}' WHERE id % 3 = 0")
    loader, dataset = loader_of(query)
    for _ in loader:
        pass
    bars = bars_of(capsys.readouterr().err)
    assert set(bars) == {"epoch 0"}
    assert "%|" not in bars["epoch 0"]
    assert re.search(r" 1\.33k rows \[", bars["epoch 0"])
    # Where somebody has counted, the bar knows.
    assert len(dataset) == 14
    assert "counting rows" in bars_of(capsys.readouterr().err)


def test_a_bar_is_drawn_by_time_and_not_by_batch(folder, monkeypatch):
    calls = Counter()
    show = progress.EpochBar.show

    def counted(self, rows, share):
        calls["show"] += 1
        show(self, rows, share)

    monkeypatch.setattr(progress.EpochBar, "show", counted)
    loader, _ = loader_of(folder, batch_size=1)
    began = time.monotonic()
    assert sum(1 for _ in loader) == ROWS
    assert 1 <= calls["show"] <= 2 + (time.monotonic() - began) / 0.1


@pytest.mark.parametrize("asked", [True, "all"])
def test_of_the_ranks_of_a_machine_the_first_one_shows_bars(folder, capsys, monkeypatch, asked):
    for rank in range(2):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        loader, _ = loader_of(folder, rank=rank, world_size=2, show_progress=asked)
        for _ in loader:
            pass
        bars = bars_of(capsys.readouterr().err.replace("\x1b[A", ""))
        assert (f"epoch 0, rank {rank}" in bars) == (rank == 0 or asked == "all")


def shown_by_a_rank(rank, world_size, folder, asked):
    sys.stderr = stream = io.StringIO()
    loader, _ = loader_of(folder, show_progress=asked)
    rows = sum(len(batch["id"]) for batch in loader)
    return rows, stream.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, "all"])
def test_bars_of_real_ranks(folder, asked):
    (rows, first), (others, second) = ranks.run(shown_by_a_rank, 2, folder, asked)
    assert rows + others == ROWS
    assert "epoch 0, rank 0: 100%" in first
    # In the line below.
    assert ("\nepoch 0, rank 1: 100%" in second.replace("\r", "")) == (asked == "all")


@pytest.mark.slow
def test_counting_staging_and_planning_have_bars(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path / "stages"))
    session = tq.Session()
    session.register_parquet("t", folder)
    loader_of(session.sql("SELECT id FROM t WHERE id % 3 = 1"), rank=0, world_size=2)
    _, counted = loader_of(session.sql("SELECT id FROM t WHERE id % 3 = 1"), rank=0, world_size=2)
    assert counted.num_rows
    bars = bars_of(capsys.readouterr().err)
    assert "100%" in bars["counting rows"]
    assert "1.3 k rows" in bars["counting rows"]

    _, ordered = loader_of(session.sql("SELECT id FROM t ORDER BY id"))
    assert len(ordered.stages) == 1
    shown = capsys.readouterr().err
    assert re.search(r"building stage 1 of 1: 0\.0 M rows, 0 MiB \[00:0\d\]", shown)

    _, permuted = loader_of(session.table("t"), shuffle="global")
    assert permuted.num_rows == ROWS
    assert "100%" in bars_of(capsys.readouterr().err)["staging rows"]

    find_plan = planning.find_plan

    def slow(*arguments, **options):
        time.sleep(1.2)
        return find_plan(*arguments, **options)

    monkeypatch.setattr(planning, "find_plan", slow)
    loader_of(session.table("t"))
    assert re.search(r"planning \[00:01\]", capsys.readouterr().err)
    loader_of(session.table("t"), show_progress=False)
    assert capsys.readouterr().err == ""


def test_a_lock_that_an_interrupt_left_holds_no_bar_up(folder, capsys, monkeypatch):
    """Ctrl-C while tqdm draws leaves its lock held; bars of other threads and of forked workers would wait for ever."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    bar = tqdm.tqdm(total=2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bar, "display", interrupted)
        bar.refresh()
    monkeypatch.setattr(
        planning,
        "find_plan",
        lambda *a, slow=planning.find_plan, **o: time.sleep(0.7) or slow(*a, **o),
    )
    try:
        assert not in_thread(tqdm.std.TqdmDefaultWriteLock.th_lock.acquire, False)
        loader, _ = in_thread(loader_of, folder)
        assert "planning [" in capsys.readouterr().err
        in_thread(list, loader)
        assert "100%" in bars_of(capsys.readouterr().err)["epoch 0"]
    finally:
        tqdm.tqdm.get_lock().release()
        bar.close()


def test_what_is_over_soon_is_not_said(folder, capsys):
    loader_of(folder)
    assert "planning" not in capsys.readouterr().err


@pytest.mark.slow
def test_an_error_while_something_runs_leaves_the_bar(tmp_path):
    with pytest.raises(LookupError), progress.running("searching", True):
        raise LookupError
    with pytest.raises(tq.TableNotFoundError):
        loader_of(tmp_path / "nothing")


def test_without_tqdm_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"pip install 'tensorquery\[progress\]'"):
        loader_of(folder)
    with pytest.raises(ImportError, match=r"show_progress=True needs tqdm"):
        tq.QueryDataset(tq.Session().sql(f"SELECT id FROM '{folder}'"), show_progress=True)
    loader, _ = loader_of(folder, show_progress=False)
    assert len(loader) == ROWS / 100


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_other_values_are_refused(folder, wrong):
    with pytest.raises(tq.ConfigError, match=r'show_progress=.* must be True .*"all"'):
        loader_of(folder, show_progress=wrong)


def test_whoever_has_no_local_rank_shows_bars():
    assert progress.shows(True, Topology(3, 8))
    assert not progress.shows(False, Topology(0, 1))
    assert not progress.shows(True, Topology(3, 8, 1, 2))
    assert progress.shows("all", Topology(3, 8, 1, 2))
