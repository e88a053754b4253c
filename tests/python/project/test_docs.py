"""The snippets of the README and of the pages run, and their links lead somewhere. Docstrings: test_docstrings.py."""

import inspect
import re
import shlex
import sys

import pytest
from torch.utils.data import DataLoader

import tensorquery as tq
from pages import ROOT, commands, run, run_script, snippets, text_of
from tensorquery.cli import main

README = text_of("README.md")

# Each page by itself, in an empty folder: how many snippets it has, and words that they print.
PAGES = {
    "README.md": (1, "torch.Size([1024]) torch.float32"),
    "docs/catalogs.md": (1, ""),
    "docs/checkpoints.md": (3, "events.parquet"),
    "docs/delta.md": (4, "WRITE"),
    "docs/distributed.md": (4, "ShardPlan"),
    "docs/errors.md": (2, 'unknown column "prise"; did you mean "price"'),
    "docs/files.md": (3, "800 rows of 2000"),
    "docs/iceberg.md": (2, "append"),
    "docs/migration.md": (4, ""),
    "docs/mixtures.md": (3, "web: 631 rows delivered, 3,369 left, 0 of them new"),
    "docs/options.md": (1, ""),
    "docs/packing.md": (3, "every token once: True"),
    "docs/rows.md": (4, "ValueError: no picture"),
    "docs/receipts.md": (4, "Verification: each row once"),
    "docs/recommenders.md": (5, "120 steps, the loss fell: True"),
    "docs/scale.md": (1, "ShardPlan"),
    "docs/shuffling.md": (2, ""),
    "docs/sql.md": (1, "SIMILAR TO is not supported"),
    "docs/storage.md": (1, "bytes in"),
    "docs/tensors.md": (5, "torch.float64"),
    "docs/types.md": (1, "torch.int64"),
    "docs/windows.md": (2, "the first window has the first rows: True"),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run_in_order(page, tmp_path):
    number, words = PAGES[page]
    found = snippets(page)
    assert len(found) == number
    # A file of its own, as a user would write it: worker processes under spawn import it again.
    script = tmp_path / "page.py"
    script.write_text("\n".join(found))
    assert words in run_script(script, tmp_path)


def test_every_page_with_snippets_has_a_test():
    """Those of the integrations are programs (test_integrations.py); functions.md is in test_udf.py, point-in-time.md in test_asof.py, without-torch.md in
    test_without_torch.py and test_jax_arrays.py."""
    tested = set(re.findall(r'snippets\("(docs/[\w-]+\.md)"\)', (ROOT / __file__).read_text()))
    tested |= {*PAGES, "docs/functions.md", "docs/point-in-time.md", "docs/without-torch.md"}
    written = {
        f"docs/{path.name}"
        for path in (ROOT / "docs").glob("*.md")
        if snippets(f"docs/{path.name}")
    }
    assert len(written) > 15
    assert sorted(written - tested) == []


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


@pytest.mark.slow
def test_the_snippets_of_the_page_on_staging_say_what_the_page_says(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = snippets("docs/staging.md")
    assert len(found) == 5
    names, printed, leaves = {}, [], []
    for snippet in found:
        exec(compile(snippet, "docs/staging.md", "exec"), names)
        printed.append(capsys.readouterr().out)
        leaves.append(names["query"].explain(stage_dir="stages").split("SplitScanExec: ")[-1])
    [drawing] = snippets("docs/staging.md", "text")
    assert printed[0].strip() == drawing.strip()
    built, refused = printed[1].splitlines()
    assert built.startswith("100 True an aggregate (GROUP BY, ")
    assert "is not row-local" in refused
    assert f"`{leaves[1].strip()}`" in text_of("docs/staging.md")
    assert leaves[2].strip() == "stage=1, not built yet"
    assert printed[2].split()[1] == "100"
    assert names["recent"].moment == printed[3].strip()
    assert printed[4] == ""


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


@pytest.mark.slow
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
    # The page shows such a line.
    shown, line = snippets("docs/metrics.md", "text")
    numbers = re.compile(r"[\d.,:]+[kM]?")
    assert numbers.sub("0", line.strip()) == numbers.sub("0", logged)
    last = re.split(r"[\r\n]", done.stderr.strip())[-1]
    assert numbers.sub("0", shown.strip()) == numbers.sub("0", last.strip())


def test_the_readme_opens_with_the_two_commands():
    assert README.index("make demo") < README.index("make test") < README.index("```python")


def test_the_page_of_parameters_has_each_of_them_once():
    rows = re.findall(r"^\| (`.*?) \|", text_of("docs/options.md"), flags=re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.replace("\\|", ""))]
    own = set(inspect.signature(tq.create_dataloader).parameters) - {"dataloader_kwargs"}
    passed_on = set(inspect.signature(DataLoader).parameters) & set(listed) - own
    assert len(listed) == len(set(listed))
    assert set(listed) == own | passed_on
    assert passed_on >= {"pin_memory"}


def anchor(title):
    """The name by which a code host links a heading."""
    text = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def test_links_of_the_pages_lead_somewhere():
    """To files and folders of the repository, and to headings of pages."""
    pages = sorted(
        page
        for folder in (
            ".",
            "docs/**",
            "benches",
            "fuzz",
            "sql-examples",
            "tests/faults",
            "tests/slt",
        )
        for page in ROOT.glob(f"{folder}/*.md")
    )
    assert len(pages) > 40
    links = []
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        links += [(page, link) for link in re.findall(r"\]\(([^):\s]+)\)", text)]
    assert len(links) >= 100
    for page, link in links:
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page}: {link}"
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
            assert heading in map(anchor, titles), f"{page}: {link}"


def test_files_of_the_crate_that_pages_name_are_there():
    named = {
        path
        for page in ("ARCHITECTURE.md", "docs/engine.md", "benches/README.md")
        for path in re.findall(r"`((?:\w+/)+(?:\w+\.rs)?)`", text_of(page))
        if (ROOT / "src" / path.partition("/")[0]).exists()
        and "NAME" not in path
        and not path.startswith("python/tensorquery/")
    }
    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / "src" / path).exists()] == []


def test_the_readme_fits_on_a_page():
    assert README.count("\n") <= 250
    assert text_of("ARCHITECTURE.md").count("\n") <= 150
    assert text_of("CHANGELOG.md").count("\n") <= 80
