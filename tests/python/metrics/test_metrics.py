"""`metrics()` describes an epoch, for each worker and in all; logs report it, and warn about its bottleneck."""

import json
import logging
import re
import time
from pathlib import Path

import matplotlib
import matplotlib.pyplot
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import get_worker_info

import ranks
import tensorquery as tq
from tensorquery.metrics import epoch_report
from tensorquery.metrics.counters import CORE_COUNTS
from tensorquery.metrics.loader_metrics import FIELDS, Metrics
from tensorquery.metrics.time_series import MOST_SAMPLES, Samples

matplotlib.use("Agg")

ROOT = Path(__file__).parents[3]
FILES, ROWS = 4, 12_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("metrics")
    for number in range(FILES):
        rows = np.arange(number * ROWS // FILES, (number + 1) * ROWS // FILES)
        table = pa.table({"id": rows, "x": rows * 0.5})
        pq.write_table(table, path / f"{number}.parquet", row_group_size=500)
    return path


def loader_of(folder, **options):
    options = {"batch_size": 100, **options}
    return tq.create_dataloader(path=folder, **options)


def check_whole(metrics, workers):
    """These are the metrics of all rows."""
    assert metrics["rows"] == ROWS
    assert metrics["batches"] == ROWS / 100
    assert metrics["files"] >= FILES
    assert metrics["bytes_read"] > 0
    assert metrics["requests"] >= FILES
    assert metrics["decode_seconds"] > 0
    assert metrics["convert_seconds"] > 0
    assert metrics["buffered_rows"] == 0
    assert 0 < metrics["input_seconds"] < metrics["elapsed_seconds"]
    assert metrics["wait_seconds"] <= metrics["input_seconds"]
    assert metrics["wait_share"] == metrics["input_seconds"] / metrics["elapsed_seconds"]
    assert len(metrics.workers) == workers
    if workers:
        assert sum(worker["rows"] for worker in metrics.workers) == ROWS
        assert all(worker["elapsed_seconds"] > 0 for worker in metrics.workers)
        for field in ("batches", "splits", "files", "bytes_read", "requests", "decode_seconds"):
            assert sum(worker[field] for worker in metrics.workers) == metrics[field]
            assert all(worker[field] > 0 for worker in metrics.workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_is_counted_with_its_last_batch(folder, workers, shuffle):
    loader, dataset = loader_of(folder, num_workers=workers, shuffle=shuffle)
    assert set(dataset.metrics().values()) == {0.0}
    batches = iter(loader)
    for _ in range(ROWS // 100):
        next(batches)
    check_whole(dataset.metrics(), workers)
    assert next(batches, None) is None
    metrics = dataset.metrics()
    check_whole(metrics, workers)
    assert metrics == dataset.metrics()
    assert (metrics.rank, metrics.epoch) == (0, 0)
    assert (metrics["split_share"] < 1) == shuffle


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"multiprocessing_context": "forkserver"},
        {"persistent_workers": True},
        {"assignment": "dynamic"},
        {"transform": dict},
        {"remainder": "uneven"},
    ],
    ids=str,
)
def test_however_workers_deliver(folder, options):
    loader, dataset = loader_of(folder, num_workers=2, **options)
    for epoch in range(2):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
        metrics = dataset.metrics()
        assert metrics.epoch == epoch
        assert metrics["rows"] == sum(worker["rows"] for worker in metrics.workers) == ROWS
        assert metrics["bytes_read"] > 0
        assert metrics["buffered_rows"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_part_of_an_epoch_and_the_next_iteration(folder, workers):
    loader, dataset = loader_of(folder, num_workers=workers)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    assert (dataset.metrics()["rows"], dataset.metrics()["batches"]) == (700, 7)
    batches.close()
    broken = dataset.metrics()
    time.sleep(0.01)
    assert broken == dataset.metrics()
    assert (broken["rows"], broken["batches"]) == (700, 7)
    state = loader.state_dict()
    for _ in loader:
        pass
    check_whole(dataset.metrics(), workers)
    loader.load_state_dict(state)
    for _ in loader:
        pass
    rest = dataset.metrics()
    assert (rest["rows"], rest["batches"]) == (ROWS - 700, ROWS / 100 - 7)
    assert rest.epoch == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_ahead_is_ready_and_not_received(folder, workers):
    loader, dataset = loader_of(folder, num_workers=workers)
    batches = iter(loader)
    next(batches)
    for _ in range(100):
        metrics = dataset.metrics()
        if metrics["buffered_rows"]:
            break
        time.sleep(0.05)
    assert metrics["rows"] == 100
    assert 0 < metrics["buffered_rows"] <= ROWS - 100
    if workers:
        sent = sum(worker["rows"] for worker in metrics.workers)
        assert sent == metrics["rows"] + metrics["buffered_rows"]
    batches.close()


@pytest.mark.parametrize(
    "options",
    [{"transform": dict, "transform_threads": 3}, {"device": "meta"}],
    ids=["threads", "device"],
)
def test_what_is_made_ahead_is_not_received(folder, options):
    loader, dataset = loader_of(folder, **options)
    batches = iter(loader)
    for count in range(1, 8):
        next(batches)
        metrics = dataset.metrics()
        assert (metrics["rows"], metrics["batches"]) == (count * 100, count)
        assert metrics["buffered_rows"] >= 0
    del batches
    assert dataset.metrics()["rows"] == loader.statistics.rows[-1] == 700
    assert sum(1 for _ in loader) == ROWS / 100
    check_whole(dataset.metrics(), 0)


def test_without_a_loader(folder):
    dataset = tq.QueryDataset(tq.Session().sql(f"SELECT id FROM '{folder}'"), batch_size=100)
    assert sum(len(batch["id"]) for batch in dataset) == ROWS
    metrics = dataset.metrics()
    assert (metrics["rows"], metrics.epoch, metrics.workers) == (ROWS, 0, [])
    assert metrics["elapsed_seconds"] > 0
    assert "input_seconds" not in metrics
    assert "wait_share" not in metrics


def own_rows(batch):
    info = get_worker_info()
    return {"rows": info.dataset.metrics()["rows"], "worker": info.id}


@pytest.mark.slow
def test_a_worker_sees_its_own(folder):
    loader, _ = loader_of(folder, num_workers=2, transform=own_rows)
    seen = {}
    for batch in loader:
        seen.setdefault(batch["worker"], []).append(batch["rows"])
    assert set(seen) == {0, 1}
    assert all(rows == sorted(rows) and rows[-1] == ROWS / 2 for rows in seen.values())


def test_threads_that_transform_do_not_wait_for_the_loop(folder):
    loader, dataset = loader_of(folder, transform=dict, transform_threads=2)
    for _ in loader:
        pass
    assert (dataset.metrics()["rows"], dataset.metrics()["batches"]) == (ROWS, ROWS / 100)


def test_what_is_left_out_is_counted(tmp_path, folder):
    for number in range(2):
        (tmp_path / f"{number}.parquet").write_bytes((folder / f"{number}.parquet").read_bytes())
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no PAR1")
    _, dataset = loader_of(tmp_path, on_error="skip")
    assert len(dataset.quarantined) == 1
    assert dataset.metrics()["quarantined_splits"] == 1


# --- The fields, and Prometheus. ---


def test_each_field_is_described(folder):
    loader, dataset = loader_of(folder)
    for _ in loader:
        pass
    quarantine = {"quarantined_splits", "quarantined_rows"}
    assert list(dataset.metrics()) == [name for name in FIELDS if name not in quarantine]
    assert set(CORE_COUNTS) < set(FIELDS)
    page = (ROOT / "docs" / "metrics.md").read_text()
    docstring = tq.QueryDataset.metrics.__doc__
    for name in FIELDS:
        assert re.search(rf"^\| `{name}` \| [^|]+ \| [^|]+ \|$", page, flags=re.MULTILINE), name
        assert f"``{name}``" in docstring
    json.dumps(dataset.metrics())


@pytest.mark.slow
def test_prometheus_text(folder):
    loader, dataset = loader_of(folder, num_workers=2)
    for _ in loader:
        pass
    metrics = dataset.metrics()
    text = metrics.to_prometheus()
    assert text.endswith("\n")
    sample = re.compile(r'([a-z_]+)\{rank="0"(?:,worker="(\d)")?\} (\S+)')
    found, described = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            described.add(line.split()[2])
            assert (line.split()[3] == "counter") == line.split()[2].endswith("_total")
        elif not line.startswith("# HELP"):
            name, worker, value = sample.fullmatch(line).groups()
            assert name in described
            assert (name, worker) not in found
            found[name, worker] = float(value)
    assert found["tensorquery_rows_total", None] == ROWS
    assert found["tensorquery_worker_rows_total", "1"] == metrics.workers[1]["rows"]
    assert found["tensorquery_wait_share", None] == metrics["wait_share"]
    assert len(found) == len(metrics) + 2 * len(CORE_COUNTS)


def test_numbers_that_are_no_whole_ones_are_whole_in_the_text():
    metrics = Metrics({"rows": 2.0**60, "wait_share": 0.1}, rank=3, epoch=0)
    lines = metrics.to_prometheus().splitlines()
    assert float(lines[2].split()[1]) == 2.0**60
    assert lines[5] == 'tensorquery_wait_share{rank="3"} 0.1'


# --- What is logged. ---


def epochs_logged(caplog):
    return [record for record in caplog.records if hasattr(record, "metrics")]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_a_line_in_the_log(folder, workers, caplog):
    caplog.set_level(logging.INFO, "tensorquery")
    loader, dataset = loader_of(folder, num_workers=workers)
    for _ in loader:
        break
    assert epochs_logged(caplog) == []
    for epoch in range(2):
        for _ in loader:
            pass
        record = epochs_logged(caplog)[-1]
        assert record.name == "tensorquery"
        assert record.levelno == logging.INFO
        assert re.match(
            rf"epoch {epoch}: 12,000 rows in 120 batches, [\d.]+ s \([\d,]+ rows/s\), wait share \d+%, "
            r"[\d.]+ MiB read in \d+ requests$",
            record.getMessage(),
        )
        assert record.metrics == dict(dataset.metrics())
    assert len(epochs_logged(caplog)) == 2
    # Nobody who trains for seconds is told how to train faster.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_loop_that_asks_for_as_many_batches_as_there_are_logs_too(folder, caplog):
    caplog.set_level(logging.INFO, "tensorquery")
    loader, _ = loader_of(folder)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    batches.close()
    assert len(epochs_logged(caplog)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False])
def test_a_loop_that_waits_is_told_once(folder, caplog, monkeypatch, waits):
    def slow(batch):
        time.sleep(0.004 if waits else 0.0)
        return batch

    monkeypatch.setattr(epoch_report, "LONG_EPOCH", 0.0)
    loader, _ = loader_of(folder, transform=slow)
    for _ in range(2):
        for _ in loader:
            time.sleep(0.0 if waits else 0.02)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == waits
    assert all("rank 0 of 1: training is input-bound" in text for text in warned)


ADVICE = [
    ({}, 0, None),
    ({"wait_share": 0.5, "input_seconds": 50.0, "wait_seconds": 5.0}, 0, "transform_threads="),
    ({"wait_share": 0.5, "input_seconds": 50.0, "throttled": 7.0}, 0, "throttled 7 requests"),
    ({"wait_share": 0.5, "input_seconds": 50.0, "decode_seconds": 350.0}, 0, "4 threads that decode were busy"),
    ({"wait_share": 0.5, "input_seconds": 50.0, "decode_seconds": 750.0}, 2, "8 threads that decode were busy"),
    ({"wait_share": 0.5, "input_seconds": 50.0, "decode_seconds": 5.0}, 2, "num_workers"),
    ({"wait_share": 0.5, "input_seconds": 50.0, "decode_seconds": 5.0}, 0, "storage is slow"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("changed", "workers", "advice"), ADVICE)
def test_advice_names_what_takes_the_time(changed, workers, advice):
    metrics = {
        "elapsed_seconds": 100.0,
        "input_seconds": 20.0,
        "wait_share": 0.2,
        "wait_seconds": 50.0,
        "decode_seconds": 0.0,
        "convert_seconds": 0.0,
        "throttled": 0.0,
        **changed,
    }
    found = epoch_report.input_advice(metrics, workers, threads=4)
    assert (found is None) == (advice is None)
    assert advice is None or advice in found


def late(batch):
    time.sleep(0.2)
    return batch


def epochs_of_a_rank(rank, world_size, folder, slow, leaves):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    epoch_report.LONG_EPOCH = 0.0
    # Ranks of one busy machine differ by more than those of a quiet one.
    epoch_report.UNBALANCED = 0.25
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tensorquery").addHandler(handler)
    loader, dataset = loader_of(
        folder, batch_size=500, transform=late if rank == slow else None, num_workers=0
    )
    began = time.monotonic()
    for batch in loader:
        time.sleep(0.05)
        # As training does.
        dist.all_reduce(batch["x"].sum())
        if rank == leaves and dataset.metrics()["batches"] == len(loader):
            loader.dataset._iterations.watch.ended = True  # as one that is killed: it says nothing
    return [text for text in said if "unbalanced" in text], time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "leaves"), [(1, None), (None, None), (1, 0)])
def test_one_of_the_ranks_says_that_another_is_slow(folder, slow, leaves):
    found = ranks.run(epochs_of_a_rank, 2, folder, slow, leaves)
    said = [text for texts, _ in found for text in texts]
    if slow is not None and leaves is None:
        [text] = said
        assert "rank 1 waited" in text
    else:
        assert said == []
    assert all(seconds < 60 for _, seconds in found)


# --- Statistics over time. ---


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_over_time(folder, workers):
    loader, dataset = loader_of(folder, num_workers=workers)
    assert len(loader.statistics) == 0
    for number, _ in enumerate(loader):
        time.sleep(0.005)
        assert number < 60 or len(loader.statistics) >= 2
    found = loader.statistics
    assert 4 <= len(found) <= 30
    assert found.epoch == 0
    assert (np.diff(found.seconds) > 0).all()
    assert found.rows[-1] == ROWS
    spans = np.diff(found.seconds, prepend=0.0)
    np.testing.assert_allclose((found.rows_per_second * spans).sum(), ROWS)
    np.testing.assert_allclose(
        (found.wait_share * spans).sum(), dataset.metrics()["input_seconds"], rtol=0.05
    )
    assert found.buffered_rows.max() > 0
    assert found.buffered_rows[-1] == 0


def test_samples_are_bounded_and_lose_only_detail():
    samples = Samples()
    for tick in range(1, 40_000):
        if tick * 0.1 >= samples.due:
            samples.add(tick * 0.1, tick * 10.0, tick * 0.02, 5.0)
    found = samples.statistics(0)
    assert MOST_SAMPLES / 2 <= len(found) <= MOST_SAMPLES
    np.testing.assert_allclose(found.rows_per_second, 100.0)
    np.testing.assert_allclose(found.wait_share, 0.2)
    assert found.seconds[-1] > 3900


def test_statistics_are_drawn(folder):
    loader, _ = loader_of(folder)
    empty = loader.statistics
    assert repr(empty) == "LoaderStatistics(no samples yet)"
    assert "no samples yet" in empty._repr_html_()
    empty.plot()
    for _ in loader:
        time.sleep(0.002)
    found = loader.statistics
    panels = found.plot()
    assert [panel.get_ylabel() for panel in panels] == ["rows/s", "wait share", "rows ready"]
    assert panels[0].get_title().startswith("epoch 0: 12,000 rows in ")
    np.testing.assert_allclose(panels[0].lines[0].get_ydata(), found.rows_per_second)
    assert panels[1].get_ylim() == (0.0, 1.0)
    _, own = matplotlib.pyplot.subplots(3, 1)
    assert found.plot(own) is own
    with pytest.raises(tq.ConfigError, match="three axes.*got 1"):
        found.plot(own[0])
    matplotlib.pyplot.close("all")
    page = found._repr_html_()
    assert page.count("<svg") == 3
    assert "failure" not in page.split("</style>")[1]
    assert repr(found).startswith("LoaderStatistics(epoch 0, ")
