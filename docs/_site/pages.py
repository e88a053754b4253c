"""Hooks of mkdocs: they add pages from outside docs/, and rewrite links between pages for the site.

On a code host a link is relative to the file in the repository; on the site, to the page. Links are written for the
repository, and rewritten here if page and file lie in different places.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benches/README.md": "benchmarks.md",
    "sql-examples/README.md": "examples.md",
    "tests/faults/README.md": "faults.md",
    "tests/slt/README.md": "slt.md",
}
"""Files of the repository, and the pages that they become."""

FILES = ["benches/ratios.png", "sql-examples/explore.ipynb", "tests/fixtures/differential.json"]
"""Files of the repository that pages show or link to."""

_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: Any) -> Files:
    """Add what lies elsewhere."""
    for source, page in {**PAGES, **dict(zip(FILES, FILES, strict=True))}.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files into links between pages."""
    own = page.file.src_uri
    folder = posixpath.dirname(_SOURCES.get(own, f"docs/{own}"))

    def on_the_site(link: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(folder, link[0]))
        if (ROOT / source / "index.md").exists():
            # A code host shows a folder.
            source += "/index.md"
        target = PAGES.get(source, source.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(own))

    return _LINK.sub(on_the_site, markdown)
