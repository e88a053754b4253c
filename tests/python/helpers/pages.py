"""The runnable parts of a page of the documentation: snippets, the programs among them, and commands."""

import filecmp
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]

_RUNNERS = {"torchrun": [sys.executable, "-m", "torch.distributed.run"]}

_ABORT = "terminate called without an active exception"
"""The message of a rank that aborts, now and then, while it leaves a gloo group. A thread of torch does it, also in programs
without this package. Such a job is run once more, from the files that it found."""


def text_of(page):
    return (ROOT / page).read_text()


def snippets(page, language="python"):
    """The code blocks of a language, in their order; `py` are those that need what the tests do not have."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), flags=re.MULTILINE | re.DOTALL)


def programs(page):
    """The Python blocks that begin with the name of a file, by that name."""
    found = {}
    for snippet in snippets(page):
        if name := re.match(r"# (\w+\.py)\n", snippet):
            found[name[1]] = snippet
    return found


def commands(page):
    """The lines of the console blocks."""
    return [line for block in snippets(page, "console") for line in block.splitlines()]


def environment(**variables):
    """The environment of a program in another folder, which finds the package under test."""
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def run_script(script, folder, timeout=600, **variables):
    """Run a file of Python as the main program of a process that has imported torch already, which takes longer than most
    files; return what it printed."""
    told = [Path(folder, f"{Path(script).name}.{number}") for number in (1, 2)]
    # Forked, see conftest.py.
    context = multiprocessing.get_context("forkserver")
    process = context.Process(
        target=_as_main, args=(script, folder, told, environment(**variables))
    )
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
    process.join()
    printed, errors = (path.read_text() for path in told)
    assert process.exitcode == 0, f"{script}\n{printed}\n{errors}"
    return printed


def _as_main(script, folder, told, variables):
    os.environ.clear()
    os.environ.update(variables)
    # Its own workers start as those of any program.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(folder)
    for output, path in enumerate(told, start=1):
        with open(path, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), output)
    sys.argv[:], sys.path[:0] = [str(script)], [str(Path(script).parent)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.stdout.flush()


def run_command(line, folder, timeout=300):
    """Run a line of a console block: variables, `python` or `torchrun`, and the rest; return what it printed."""
    words = shlex.split(line)
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    program, *arguments = words
    if program == "python":
        return run_script(Path(folder, *arguments), folder, timeout, **variables)
    # Ranks of one machine that have all cores each spend their time waiting for one another.
    common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return run([*_RUNNERS[program], *arguments], folder, {**common, **variables}, timeout).stdout


def _restore(folder, kept):
    """Make a folder what it was. Files that are as they were stay: a file that is written anew is another one to a
    checkpoint."""
    before = {path.relative_to(kept) for path in Path(kept).rglob("*")}
    for path in sorted(Path(folder).rglob("*"), reverse=True):
        if path.relative_to(folder) not in before:
            path.rmdir() if path.is_dir() else path.unlink()
    for name in sorted(before):
        path, was = Path(folder, name), Path(kept, name)
        if was.is_dir():
            path.mkdir(exist_ok=True)
        elif not path.exists() or not filecmp.cmp(path, was, shallow=False):
            shutil.copy2(was, path)


def run(command, folder, variables, timeout):
    """Run a command that must succeed, with these variables beside those of the package."""
    options = {"cwd": folder, "env": environment(**variables), "capture_output": True, "text": True}
    with tempfile.TemporaryDirectory() as kept:
        shutil.copytree(folder, kept, dirs_exist_ok=True)
        done = subprocess.run(command, timeout=timeout, **options)
        if done.returncode and _ABORT in done.stderr and "torch.distributed.run" in command:
            _restore(folder, kept)
            done = subprocess.run(command, timeout=timeout, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done
