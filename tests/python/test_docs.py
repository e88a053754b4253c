"""What is written is run: the snippets of the README and of the pages; links lead somewhere. Docstrings: test_docstrings.py."""

import re
import shlex
import sys

from pages import ROOT, commands, run, run_script, snippets, text_of
from tensorquery.cli import main

README = text_of("README.md")


def test_every_readme_snippet_runs_in_order(tmp_path):
    assert len(snippets("README.md")) >= 9
    # A file of its own, as a user would write it: worker processes under spawn import it again.
    script = tmp_path / "readme.py"
    script.write_text("\n".join(snippets("README.md")))
    printed = run_script(script, tmp_path)
    assert "torch.Size([1024]) torch.float32" in printed
    assert 'unknown column "prise"; did you mean "price"' in printed


def test_the_snippets_of_the_page_on_sampling_say_what_the_page_says(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORQUERY_STAGES", str(tmp_path))
    found = snippets("docs/sampling.md")
    assert len(found) == 2
    names = {}
    for snippet in found:
        exec(compile(snippet, "docs/sampling.md", "exec"), names)
    kept, share = capsys.readouterr().out.splitlines()
    assert 900 < int(kept.split()[0]) < 1100
    assert share == "0.5 of the rows are positive, 0.02 in the table"


def test_the_snippets_of_the_page_on_staging_say_what_the_page_says(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = snippets("docs/staging.md")
    assert len(found) == 6
    names, printed, leaves = {}, [], []
    for snippet in found:
        exec(compile(snippet, "docs/staging.md", "exec"), names)
        printed.append(capsys.readouterr().out)
        leaves.append(names["query"].explain(stage_dir="stages").split("SplitScanExec: ")[-1])
    # What comes after needs a cluster.
    drawing, _ = snippets("docs/staging.md", "text")
    assert printed[0].strip() == drawing.strip()
    assert names["recent"].moment == printed[1].strip()
    built, refused = printed[2].splitlines()
    assert built.startswith("100 True an aggregate (GROUP BY, ")
    assert "is not row-local" in refused
    assert f"`{leaves[2].strip()}`" in text_of("docs/staging.md")
    assert leaves[3].strip() == "stage=1, not built yet"
    assert printed[3].split()[1] == "100"
    assert printed[4] == ""
    assert printed[5].startswith("SIMILAR TO is not supported")


def test_the_snippets_and_commands_of_the_page_on_exploration_run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = snippets("docs/exploration.md")
    assert len(found) == 5
    names = {}
    for snippet in found:
        exec(compile(snippet, "docs/exploration.md", "exec"), names)
    assert "'column': 'user', 'count': 300, 'nulls': 0, 'min': '0'" in capsys.readouterr().out
    printed = {}
    for line in commands("docs/exploration.md"):
        program, *arguments = shlex.split(line)
        assert program == "tensorquery"
        assert main(arguments) == 0, line
        printed[arguments[0]] = capsys.readouterr().out
    assert len(printed) == 6
    assert printed["count"] == "2000\n"
    assert printed["head"].split() == ["user", "item", "----", "----", "0", "null", "7", "null", "14", "null"]  # fmt: skip


def test_the_snippets_of_the_page_on_metrics_run(tmp_path):
    found = snippets("docs/metrics.md")
    assert len(found) == 7
    script = tmp_path / "metrics.py"
    script.write_text("\n".join(found))
    done = run([sys.executable, script], tmp_path, {}, 300)
    rows, *workers, sample, statistics, same, logged, again = done.stdout.splitlines()
    assert rows.startswith("20000.0 rows, ")
    assert [worker.split()[1] for worker in workers] == ["0", "1"]
    assert sample == 'tensorquery_rows_total{rank="0"} 20000'
    assert statistics.startswith("LoaderStatistics(epoch 0, ")
    assert same == "True"
    assert logged.startswith("epoch 1: 20,000 rows in 40 batches, ")
    assert again == "20000.0"
    # What the page shows looks like it.
    shown, line = snippets("docs/metrics.md", "text")
    numbers = re.compile(r"[\d.,:]+[kM]?")
    assert numbers.sub("0", line.strip()) == numbers.sub("0", logged)
    last = re.split(r"[\r\n]", done.stderr.strip())[-1]
    assert numbers.sub("0", shown.strip()) == numbers.sub("0", last.strip())


def test_the_snippets_of_the_page_on_migration_run(tmp_path):
    found = snippets("docs/migration.md")
    assert len(found) == 4
    script = tmp_path / "migration.py"
    script.write_text("\n".join(found))
    run_script(script, tmp_path)


def test_the_readme_opens_with_the_two_commands():
    assert README.index("make demo") < README.index("make test") < README.index("```python")


def test_links_of_the_pages_lead_somewhere():
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    pages += sorted((ROOT / "docs").rglob("*.md"))
    assert len(pages) > 25
    links = []
    for page in pages:
        found = re.findall(r"\]\(([^)#:\s]+)[)#]", page.read_text())
        links += [page.parent / link for link in found]
    assert len(links) >= 30
    for link in links:
        assert link.exists(), link
