"""sql-examples/explore.ipynb runs from raw files to a trained model, and a browser shows it readably, light and dark."""

import base64
import html
import io
import json
import re
import time

import matplotlib.image
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

import pages
from browser import Browser

pytestmark = pytest.mark.slow

NOTEBOOK = pages.ROOT / "sql-examples/explore.ipynb"
SCREENSHOTS = pages.ROOT / ".screenshots"
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook with its outputs, and the seconds that they took."""
    own = tmp_path_factory.mktemp("notebook")
    variables = {
        # The kernel of this environment, and nothing of the user's.
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_DATA_DIR": str(own / "jupyter"),
        "IPYTHONDIR": str(own / "ipython"),
        "TENSORQUERY_CACHE": str(own / "cache"),
        "TENSORQUERY_STAGES": str(own / "stages"),
    }
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_PREFER_ENV_PATH", "JUPYTER_DATA_DIR"):
            patch.setenv(name, variables[name])
        started = time.perf_counter()
        client.execute(env=pages.environment(**variables))
        return notebook, time.perf_counter() - started


def outputs(notebook, beginning):
    """Outputs by kind of the one cell whose code begins so; texts are joined as `text`."""
    [cell] = [cell for cell in notebook.cells if cell.source.startswith(beginning)]
    found = {"text": ""}
    for output in cell.outputs:
        found.update(output.get("data", {}))
        found["text"] += output.get("text", "")
    return found


# --- the file ---


def test_it_is_committed_without_what_a_run_leaves():
    text = NOTEBOOK.read_text()
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 15
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    nbformat.validate(notebook)
    # As nbformat writes it, so that saving it changes nothing else.
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:\s]+)[)#]", NOTEBOOK.read_text())
    assert len(links) >= 2
    assert [link for link in links if not (NOTEBOOK.parent / link).exists()] == []


# --- the run ---


def test_it_runs_from_raw_files_to_a_model_in_two_minutes(executed):
    notebook, seconds = executed
    assert seconds < 120
    assert "flights/2013-01.parquet" in outputs(notebook, "import json")["text"]
    assert "336,776" in outputs(notebook, "%load_ext tensorquery")["text/html"]
    summer = outputs(notebook, "%%tq summer")["text/html"]
    assert "2 of 12 files" in summer
    assert "57049" in outputs(notebook, "summer.describe")["text/html"]
    assert outputs(notebook, "summer.sample")["text/html"].count("<tr") == 6
    tree = outputs(notebook, "print(by_carrier.explain")["text"]
    assert "└─ AggregateExec" not in tree.splitlines()[1]
    assert "└─ " in tree
    assert (
        "4 ranks × 2 workers" in outputs(notebook, 'session.register_view("examples"')["text/html"]
    )
    first, last = re.search(
        r"loss ([\d.]+) at first, ([\d.]+) at last", outputs(notebook, "torch.manual_seed")["text"]
    ).groups()
    assert float(last) < float(first)
    seen = outputs(notebook, "batches = iter(loader)")["text"]
    assert "102,400 + 159,490 = 261,890 of 261,890 rows" in seen
    auc = re.search(r"AUC ([\d.]+)", outputs(notebook, "held_out, _")["text"])[1]
    assert 0.65 < float(auc) < 0.8


def test_its_bars_are_those_of_a_notebook(executed):
    notebook, _ = executed
    assert WIDGET in outputs(notebook, "torch.manual_seed")
    state = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    bars = [each["state"] for each in state.values() if each["model_name"] == "FloatProgressModel"]
    texts = [each["state"] for each in state.values() if each["model_name"] == "HTMLModel"]
    # The count, the whole first epoch, and the part of the second that was received.
    assert {(bar["value"], bar["max"]) for bar in bars if bar["max"] > 1} == {
        (48.0, 48.0),
        (261_890.0, 261_890.0),
        (102_400.0, 261_890.0),
    }
    shown = [html.unescape(text["value"]).replace("\u2007", " ") for text in texts]
    assert [text for text in shown if re.fullmatch(r" 262k/262k \[.* rows/s, wait \d+%\]", text)], (
        shown
    )


def test_nothing_is_said_on_stderr(executed):
    notebook, _ = executed
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    loud = [
        output
        for cell in code
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert loud == []


# --- what a browser shows ---

# The least contrast of a text to what is below it, as the Web Content Accessibility Guidelines compute it, with
# opacities; whether all of them are drawn, and on which side of their cells.
PROBE = r"""() => {
  const parse = text => { const n = text.match(/[\d.]+/g).map(Number); return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1]; };
  const over = (top, below, alpha) => top.slice(0, 3).map((c, i) => c * top[3] * alpha + below[i] * (1 - top[3] * alpha));
  const luminance = c => { const l = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * l[0] + .7152 * l[1] + .0722 * l[2]; };
  const background = node => { for (let each = node; each; each = each.parentElement) {
    const color = parse(getComputedStyle(each).backgroundColor); if (color[3] > .99) return color.slice(0, 3); } return [255, 255, 255]; };
  const found = [], height = document.documentElement.scrollHeight;
  document.querySelectorAll('details').forEach(each => each.open = true);
  for (const box of document.querySelectorAll('.tensorquery')) {
    const contrasts = [], texts = [];
    const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.textContent.trim() || node.tagName === 'title' || node.tagName === 'STYLE') continue;
      const style = getComputedStyle(node), svg = node instanceof SVGElement;
      let alpha = svg ? Number(style.fillOpacity) : 1;
      for (let each = node; each !== box.parentElement; each = each.parentElement) alpha *= Number(getComputedStyle(each).opacity);
      const below = background(node), color = over(parse(svg ? style.fill : style.color), below, alpha);
      const [high, low] = [luminance(color), luminance(below)].sort((a, b) => b - a);
      contrasts.push((high + .05) / (low + .05));
      const place = node.getBoundingClientRect();
      texts.push(place.width > 0 && place.height > 0);
    }
    found.push({title: box.querySelector('b').textContent, least: Math.min(...contrasts), texts: texts.length, drawn: texts.every(Boolean),
      sides: [...new Set([...box.querySelectorAll('td')].map(cell => cell.className + getComputedStyle(cell).textAlign))].sort(), background: background(box)});
  }
  return {boxes: found, images: [...document.images].map(image => image.naturalWidth), height};
}"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    return Browser(tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module", params=["light", "dark"])
def shown(request, browser, executed, tmp_path_factory):
    """The theme, and what the browser says of the notebook in it; a picture is kept in .screenshots."""
    theme = request.param
    notebook = nbformat.from_dict(executed[0])
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            # Widgets need scripts from other hosts; the text of the bar stands beside them.
            output.get("data", {}).pop(WIDGET, None)
    exporter = HTMLExporter(theme=theme, mathjax_url="", require_js_url="", mermaid_js_url="")
    text, _ = exporter.from_notebook_node(notebook)
    page = tmp_path_factory.mktemp(theme) / "explore.html"
    page.write_text(text)
    found = browser.ask(page, PROBE)
    SCREENSHOTS.mkdir(exist_ok=True)
    picture = SCREENSHOTS / f"explore-{theme}.png"
    browser.draw(page, picture, min(found["height"], 16_000))
    return theme, found, picture


def test_the_browser_shows_it_readably(shown):
    theme, found, picture = shown
    titles = [box["title"] for box in found["boxes"]]
    assert titles == ["Session", "Query", "Query", "Query", "ShardPlan", "LoaderStatistics"]
    for box in found["boxes"]:
        assert box["texts"] >= 5, box
        assert box["drawn"], box
        # 4.5 is what the guidelines ask of small text.
        assert box["least"] >= 4.5, box
        # As we say it, whatever the page says of tables.
        assert set(box["sides"]) <= {"left", "numberright"}, box
        # The background is the page's, never our own.
        assert (sum(box["background"]) < 200) == (theme == "dark"), box
    assert len(found["images"]) == 2
    assert all(width > 400 for width in found["images"])
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[1] == 1000
    assert (pixels[..., :3].mean() < 0.5) == (theme == "dark")
    assert pixels.std() > 0.05


def test_screenshots_are_not_committed():
    ignored = (pages.ROOT / ".gitignore").read_text().splitlines()
    assert "/.screenshots" in ignored


@pytest.mark.parametrize("ground", [0.0, 1.0], ids=["dark", "light"])
def test_plots_can_be_read_on_any_ground(executed, ground):
    """Pictures of matplotlib have no ground of their own, and lines and letters that stand off from black and white."""
    notebook, _ = executed
    for cell in ("plan.plot();", "loader.statistics.plot();"):
        [output] = [
            output
            for each in notebook.cells
            if each.source.startswith(cell)
            for output in each.outputs
        ]
        # Jupyter would put a ground behind it.
        assert output.metadata == {}
        data = base64.b64decode(outputs(notebook, cell)["image/png"])
        pixels = matplotlib.image.imread(io.BytesIO(data))
        assert pixels.shape[2] == 4
        assert (pixels[..., 3] == 0).mean() > 0.3
        colors = pixels[pixels[..., 3] > 0.99][:, :3]
        linear = np.where(colors <= 0.03928, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
        luminance = linear @ [0.2126, 0.7152, 0.0722]
        high, low = np.maximum(luminance, ground) + 0.05, np.minimum(luminance, ground) + 0.05
        assert (high / low).min() > 2.5, cell
