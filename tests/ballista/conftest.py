"""Fixtures of the tests of `stage_engine=`: `make test-ballista` runs them, and `make test` does not.

They need a core with the feature `ballista`, the programs that `make test-ballista` installs, and MinIO of `make test-servers`.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python" / "helpers"))

from cluster import start_cluster  # noqa: E402
from stores import minio  # noqa: E402, F401 (a fixture)
from tpch_data import make_tpch  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """A cache of row counts that no other test wrote to, and not the user's."""
    monkeypatch.setenv("TENSORQUERY_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def cluster(minio, tmp_path_factory):  # noqa: F811
    """A scheduler and two executors that know MinIO by their environment."""
    with start_cluster(minio, tmp_path_factory.mktemp("ballista")) as started:
        yield started


@pytest.fixture(scope="session")
def tpch():
    """The folder of TPC-H at scale factor 0.1."""
    return make_tpch()
