"""The pages of the integrations: each program on them runs as the page says, and prints what it promises."""

import re
import shutil
import sys
from importlib.util import find_spec

import pytest

import pages

FOLDER = "docs/integrations"
ALL = sorted(path.name for path in (pages.ROOT / FOLDER).glob("*.md"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the data of the pages."""
    folder = tmp_path_factory.mktemp("data")
    [(name, program)] = pages.programs(f"{FOLDER}/index.md").items()
    (folder / name).write_text(program)
    pages.run_command(f"python {name}", folder)
    return folder


@pytest.fixture
def run(tmp_path, data):
    """Run commands of a page, or all of them, in a folder with the data; return the lines that each printed."""

    def run(page, *lines):
        shutil.copytree(data, tmp_path, dirs_exist_ok=True)
        for name, program in pages.programs(f"{FOLDER}/{page}").items():
            (tmp_path / name).write_text(program)
        printed = [
            pages.run_command(line, tmp_path)
            for line in lines or pages.commands(f"{FOLDER}/{page}")
        ]
        return [[line for line in text.splitlines() if line.strip()] for text in printed]

    return run


ABORTED_ONCE = """
import os, sys

if not os.path.exists(sys.argv[1]):
    os.makedirs("run/checkpoint")
    for name in sys.argv[1], "run/checkpoint/state", "data/changed":
        open(name, "w").close()
    os.unlink("data/gone")
    sys.exit("terminate called without an active exception")
print(sorted(os.listdir(".")), [open(f"data/{name}").read() for name in sorted(os.listdir("data"))])
"""


@pytest.mark.slow
def test_a_job_that_torch_aborts_runs_again_from_the_files_that_it_found(tmp_path):
    """Those that it left alone are the same files: to a checkpoint, copies would be others."""
    folder, flag = tmp_path / "folder", tmp_path / "flag"
    (folder / "data").mkdir(parents=True)
    for name in ("as_it_was", "changed", "gone"):
        (folder / "data" / name).write_text(name)
    kept = (folder / "data" / "as_it_was").stat()
    command = [sys.executable, "-c", ABORTED_ONCE, str(flag), "torch.distributed.run"]
    printed = pages.run(command, folder, {}, timeout=60).stdout
    assert printed.strip() == "['data'] ['as_it_was', 'changed', 'gone']"
    again = (folder / "data" / "as_it_was").stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)


def test_each_page_has_programs_that_its_commands_run():
    assert len(ALL) == 10
    for page in ALL:
        programs, commands = pages.programs(f"{FOLDER}/{page}"), pages.commands(f"{FOLDER}/{page}")
        assert programs, page
        started = {word for line in commands for word in line.split() if word.endswith(".py")}
        assert started == set(programs), page


def test_snippets_that_are_not_run_are_python():
    checked = 0
    for page in ALL:
        for snippet in pages.snippets(f"{FOLDER}/{page}", "py"):
            compile(snippet, page, "exec")
            checked += 1
    assert checked >= 3


def test_every_page_is_in_the_table():
    text = pages.text_of(f"{FOLDER}/index.md")
    assert [page for page in ALL if page != "index.md" and f"]({page})" not in text] == []


@pytest.mark.slow
def test_ddp_and_fsdp(run):
    first, second, sharded = run("torch.md")
    assert [re.sub(r"loss .*", "", line) for line in first] == [
        "15 steps of 2 ranks: 900 rows, "
    ] * 4
    assert len(second) == 1
    assert second[0].startswith("10 steps of 2 ranks: 580 rows, ")
    assert float(second[0].split()[-1]) < 0.1
    assert sharded[0].startswith("16 steps of 2 ranks, loss ")


@pytest.mark.slow
def test_accelerate(run):
    assert run("accelerate.md") == [["16 steps of 2 processes, rows [1000, 616]"]]


@pytest.mark.slow
def test_lightning(run):
    first, second = run("lightning.md")
    assert first[-1] == "32 steps, 2000 rows, resumed: False"
    assert second[-1] == "32 steps, 488 rows, resumed: True"


@pytest.mark.slow
def test_the_trainer(run):
    first, second = run("trainer.md")
    assert first[-1] == "32 steps of 2 processes, resumed: False"
    assert second[-1] == "32 steps of 2 processes, resumed: True"


@pytest.mark.slow
def test_variables_of_launchers(run):
    lines = [line for line in pages.commands(f"{FOLDER}/launchers.md") if "share.py" in line]
    assert run("launchers.md", *lines) == [
        [f"rank {rank} of 3: 10 steps, 300 rows"] for rank in range(3)
    ]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_deepspeed(run, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    first, second = run("launchers.md", *["torchrun --nproc-per-node 2 with_deepspeed.py"] * 2)
    assert "32 steps of 2 ranks, 1000 rows on this one" in first
    assert "32 steps of 2 ranks, 372 rows on this one" in second


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray(run):
    [[*_, metrics]] = run("ray.md")
    assert "'ranks': 2" in metrics
    assert "'rows': 500" in metrics


@pytest.mark.slow
def test_torchdata(run):
    assert run("torchdata.md") == [
        ["160 + 840 rows, 1000 different ones"],
        ["1000 rows, sum of x 499.5"],
    ]


@pytest.mark.slow
def test_numpy(run):
    assert run("numpy.md", "python numpy_loop.py") == [["y = 3.00 x + 1.00"]]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
def test_jax(run):
    assert run("numpy.md", "python jax_loop.py") == [["y = 3.00 x + 1.00 after 150 steps"]]


@pytest.mark.slow
def test_data_frames_and_datasets(run):
    frames, rows = run("frames.md")
    assert frames == ["200 rows of ['age', 'id', 'letters', 'price', 'x']"]
    assert rows[-1] == "500 100"
