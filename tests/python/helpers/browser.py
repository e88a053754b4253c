"""A real browser without a window, for the tests that look at what it draws: Chromium from its command line."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """The path of a Chromium; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed: apt install chromium")
    return found


class Browser:
    """Draws pages of files, without a network.

    Args:
        folder: For its profile.
    """

    def __init__(self, folder):
        self._program = find()
        self._folder = folder

    def _run(self, page, *options):
        command = [self._program, "--headless", "--disable-gpu", "--hide-scrollbars"]
        command += ["--no-first-run", f"--user-data-dir={self._folder}"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"]
        if os.geteuid() == 0:
            # Chromium's sandbox refuses to work for root, as whom containers run.
            command.append("--no-sandbox")
        done = subprocess.run(
            [*command, *options, page.as_uri()], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, page, script):
        """The result of a JavaScript function, called when the page is drawn."""
        asking = page.with_name(f"asking-{page.name}")
        call = f"<script>addEventListener('load', () => {{ const pre = document.createElement('pre'); pre.id = 'answer'; pre.textContent = JSON.stringify(({script})()); document.body.append(pre) }})</script>"
        asking.write_text(page.read_text().replace("</body>", f"{call}</body>"))
        drawn = self._run(asking, "--dump-dom", "--window-size=1000,2000")
        answer = re.search(r'<pre id="answer">(.*?)</pre>', drawn, flags=re.DOTALL)
        assert answer, drawn[-2000:]
        return json.loads(html.unescape(answer[1]))

    def draw(self, page, picture, height):
        """A picture of the page, so many pixels high."""
        picture.unlink(missing_ok=True)
        self._run(page, f"--screenshot={picture}", f"--window-size=1000,{height}")
        assert picture.exists()
