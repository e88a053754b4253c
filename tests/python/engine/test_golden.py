"""Promise 4 (docs/promises.md): orders of rows, plans, states and fingerprints do not change from commit to commit.

Where one changes on purpose, ``make golden`` writes the texts anew, and the commit shows the change.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import golden
from golden_cases import CASES

HELPERS = Path(golden.__file__).parent
NAMES = [case.name for case in CASES]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case.options.get("num_workers") else ())
        for case in CASES
    ],
    ids=NAMES,
)
def test_the_text_of(case):
    expected = (golden.EXPECTED / f"{case.name}.txt").read_text()
    found = golden.text_of(case)
    assert found.splitlines() == expected.splitlines()
    assert found == expected


def test_there_is_a_text_for_each_case_and_no_other():
    assert len(set(NAMES)) == len(NAMES) >= 40
    assert sorted(path.stem for path in golden.EXPECTED.iterdir()) == sorted(NAMES)


def test_no_text_has_a_path_of_this_machine():
    for path in golden.EXPECTED.iterdir():
        text = path.read_text()
        assert len(text) > 500, path
        for place in ("/tmp", "/home", "/root", "/Users", str(Path.cwd())):
            assert place not in text, (path, place)


def test_the_names_in_a_plan_cache(tmp_path):
    assert golden.cached_names(tmp_path) == golden.CACHED.read_text()


@pytest.mark.slow
def test_another_folder_and_another_order_of_hashes_give_the_same_texts(tmp_path):
    for source in (*HELPERS.glob("golden*.py"), HELPERS / "iceberg_fixtures.py"):
        target = tmp_path / "tests" / "python" / "helpers" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    shutil.copytree(golden.INPUTS, tmp_path / "tests" / "golden" / "inputs")
    fixtures = tmp_path / "tests" / "fixtures" / "iceberg"
    shutil.copytree(golden.GOLDEN.parent / "fixtures" / "iceberg", fixtures)
    run = [sys.executable, str(tmp_path / "tests" / "python" / "helpers" / "golden.py")]
    variables = {**os.environ, "PYTHONHASHSEED": "12345", "TZ": "Asia/Kolkata"}
    subprocess.run(run, check=True, timeout=240, cwd=tmp_path, env=variables)
    assert (
        tmp_path / "tests" / "golden" / "plan_cache.txt"
    ).read_text() == golden.CACHED.read_text()
    made = sorted((tmp_path / "tests" / "golden" / "expected").iterdir())
    assert sorted(path.stem for path in made) == sorted(NAMES)
    for path in made:
        assert path.read_text() == (golden.EXPECTED / path.name).read_text(), path.name
