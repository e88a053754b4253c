"""What a run of several processes does once, each of them gets, and a run of one process does again."""

import threading
import time

import pytest

from once import once_a_run


class Folders:
    """A process's folder below that of the run, as pytest gives them."""

    def __init__(self, run):
        self.run = run

    def getbasetemp(self):
        return self.run / "process"


@pytest.fixture
def work():
    """Work that takes a while, and counts."""
    done = []

    def work():
        number = len(done)
        done.append(number)
        time.sleep(0.1)
        return {"found": number}

    work.done = done
    return work


def test_processes_that_ask_at_the_same_time_get_one_answer(tmp_path, monkeypatch, work):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    found = []
    askers = [
        threading.Thread(target=lambda: found.append(once_a_run(Folders(tmp_path), "proof", work)))
        for _ in range(4)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert found == [{"found": 0}] * 4
    assert once_a_run(Folders(tmp_path), "another", work) == {"found": 1}


def test_work_that_failed_is_tried_by_the_next(tmp_path, monkeypatch, work):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(ZeroDivisionError):
        once_a_run(Folders(tmp_path), "proof", lambda: 1 / 0)
    assert once_a_run(Folders(tmp_path), "proof", work) == {"found": 0}


def test_one_process_keeps_nothing(tmp_path, monkeypatch, work):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert [once_a_run(Folders(tmp_path), "proof", work) for _ in range(2)] == [
        {"found": 0},
        {"found": 1},
    ]
    assert not any(tmp_path.iterdir())
