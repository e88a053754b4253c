"""A fixture of the tests of formats."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The process runs in an empty folder: files are named relative to it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
