"""How far splits are read ahead of the loop depends on where they are read from."""

import contextlib
import os
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import range_server
import support
import tensorquery as tq
from serving import serving

pytestmark = pytest.mark.slow

SPLITS, ROWS = 80, 500


class Far(range_server.Handler):
    """A server that takes its time, and knows how many requests were there at once."""

    lock = threading.Lock()
    now = most = 0

    def answer(self, *, body):
        with self.lock:
            Far.now += 1
            Far.most = max(Far.most, Far.now)
        time.sleep(0.1)
        with self.lock:
            Far.now -= 1
        super().answer(body=body)


@contextlib.contextmanager
def served(root, log):
    """The URL of a slow server over a folder."""
    Far.root, Far.log = str(root), str(log)
    with serving(Far) as url:
        yield url


def read_from_afar(tmp_path):
    """Read in this process over a network whose latency calls for many requests at once."""
    rows = 200_000
    numbers = pa.table({"x": np.random.default_rng(seed=1).random(rows)})
    support.write_parquet(tmp_path / "far", numbers)
    with served(tmp_path / "far", tmp_path / "log") as url:
        loader, _ = tq.create_dataloader(path=f"{url}/000.parquet")
        assert sum(len(batch["x"]) for batch in loader) == rows


def write_splits(folder):
    ids = pa.table({"id": np.arange(SPLITS * ROWS)})
    return support.write_parquet(folder, ids, files=8, row_group=ROWS)


def usual():
    """Splits that are read at once without a network, and some more."""
    return len(os.sched_getaffinity(0)) + 8


def test_a_slow_network_is_a_reason_to_read_far_ahead(tmp_path):
    read_from_afar(tmp_path)
    write_splits(tmp_path / "splits")
    with served(tmp_path / "splits", tmp_path / "log") as url:
        files = [f"{url}/{number:03}.parquet" for number in range(8)]
        loader, _ = tq.create_dataloader(path=files)
        Far.most = 0
        assert sum(len(batch["id"]) for batch in loader) == SPLITS * ROWS
        assert Far.most > usual()


def test_a_slow_network_is_no_reason_to_read_files_on_disk_far_ahead(tmp_path):
    read_from_afar(tmp_path)
    near = write_splits(tmp_path / "splits")
    begun = []

    def splits_of(ids):
        begun.append(ids[0].as_py() // ROWS)
        return ids

    session = tq.Session()
    session.register_parquet("t", near)
    session.register_udf("splits_of", splits_of, ["int64"], "int64")
    loader, _ = tq.create_dataloader("SELECT splits_of(id) AS id FROM t", session=session)
    assert sum(len(batch["id"]) for batch in loader) == SPLITS * ROWS
    assert sorted(begun) == list(range(SPLITS))
    ahead = max(split - before for before, split in enumerate(begun))
    assert ahead <= usual()
