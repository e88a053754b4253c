"""What is written is run: the README's snippets, the docstrings of all public names."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tensorquery as tq
from tensorquery.command import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_every_readme_snippet_runs_in_order(tmp_path):
    assert len(SNIPPETS) >= 9
    # A file of its own, as a user would write it: worker processes under spawn import it again.
    script = tmp_path / "readme.py"
    script.write_text("\n".join(SNIPPETS))
    # The package is found as it is here, from any folder.
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1024]) torch.float32" in done.stdout
    assert 'unknown column "prise"; did you mean "price"' in done.stdout


def test_the_snippets_of_the_page_on_sampling_say_what_the_page_says(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    page = (ROOT / "docs" / "sampling.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    names = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/sampling.md", "exec"), names)
    kept, share = capsys.readouterr().out.splitlines()
    assert 900 < int(kept.split()[0]) < 1100
    assert share == "0.5 of the rows are positive, 0.02 in the table"


def test_the_snippets_of_the_page_on_staging_say_what_the_page_says(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "staging.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) == 6
    names, printed, leaves = {}, [], []
    for snippet in snippets:
        exec(compile(snippet, "docs/staging.md", "exec"), names)
        printed.append(capsys.readouterr().out)
        leaves.append(names["query"].explain(stage_dir="stages").split("SplitScanExec: ")[-1])
    # What comes after needs a cluster.
    drawing, _ = re.findall(r"^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert printed[0].strip() == drawing.strip()
    assert names["recent"].moment == printed[1].strip()
    built, refused = printed[2].splitlines()
    assert built.startswith("100 True an aggregate (GROUP BY, ")
    assert "is not row-local" in refused
    assert f"`{leaves[2].strip()}`" in page
    assert leaves[3].strip() == "stage=1, not built yet"
    assert printed[3].split()[1] == "100"
    assert printed[4] == ""
    assert printed[5].startswith("EXCEPT ALL is not supported")


def test_the_snippets_and_commands_of_the_page_on_exploration_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "exploration.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) == 5
    names = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/exploration.md", "exec"), names)
    assert "'column': 'user', 'count': 300, 'nulls': 0, 'min': '0'" in capsys.readouterr().out
    (console,) = re.findall(r"^```console\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    printed = {}
    for line in console.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "tensorquery"
        assert main(arguments) == 0, line
        printed[arguments[0]] = capsys.readouterr().out
    assert len(printed) == 6
    assert printed["count"] == "2000\n"
    assert printed["head"].split() == ["user", "item", "----", "----", "0", "null", "7", "null", "14", "null"]  # fmt: skip


def test_the_snippets_of_the_page_on_migration_run(tmp_path):
    page = (ROOT / "docs" / "migration.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) == 4
    script = tmp_path / "migration.py"
    script.write_text("\n".join(snippets))
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True, timeout=300)


def test_the_readme_opens_with_the_two_commands():
    assert README.index("make demo") < README.index("make test") < README.index("```python")


def test_links_of_the_pages_lead_somewhere():
    links = []
    for page in (
        "README.md",
        "ARCHITECTURE.md",
        "docs/types.md",
        "docs/catalogs.md",
        "docs/sampling.md",
        "docs/staging.md",
        "docs/functions.md",
        "docs/scale.md",
        "docs/storage.md",
        "docs/point-in-time.md",
        "docs/exploration.md",
        "docs/migration.md",
    ):
        found = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
        links += [(ROOT / page).parent / link for link in found]
    assert len(links) >= 3
    for link in links:
        assert link.exists(), link


# --- docstrings ---


def public_callables():
    """Every public class, function, method and property, by its qualified name."""
    found = {}
    for name in [*tq.__all__, "QueryNode"]:
        thing = getattr(tq, name)
        if inspect.isclass(thing):
            found[name] = thing
            for member, value in vars(thing).items():
                if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                    found[f"{name}.{member}"] = value
        elif callable(thing):
            found[name] = thing
    return found


def test_every_public_name_has_a_docstring():
    found = public_callables()
    assert len(found) > 40
    for name, thing in found.items():
        assert inspect.getdoc(thing), name


def test_docstrings_name_arguments_results_and_errors():
    checked = 0
    for name, thing in public_callables().items():
        if isinstance(thing, property) or not inspect.isfunction(thing):
            continue
        text = inspect.getdoc(thing)
        parameters = [
            parameter
            for parameter in inspect.signature(thing).parameters.values()
            if parameter.name != "self" and not parameter.name.startswith("_")
        ]
        for parameter in parameters:
            assert re.search(rf"^\s*\*{{0,2}}{parameter.name}: ", text, re.MULTILINE), (
                name,
                parameter,
            )
        if parameters:
            assert "Args:" in text, name
        checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    "thing",
    [
        tq.create_dataloader,
        tq.to_tensors,
        tq.Session.sql,
        tq.Session.register_parquet,
        tq.Session.register_csv,
        tq.Session.register_json,
        tq.Session.register_arrow,
        tq.Query.plan_shards,
        tq.Query.select,
        tq.Query.to_arrow,
        tq.ShardPlan.splits,
    ],
    ids=lambda thing: thing.__qualname__,
)
def test_what_can_fail_says_how(thing):
    text = inspect.getdoc(thing)
    assert "Raises:" in text
    assert inspect.signature(thing).return_annotation in ("None", None) or "Returns:" in text
