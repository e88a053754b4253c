"""Fixtures of all tests, and how many examples the property tests try."""

import gc
import hashlib
import itertools
import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import tensorquery as tq
from effort import LONG
from iceberg_lakes import SERVED
from iceberg_servers import cloud, hive, postgres, rest  # noqa: F401 (fixtures)
from parts import without_the_rest
from stores import _faults, azure, faults, gcs, minio, moto  # noqa: F401 (fixtures)

_numbers = itertools.count()

_LEFT = pytest.StashKey[int]()

_COMMON = {
    "deadline": None,
    # tmp_path is shared by the examples of one test: each writes into a directory of its own.
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
# Ranks, and workers under forkserver, are forked from a server process. Importing torch takes longer than most of what they do.
multiprocessing.set_forkserver_preload(["torch", "pyarrow"])

# Every run tries the same examples, so that a red test is about the code. To explore others:
# pytest --hypothesis-profile=explore
settings.register_profile("repeatable", derandomize=True, max_examples=30, **_COMMON)
settings.register_profile("explore", max_examples=1000, **_COMMON)
settings.load_profile("repeatable")


def _skips(config):
    """The skipped tests that no line of allowed_skips.txt names, with their reasons."""
    lines = Path(__file__).with_name("allowed_skips.txt").read_text().splitlines()
    allowed = {line.partition(" ")[0] for line in lines if line and not line.startswith("#")}
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return [(one.nodeid, one.longrepr[-1]) for one in skipped if one.nodeid not in allowed]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave what only ``make test-long`` runs; mark with `servers` each test that starts a server: by a fixture of `stores` or
    `iceberg_servers`, or by its catalog."""
    if not LONG:
        items[:], left = without_the_rest(items)
        config.hook.pytest_deselected(items=left)
        config.stash[_LEFT] = len(left)
    for item in items:
        found = getattr(item, "_fixtureinfo", None)
        definitions = found.name2fixturedefs.values() if found else ()
        modules = {one.func.__module__ for each in definitions for one in each[-1:]}
        params = item.callspec.params if hasattr(item, "callspec") else {}
        catalogs = [params.get(name) for name in ("lake", "kind")]
        by_catalog = any(isinstance(kind, str) and kind in SERVED for kind in catalogs)
        if modules & {"stores", "iceberg_servers"} or by_catalog:
            item.add_marker(pytest.mark.servers)
    seed = os.environ.get("TENSORQUERY_TEST_ORDER")
    if seed:
        # By modules, whose fixtures are expensive; the key is equal in every process of a parallel run.
        items.sort(
            key=lambda item: tuple(
                _shuffled(seed, name) for name in (item.location[0], item.nodeid)
            )
        )


def pytest_collection_finish():
    """Thousands of collected tests stay to the end: no collection of garbage looks at them again, nor copies their pages in a fork."""
    gc.collect()
    gc.freeze()


def pytest_report_collectionfinish(config):
    """Say where a test that was asked for by name has gone."""
    left = config.stash.get(_LEFT, 0)
    if left:
        return f"{left} cases are left to make test-long by in_part.txt; TENSORQUERY_LONG=1 runs them, too"
    return []


def _shuffled(seed, name):
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """A skip that nobody allowed fails the run of continuous integration."""
    if os.environ.get("CI") and _skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Say which skips those were."""
    if os.environ.get("CI"):
        for name, reason in _skips(config):
            terminalreporter.write_line(
                f"ERROR: {name} was skipped ({reason}), and tests/python/allowed_skips.txt does not allow it"
            )


@pytest.fixture(autouse=True)
def one_process(request, monkeypatch):
    """Fail a test that starts a process without the marker `slow` or `servers`: `make test-fast` runs it."""
    if any(request.node.get_closest_marker(name) for name in ("slow", "servers")):
        return

    def refuse(*_, **__):
        pytest.fail("this test starts a second process: it needs the marker `slow`")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(os, "fork", refuse)


@pytest.fixture(autouse=True)
def no_callback_of_hypothesis():
    """Nothing of a library runs in collections: torch's handler raises where a worker died, and a callback loses the exception."""
    gc.callbacks[:] = [one for one in gc.callbacks if not one.__module__.startswith("hypothesis")]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """No variables of torchrun, MPI or SLURM: a test says its rank itself."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "HOROVOD_", "LOCAL_", "MASTER_")) or name in (
            "RANK",
            "WORLD_SIZE",
        ):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_account(monkeypatch):
    """No credentials and no proxy of whoever runs the tests: a test names its stores itself."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """A cache of row counts and stages that no other test wrote to, and not the user's."""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("TENSORQUERY_CACHE", str(folder))
    monkeypatch.setenv("TENSORQUERY_STAGES", str(folder / "stages"))


@pytest.fixture
def two_cpus(monkeypatch):
    """Reads ahead as a machine of two CPUs does: one of many has all of a small table open at once."""
    monkeypatch.setattr("tensorquery.distributed.topology.cpu_count", lambda: 2)


@pytest.fixture
def shared_files(monkeypatch):
    """The files of shared memory that this process opened."""
    found = []
    open_shared = torch.UntypedStorage._new_shared_fd_cpu

    def counted(*arguments):
        found.append(arguments)
        return open_shared(*arguments)

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_fd_cpu", staticmethod(counted))
    return found


@pytest.fixture
def session():
    return tq.Session()
