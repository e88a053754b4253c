"""How far splits are read ahead of the loop depends on where they are read from."""

import os
import threading
import time
from http.server import ThreadingHTTPServer

import numpy as np
import pyarrow as pa

import range_server
import support
import tensorquery as tq

SPLITS, ROWS = 80, 500


class Far(range_server.Handler):
    """A server that takes its time."""

    def answer(self, *, body):
        time.sleep(0.1)
        super().answer(body=body)


def read_from_afar(folder):
    """Reads over a network whose latency asks for many requests at once, in this process."""
    rows = 200_000
    support.write_parquet(folder, pa.table({"x": np.random.default_rng(seed=1).random(rows)}))
    Far.root, Far.log = str(folder), str(folder / "log")
    with ThreadingHTTPServer(("127.0.0.1", 0), Far) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/000.parquet"
        loader, _ = tq.create_dataloader(path=url)
        assert sum(len(batch["x"]) for batch in loader) == rows
        server.shutdown()


def test_a_slow_network_is_no_reason_to_read_files_on_disk_far_ahead(tmp_path):
    read_from_afar(tmp_path / "far")
    ids = pa.table({"id": np.arange(SPLITS * ROWS)})
    near = support.write_parquet(tmp_path / "near", ids, files=8, row_group=ROWS)
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
    assert ahead <= len(os.sched_getaffinity(0)) + 8
