"""The wheel as a new user has it: in an empty folder, without a Rust tool chain, on the corners of Python and PyTorch.

`make test-wheel` builds it and runs this; gigabytes are fetched, so it is no part of `make test`. What cannot be installed (there is no
such torch for that Python) is skipped, and says so.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
[WHEEL] = (ROOT / ".wheels").glob("tensorquery-*.whl")
PYTHONS = [shutil.which(name) or name for name in os.environ.get("PYTHONS", sys.executable).split()]
OLDEST, LATEST = "2.2", "latest"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])
# An extra, and an option in a snippet of a page, that need a newer torch than the oldest one.
NEWER = {"transformers", 'assignment="dynamic"'}
# The packages that the README tells its readers to install.
TOLD = re.search(
    r"^pip install 'tensorquery\[(.*?)\]' '(.*?)'$", (ROOT / "README.md").read_text(), re.MULTILINE
)
TOOLS = ("cargo", "rustc", "maturin")


class Installed:
    """A virtual environment with the wheel and nothing that the wheel did not ask for, and an empty folder to work in.

    Args:
        folder: For both.
        python: The interpreter.
        torch: The torch that is wanted.
    """

    def __init__(self, folder, python, torch):
        self.torch = torch
        self.folder = folder / "work"
        self.folder.mkdir()
        self.environment = folder / "venv"
        self.extras = [name for name in EXTRAS if torch == LATEST or name not in NEWER]
        # Not the user's PATH, which may have a tool chain.
        self.path = os.pathsep.join([str(self.environment / "bin"), "/usr/bin", "/bin"])
        found = [tool for tool in TOOLS if shutil.which(tool, path=self.path)]
        assert found == [], f"{found} would be found in {self.path}"
        subprocess.run([python, "-m", "venv", self.environment], check=True, timeout=300)
        wanted = [f"{WHEEL}[{','.join(self.extras)}]", TOLD[2]]
        if torch == OLDEST:
            # It was built against numpy 1, newer pyarrows against numpy 2, and neither says so.
            wanted += [f"torch=={OLDEST}.*", "numpy<2", "pyarrow<20"]
        self.pip("install", "--quiet", *wanted)

    def pip(self, *arguments):
        """Run pip; skips where there is no such package for this Python, by pip's own words."""
        done = self._start([self.environment / "bin/python", "-m", "pip", *arguments], 3000)
        if "No matching distribution found" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, program, *arguments, timeout=900, folder=None):
        """Run a program of the environment in its folder, or in another one, and return what it printed."""
        done = self._start([self.environment / "bin" / program, *arguments], timeout, folder)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def _start(self, command, timeout, folder=None):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "CARGO", "RUST", "TENSORQUERY", "VIRTUAL_ENV"))
        }
        variables = {
            **kept,
            "PATH": self.path,
            "TENSORQUERY_CACHE": str(self.folder.parent / "cache"),
            "TENSORQUERY_STAGES": str(self.folder.parent / "stages"),
        }
        return subprocess.run(
            command,
            cwd=folder or self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def version_of(python):
    """Major and minor version of an interpreter, or None where it does not start."""
    code = "import sys, ensurepip, venv; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return None
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


@pytest.fixture(
    scope="module",
    params=[(python, torch) for python in PYTHONS for torch in (OLDEST, LATEST)],
    ids=lambda corner: f"{Path(corner[0]).name}-torch-{corner[1]}",
)
def installed(request, tmp_path_factory):
    python, torch = request.param
    if version_of(python) is None:
        pytest.skip(f"{python} does not start here, or has no venv")
    folder = tmp_path_factory.mktemp("corner")
    try:
        yield Installed(folder, python, torch)
    finally:
        # Some gigabytes.
        shutil.rmtree(folder)


# --- the file ---


def test_one_wheel_is_for_every_python():
    assert re.search(r"-cp311-abi3-\w+\.whl$", WHEEL.name)
    with zipfile.ZipFile(WHEEL) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = Parser().parsestr(archive.read(metadata).decode())
    folders = {name.partition("/")[0] for name in names}
    assert {name for name in folders if not name.endswith((".dist-info", ".libs"))} == {
        "tensorquery"
    }
    assert "tensorquery/_core.abi3.so" in names
    assert "tensorquery/py.typed" in names
    assert "tensorquery/display/html.py" in names
    assert not [name for name in names if "__pycache__" in name or "test" in name]
    assert any(name.endswith("/LICENSE") for name in names)
    assert sorted(said.get_all("Provides-Extra")) == EXTRAS
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert "# tensorquery" in said.get_payload()


# --- the corners ---


def test_it_is_the_wheel_that_is_imported(installed):
    code = "import torch, numpy, tensorquery; print(tensorquery.__file__); print(torch.__version__, numpy.__version__)"
    path, versions = installed.run("python", "-c", code).splitlines()
    assert Path(path).is_relative_to(installed.environment)
    if installed.torch == OLDEST:
        assert versions.startswith(f"{OLDEST}.")


NUMPY_LOOP = """\
import importlib.util, numpy, tensorquery as tq
assert importlib.util.find_spec("torch") is importlib.util.find_spec("pyarrow") is None
open("t.csv", "w").write("x\\n" + "".join(f"{x}\\n" for x in range(100)))
loader, _ = tq.create_dataloader(path="t.csv", output_format="numpy", batch_size=7, shuffle=True)
assert sorted(x for batch in loader for x in batch["x"]) == [*range(100)]
try:
    tq.create_dataloader(path="t.csv")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).name)
def test_the_wheel_alone_reads_arrays(python, tmp_path):
    """With nothing that the wheel did not ask for: NumPy, and neither torch nor pyarrow."""
    if version_of(python) is None:
        pytest.skip(f"{python} does not start here, or has no venv")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    own = [tmp_path / "venv/bin/python"]
    subprocess.run([*own, "-m", "pip", "install", "--quiet", WHEEL], check=True, timeout=900)
    done = subprocess.run(
        [*own, "-c", NUMPY_LOOP], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "output_format='torch', the default, needs torch" in done.stdout
    assert "pip install torch" in done.stdout


# The pages whose snippets run in an empty folder with what the README installs, each in a process of its own.
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("checkpoints", "distributed", "errors", "files", "iceberg", "options")
    ),
    *(f"docs/{name}.md" for name in ("scale", "shuffling", "sql", "staging", "storage", "tensors")),
]
# Each snippet is run as if it were pasted, the next one when it is done.
PASTE = """\
import re, sys, pathlib
page, *left_out = sys.argv[1:]
text = pathlib.Path(page).read_text()
snippets = re.findall(r"^```python\\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
done = 0
for number, snippet in enumerate(snippets):
    if any(name in snippet for name in left_out):
        continue
    exec(compile(snippet, f"{page}, snippet {number}", "exec"), globals())
    done += 1
print(f"{done} of {len(snippets)} snippets")
"""


def test_each_snippet_of_the_pages_works_when_pasted_in_turn(installed):
    assert set(TOLD[1].split(",")) <= set(EXTRAS)
    left_out = sorted(NEWER) if installed.torch == OLDEST else []
    done, total, printed = 0, 0, {}
    for page in PAGES:
        # An empty folder for each page, since their files have the same names.
        folder = installed.folder / Path(page).stem
        folder.mkdir()
        shutil.copy(ROOT / page, folder)
        (folder / "paste.py").write_text(PASTE)
        arguments = ["paste.py", Path(page).name, *left_out]
        printed[page] = installed.run("python", *arguments, folder=folder)
        counted = re.findall(r"(\d+) of (\d+) snippets", printed[page])[0]
        done, total = done + int(counted[0]), total + int(counted[1])
    assert total >= 25
    # Only a snippet of distributed.md asks for dynamic assignment.
    assert total - done == (1 if installed.torch == OLDEST else 0)
    assert 'unknown column "prise"; did you mean "price"' in printed["docs/errors.md"]


def test_the_demo_trains(installed):
    shutil.copytree(ROOT / "sql-examples", installed.folder / "sql-examples", dirs_exist_ok=True)
    shutil.copytree(ROOT / ".demo", installed.folder / ".demo", dirs_exist_ok=True)
    printed = installed.run("python", "sql-examples/demo.py")
    auc = re.search(r"test on 6[\d,]+ flights: accuracy .* AUC ([\d.]+)", printed)[1]
    assert float(auc) > 0.85


def test_the_command_line_is_installed(installed):
    (installed.folder / "table.csv").write_text("a\n1\n2\n")
    assert installed.run("tensorquery", "count", "SELECT a FROM 'table.csv'") == "2\n"
