"""Promise: a file that is read from start to end arrives as the loop goes on; bytes that the loop has not reached
stay in the store."""

import gzip
import os
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler

import numpy as np
import pytest

import support
import tensorquery as tq
from serving import serving

MIB = 1 << 20
LINES = 400_000


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """A .csv.gz of 136 MiB, and its ids."""
    root = tmp_path_factory.mktemp("streamed")
    text = "".join(f"{number},{'x' * 350}\n" for number in range(LINES))
    with gzip.open(root / "t.csv.gz", "wb", compresslevel=0) as file:
        file.write(b"id,s\n")
        file.write(text.encode())
    assert os.path.getsize(root / "t.csv.gz") > 130 * MIB
    return root, np.arange(LINES)


def ids_of(loader):
    return np.concatenate([batch["id"] for batch in loader])


def loader_over(url, columns="id", **options):
    session = tq.Session(storage_options={"allow_http": "true"}, **options)
    session.register_csv("t", url + "/t.csv.gz")
    query = session.sql(f"SELECT {columns} FROM t")
    return tq.create_dataloader(query, batch_size=1024, output_format="numpy")[0]


def asked_for(log, begun):
    """Bytes of the file that were asked for since line `begun` of the server's log."""
    requests = [line.split() for line in log.read_text().splitlines()[begun:]]
    return sum(int(stop) - int(start) for method, _, start, stop, _ in requests if method == "GET")


@pytest.mark.slow
@pytest.mark.parametrize("cached", [False, True])
def test_a_loop_that_waits_does_not_fill_the_memory(long_file, tmp_path, cached):
    root, ids = long_file
    log = tmp_path / "log"
    options = {"local_cache": tmp_path / "cache"} if cached else {}
    with support.serve(root, log) as url:
        # Rows so wide that those which wait for the loop are a small part of the file.
        batches = iter(loader_over(url, "id, repeat(s, 20) AS s", **options))
        begun = len(log.read_text().splitlines())
        np.testing.assert_array_equal(next(batches)["id"], ids[:1024])
        # As long as a server on this machine takes to send all of it.
        time.sleep(1)
        assert asked_for(log, begun) <= 96 * MIB
        del batches
        begun = len(log.read_text().splitlines())
        np.testing.assert_array_equal(ids_of(loader_over(url, **options)), ids)
        asked = asked_for(log, begun)
        assert asked < 120 * MIB if cached else asked > 130 * MIB


@pytest.mark.slow
def test_a_server_without_ranges_sends_the_file_whole(long_file):
    root, ids = long_file

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with serving(partial(Handler, directory=root)) as url:
        np.testing.assert_array_equal(ids_of(loader_over(url)), ids)
