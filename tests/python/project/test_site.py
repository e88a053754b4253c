"""The site of the documentation builds without a warning, and has every page and every public name."""

import re
import subprocess
import sys

import pytest
from test_docstrings import PUBLIC

import pages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=pages.ROOT,
        env=pages.environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def html(site):
    """The text of each page by its path."""
    found = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    assert len(found) > 30
    return found


def test_every_page_of_the_repository_is_on_the_site(html):
    for page in sorted((pages.ROOT / "docs").rglob("*.md")):
        name = page.relative_to(pages.ROOT / "docs").with_suffix("")
        folder = name.parent if name.name == "index" else name
        assert f"{folder}/index.html" in html, page
    for name in ("architecture", "benchmarks", "changelog", "contributing", "faults"):
        assert f"{name}/index.html" in html
    assert "<h1" in html["index.html"]


def test_files_that_pages_show_are_there(site):
    for name in ("benches/ratios.png", "sql-examples/explore.ipynb"):
        assert (site / name).read_bytes() == (pages.ROOT / name).read_bytes()


def test_every_public_name_is_in_the_reference(html):
    reference = "".join(text for page, text in html.items() if page.startswith("reference/"))
    anchors = set(re.findall(r'id="(tensorquery[\w.]*)"', reference))
    # An extension is shown under the name of its module.
    moved = {"tensorquery.QueryNode": "tensorquery.integrations.nodes.QueryNode"}
    moved["tensorquery.QueryTrainerMixin"] = "tensorquery.integrations.trainer.QueryTrainerMixin"
    moved["tensorquery.compat.FileSplit"] = "tensorquery.compat.Split"
    moved["tensorquery.compat.CheckpointMismatchError"] = "tensorquery.CheckpointMismatchError"
    missing = []
    for name in PUBLIC:
        for old, new in moved.items():
            if name == old or name.startswith(f"{old}."):
                name = name.replace(old, new)
        if name not in anchors:
            missing.append(name)
    assert missing == []
    assert len(anchors) > 100


def test_docstrings_are_laid_out(html):
    text = html["reference/loaders/index.html"]
    signature = text[text.index('id="tensorquery.create_dataloader"') :]
    for title in ("Parameters:", "Returns:", "Raises:"):
        assert title in signature
    # A doctest outside of an Examples section would be a quotation.
    quoted = [
        page for page, text in html.items() if re.search(r"<blockquote>\s*<blockquote>", text)
    ]
    assert quoted == []


def test_lists_and_tables_are_no_paragraphs(html):
    """The dialect of a code host takes a list right below a paragraph; the site's does not."""
    broken = [
        (page, found[0])
        for page, text in html.items()
        if (found := re.search(r"<p>(?:(?!</p>).)*\n(?:- |\| )", text, flags=re.DOTALL))
    ]
    assert broken == []


def test_links_between_places_of_the_repository_are_links_of_the_site(html):
    assert 'href="types/"' in html["index.html"]
    assert 'href="benchmarks/"' in html["index.html"]
    assert 'href="../benchmarks/"' in html["scale/index.html"]
    assert 'src="../benches/ratios.png"' in html["benchmarks/index.html"]
    assert 'href="../../types/"' in html["integrations/numpy/index.html"]


def test_it_asks_no_other_host(html):
    for page, text in html.items():
        assert not re.search(r'<(?:script|img|link rel="stylesheet")[^>]+"(?:https?:)?//', text), (
            page
        )


def test_there_is_a_light_and_a_dark_theme(html):
    text = html["index.html"]
    assert 'data-md-color-scheme="default"' in text
    assert 'data-md-color-scheme="slate"' in text


def test_what_is_built_is_not_committed():
    ignored = subprocess.run(["git", "check-ignore", "--quiet", ".site/index.html"], cwd=pages.ROOT)
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert ignored.returncode == 0
