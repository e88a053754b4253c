"""Promise: messages of the engine reach Python's logging on demand, never with a secret in them; otherwise the
engine is quiet."""

import logging
import multiprocessing
import subprocess
import sys

import pyarrow as pa
import pytest

import support
import tensorquery as tq
from effort import METHODS
from tensorquery._util import logs

ROWS = 500
FAULT = {"kind": "status", "times": 2}
"""The next two requests fail."""


@pytest.fixture
def heard():
    """The records of the engine, at the level that a test sets."""
    found = []
    handler = logging.Handler()
    handler.emit = found.append
    engine = logging.getLogger("tensorquery.engine")
    engine.addHandler(handler)
    yield found
    engine.removeHandler(handler)
    engine.setLevel(logging.NOTSET)
    logs.follow()


@pytest.fixture
def table(faults, tmp_path):
    """The URL of a table behind the proxy, and the options to read it."""
    support.write_parquet(tmp_path / "t", pa.table({"id": range(ROWS)}), files=2)
    prefix = f"logs-{tmp_path.name}"
    files = (tmp_path / "t").iterdir()
    faults.store.put_all([(f"{prefix}/{path.name}", path.read_bytes()) for path in files])
    return f"{faults.store.root}/{prefix}/", {**faults.store.options, "init_backoff": "5ms"}


def loader_of(table, **options):
    session = tq.Session(storage_options=table[1])
    session.register_parquet("t", table[0])
    return tq.create_dataloader("SELECT id FROM t", session=session, batch_size=50, **options)[0]


def test_a_request_that_is_tried_again_is_heard_of(table, faults, heard):
    logging.getLogger("tensorquery.engine").setLevel(logging.INFO)
    faults.set(FAULT)
    loader = loader_of(table)
    assert sum(len(batch["id"]) for batch in loader) == ROWS
    [first, *_] = [one for one in heard if one.name.startswith("tensorquery.engine.object_store")]
    assert first.levelno == logging.INFO
    assert "503" in first.getMessage()
    assert first.threadName
    shown = "\n".join(record.getMessage() for record in heard)
    assert faults.store.secret not in shown


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_who_ends_the_program_meanwhile_is_heard(table, faults, heard, raised):
    def interrupted(record):
        raise raised

    handler = logging.Handler()
    handler.emit = interrupted
    engine = logging.getLogger("tensorquery.engine")
    engine.setLevel(logging.INFO)
    engine.addHandler(handler)
    faults.set(FAULT)
    try:
        with pytest.raises(raised):
            list(loader_of(table))
    finally:
        engine.removeHandler(handler)


def test_nothing_is_said_unless_somebody_asks(table, faults, heard):
    faults.set(FAULT)
    assert sum(len(batch["id"]) for batch in loader_of(table)) == ROWS
    assert heard == []


def test_the_level_is_that_of_the_next_session_or_iteration(table, faults, heard):
    faults.set(FAULT)
    loader = loader_of(table)
    list(loader)
    assert heard == []
    faults.set(FAULT)
    logging.getLogger("tensorquery").setLevel(logging.DEBUG)
    try:
        list(loader)
    finally:
        logging.getLogger("tensorquery").setLevel(logging.NOTSET)
    assert heard != []


def _to_a_file(worker):
    handler = logging.FileHandler(multiprocessing.current_process().name)
    logging.getLogger("tensorquery.engine").addHandler(handler)
    logging.getLogger("tensorquery.engine").setLevel(logging.DEBUG)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_workers_hear_their_own(table, faults, tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    loader = loader_of(
        table, num_workers=1, worker_init_fn=_to_a_file, multiprocessing_context=method
    )
    faults.set(FAULT)
    assert sum(len(batch["id"]) for batch in loader) == ROWS
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert any("503" in path.read_text() for path in files)


@pytest.mark.slow
def test_warnings_of_the_engine_are_not_printed_where_nobody_set_up_logging():
    code = (
        "from tensorquery._util import logs\n"
        "import tensorquery\n"
        "logs.hand_over([(30, 'datafusion::optimizer', 'quiet', 1.5, 'cpu-1')], 3)\n"
        "import logging\n"
        "logging.basicConfig(format='%(name)s %(levelname)s %(threadName)s %(message)s')\n"
        "logs.hand_over([(30, 'datafusion::optimizer', 'heard', 1.5, 'cpu-1'), (10, 'x', 'not', 1.5, '')], 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "tensorquery.engine.datafusion.optimizer WARNING cpu-1 heard",
        "tensorquery.engine WARNING MainThread 3 more messages of the engine were lost",
    ]
