"""Fixtures of all tests, and how many examples the property tests try."""

import itertools
import os

import pytest
from hypothesis import HealthCheck, settings

import tensorquery as tq
from iceberg_servers import cloud, hive, postgres, rest  # noqa: F401 (fixtures)

_numbers = itertools.count()

_COMMON = {
    "deadline": None,
    # tmp_path is shared by the examples of one test: each writes into a directory of its own.
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
# The same examples on every run, so that a red test is about the code; `make`-independent exploring:
# pytest --hypothesis-profile=explore
settings.register_profile("repeatable", derandomize=True, max_examples=30, **_COMMON)
settings.register_profile("explore", max_examples=1000, **_COMMON)
settings.load_profile("repeatable")


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
def own_cache(monkeypatch, tmp_path_factory):
    """A cache of row counts and stages that no other test wrote to, and not the user's."""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(_numbers))
    monkeypatch.setenv("TENSORQUERY_CACHE", str(folder))
    monkeypatch.setenv("TENSORQUERY_STAGES", str(folder / "stages"))


@pytest.fixture
def session():
    return tq.Session()
