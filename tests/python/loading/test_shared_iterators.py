"""Promise 1 (docs/promises.md): threads that ask one iterator for batches get each row once, or an error."""

import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

import tensorquery as tq

ROWS, BATCH, THREADS = 10_000, 50, 4


@pytest.fixture(scope="module")
def session():
    session = tq.Session()
    session.register_table("t", pa.table({"x": list(range(ROWS))}))
    return session


def of_dataset(loader):
    return iter(loader.dataset)


def of_loader(loader):
    return iter(loader)


def of_node(loader):
    pytest.importorskip("torchdata.nodes")
    return tq.QueryNode(loader)


def shared(batches, lock=None):
    """Rows that threads received together, and the errors that they got."""
    received, errors = [[] for _ in range(THREADS)], []
    begin = threading.Barrier(THREADS)

    def ask(rows):
        begin.wait()
        while True:
            try:
                if lock is None:
                    batch = next(batches, None)
                else:
                    with lock:
                        batch = next(batches, None)
            except tq.TensorQueryError as error:
                errors.append(str(error))
                time.sleep(0.002)
                continue
            if batch is None:
                return
            rows.extend(batch["x"].tolist())

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in received]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return Counter(row for rows in received for row in rows), errors


def _slowly(batch):
    # Releases the GIL in the middle of making a batch.
    time.sleep(0.001)
    return batch


@pytest.mark.parametrize("iterator", [of_dataset, of_loader])
@pytest.mark.parametrize(
    "options", [{}, {"transform": _slowly}, {"transform": _slowly, "transform_threads": 2}]
)
def test_a_second_thread_gets_an_error_and_no_row_is_lost_or_repeated(session, iterator, options):
    loader, _ = tq.create_dataloader(
        "SELECT x FROM t", session=session, batch_size=BATCH, **options
    )
    rows, errors = shared(iterator(loader))
    assert rows == Counter(range(ROWS))
    if options:
        assert errors
    assert all("one thread at a time" in error for error in errors)


@pytest.mark.parametrize("iterator", [of_dataset, of_loader])
def test_threads_that_take_turns_share_an_iterator(session, iterator):
    loader, _ = tq.create_dataloader("SELECT x FROM t", session=session, batch_size=BATCH)
    assert shared(iterator(loader), threading.Lock()) == (Counter(range(ROWS)), [])


def test_a_node_lets_threads_take_turns(session):
    loader, _ = tq.create_dataloader("SELECT x FROM t", session=session, batch_size=BATCH)
    assert shared(of_node(loader)) == (Counter(range(ROWS)), [])


def test_a_transform_that_asks_for_the_next_batch_gets_an_error(session):
    loader, _ = tq.create_dataloader(
        "SELECT x FROM t", session=session, batch_size=BATCH, transform=lambda batch: next(batches)
    )
    batches = iter(loader)
    with pytest.raises(tq.ConfigError, match="asked for a batch while it makes another"):
        next(batches)
