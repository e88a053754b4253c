"""Queries, sessions and plans in notebooks: their pictures are true, quick and harmless, and never fail."""

import re
import signal
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser

import matplotlib
import matplotlib.pyplot
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from tensorquery.display.limit import Limit
from tensorquery.display.plan import balance_svg, bars_of

matplotlib.use("Agg")

DAYS = ("2026-01-01", "2026-01-02")
EVIL = "<script>alert('&\"')</script>"


@pytest.fixture
def session(tmp_path):
    session = tq.Session()
    for day in DAYS:
        folder = tmp_path / "events" / f"day={day}"
        folder.mkdir(parents=True)
        rows = {"user": range(100), "name": ["a", None] * 50, "tags": [[1], None] * 50}
        pq.write_table(pa.table(rows), folder / "part.parquet", row_group_size=20)
    session.register_parquet("events", tmp_path / "events")
    session.register_table("points", pa.table({"x": [1, None, 3], "y": ["a", "b", "c"]}))
    session.register_view("adults", "SELECT user AS adult FROM events WHERE user >= 18")
    return session


class Page(HTMLParser):
    """The texts of a page by tag, and its tags with their attributes."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.cells = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        self.text.append(data)
        if self.tags and self.tags[-1][0] in ("td", "th", "span") and self.cells:
            self.cells[-1] += data

    @property
    def words(self):
        return " ".join(text for text in self.text if not text.startswith("\n."))


KNOWN = {"style", "div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "details"} | {
    *("summary", "pre", "svg", "rect", "title", "line", "text")
}


def look(thing):
    """The page of an object, which holds nothing but what we write."""
    html = thing._repr_html_()
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= KNOWN
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    # Colours of the page, light or dark.
    assert set(re.findall(r"background(?:-color)?:([^;}]*)", html)) <= {"none"}
    assert "#000" not in html
    assert "#fff" not in html
    return page


# --- queries ---


def test_a_query_shows_columns_first_rows_and_what_it_reads(session):
    page = look(session.sql("SELECT * FROM events"))
    assert "4 columns" in page.words
    assert "200 rows" in page.words
    assert "2 of 2 files" in page.words
    assert "10 of 10 row groups" in page.words
    assert page.cells[:7] == ["column", "type", "nulls", "user", "Int64", "0", "name"]
    first = page.cells.index("user", 5)
    assert page.cells[first + 4 : first + 8] == ["0", "a", "[1]", "2026-01-01"]
    assert page.cells[first + 8 : first + 12] == ["1", "null", "null", "2026-01-01"]
    assert "SELECT * FROM events" in page.words


def test_a_filter_shows_what_is_pruned_and_claims_no_count(session):
    page = look(session.sql("SELECT user FROM events WHERE day = '2026-01-02' AND user < 50"))
    assert "60 rows to read, before filters and joins" in page.words
    assert "1 of 2 files" in page.words
    assert "3 of 5 row groups" in page.words
    assert "nulls" not in page.cells


def test_what_runs_once_says_why_and_shows_its_rows(session):
    page = look(session.sql("SELECT name, count(*) AS n FROM events GROUP BY name"))
    assert "a part of it runs once before rows are shared: an aggregate" in page.words
    assert "Exec" not in page.words
    assert page.cells[-4:] in (["a", "100", "null", "100"], ["null", "100", "a", "100"])


def nulls_of(query):
    cells = look(query).cells
    if cells[2] != "nulls":
        return None
    return dict(zip(cells[3 : 3 + 3 * len(query.column_names) : 3], cells[5::3], strict=False))


def test_nulls_are_those_of_the_data_where_they_are_known(session):
    counted = {"user": "0", "name": "100", "day": "0"}
    assert nulls_of(session.table("events")) == {**counted, "tags": "?"}
    assert nulls_of(session.sql("SELECT name, user FROM events;")) == {"name": "100", "user": "0"}
    assert nulls_of(session.table("points")) == {"x": "1", "y": "0"}
    # Another column under a name that a file has, too.
    assert nulls_of(session.sql("SELECT name AS user FROM events")) is None
    assert nulls_of(session.sql("SELECT * FROM events WHERE user > 3")) == {
        **dict.fromkeys(("user", "name", "tags"), "?"),
        "day": "0",
    }


def test_nulls_of_a_view_are_not_those_of_a_column_of_the_same_name(session):
    session.register_view("swapped", "SELECT name AS user, user AS name FROM events")
    assert nulls_of(session.sql("SELECT user, name FROM swapped")) is None


def test_nulls_of_another_file_in_the_same_place_are_not_shown(session, tmp_path):
    query = session.sql("SELECT name FROM events")
    assert nulls_of(query) == {"name": "100"}
    pq.write_table(pa.table({"name": ["a"] * 7}), tmp_path / "events/day=2026-01-01/part.parquet")
    page = look(query)
    assert "changed" in page.words
    assert "nulls" not in page.cells


def test_everything_from_outside_is_escaped(tmp_path):
    session = tq.Session()
    session.register_table(EVIL, pa.table({EVIL: [EVIL, None], "n": [1, 2]}))
    session.register_table("long", pa.table({"s": ["x" * 1000, "line\nbreak\x00"]}))
    for thing in (session, session.table(EVIL), session.sql(f"SELECT {quoted(EVIL)} AS a, {text(EVIL)} AS b FROM {quoted(EVIL)}")):  # fmt: skip
        page = look(thing)
        assert EVIL in page.words
        assert "script" not in [tag for tag, _ in page.tags]
    cells = look(session.table("long")).cells
    assert "x" * 59 + "…" in cells
    assert "line break " in cells
    folder = tmp_path / "<b>folder"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "a.parquet")
    session.register_parquet("gone", folder)
    (folder / "a.parquet").unlink()
    page = look(session.sql("SELECT x FROM gone"))
    assert "<b>folder" in page.words


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def text(value):
    return "'" + value.replace("'", "''") + "'"


def test_secrets_in_urls_are_not_shown():
    session = tq.Session(storage_options={"aws_secret_access_key": "hunter2"})
    session.register_table("t", pa.table({"x": [1]}))
    sql = (
        "SELECT x FROM t WHERE 's3://id:hunter2@bucket/a' <> '' AND 'https://hunter2@host/a' <> '' "
        "AND 'https://host/a?X-Amz-Signature=hunter2&b=1' <> ''"
    )
    html = session.sql(sql)._repr_html_()
    assert "id:***@bucket" in html
    assert "https://***@host" in html
    assert "hunter2" not in html + session._repr_html_()


def test_a_vanished_file_is_said_in_the_box(session, tmp_path):
    query = session.sql("SELECT user FROM events WHERE user > 1")
    (tmp_path / "events/day=2026-01-01/part.parquet").unlink()
    page = look(query)
    assert "DataError: file" in page.words
    assert "vanished" in page.words
    assert "user" in page.cells
    # A query that runs once reads the file, too.
    assert "vanished" in look(session.sql("SELECT max(user) FROM events")).words


def test_without_pyarrow_there_are_no_rows_and_no_failure(session, monkeypatch):
    query = session.sql("SELECT user FROM events")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    page = look(query)
    assert "200 rows" in page.words
    assert "pip install pyarrow" in page.words


# --- quick ---


@pytest.fixture
def slow(session):
    """A session with a function that takes its time, and the rows that it was called for."""
    seen = []

    def dawdle(x):
        seen.append(len(x))
        time.sleep(0.01)
        return pc.greater(x, 10**9)

    session.register_table("many", pa.concat_tables([pa.table({"x": range(500)})] * 2000))
    session.register_udf("dawdle", dawdle, ["int64"], "bool")
    return session, seen


@pytest.mark.slow
def test_a_query_that_takes_long_is_given_up(slow):
    session, seen = slow
    started = time.perf_counter()
    page = look(session.sql("SELECT x FROM many WHERE dawdle(x)"))
    assert time.perf_counter() - started < 5
    assert "takes longer than 2 s" in page.words
    assert "1,000,000 rows to read" in page.words
    assert seen
    # It does not go on behind the notebook's back: the engine looks up after at most 128 batches.
    time.sleep(2.5)
    called = len(seen)
    time.sleep(0.5)
    assert len(seen) == called < 1000


def test_where_time_cannot_be_limited_only_what_is_quick_runs(slow):
    session, seen = slow
    pages = []

    def show():
        pages.append(look(session.sql("SELECT x FROM many WHERE dawdle(x)")))
        pages.append(look(session.table("many")))

    thread = threading.Thread(target=show)
    thread.start()
    thread.join()
    assert not seen
    assert "query.head() shows the first rows" in pages[0].words
    assert "7" in pages[1].cells


def test_an_alarm_of_the_user_is_left_alone(slow):
    session, seen = slow
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        assert "query.head() shows" in look(session.sql("SELECT x FROM many WHERE dawdle(x)")).words
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not seen
    look(session.table("many"))
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_joins_of_every_row_with_every_row_are_not_run(session):
    session.register_table("many", pa.table({"x": range(1_000_000)}))
    started = time.perf_counter()
    page = look(session.sql("SELECT count(*) FROM many a, many b WHERE a.x * b.x > 3"))
    assert time.perf_counter() - started < 1
    assert "it joins every row with every row" in page.words


def test_a_limit_ends_what_runs_inside_and_nothing_else():
    with Limit(0.05) as limit:
        while True:
            pass
    assert limit.works
    assert limit.passed
    with pytest.raises(ZeroDivisionError), Limit(10):
        1 / 0  # noqa: B018
    for _ in range(300):
        # The time is up at any place, also at the end.
        with Limit(0.0003) as limit:
            sum(range(int(limit.works) * 8000))
    time.sleep(0.01)


# --- sessions ---


def test_a_session_shows_its_tables_and_their_columns(session):
    page = look(session)
    assert page.cells[6:12] == ["adults", "view", "", "", "", "1"]
    assert page.cells[12:15] == ["events", "parquet", "2"]
    assert page.cells[16:18] == ["200", "4"]
    assert page.cells[18:20] == ["points", "memory"]
    assert "adult" in page.cells
    assert "tags" in page.cells
    assert "no tables" in look(tq.Session()).words
    assert "catalogs" not in page.words


def test_a_session_names_its_catalogs_and_asks_them_nothing():
    session = tq.Session()
    session.register_iceberg("lake", {"type": "rest", "uri": "http://127.0.0.1:1"})
    assert "catalogs: lake" in look(session).words


def test_files_that_are_left_out_are_named(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 is not enough")
    session = tq.Session()
    with pytest.warns(UserWarning, match=r"b\.parquet"):
        session.register_parquet("t", tmp_path, on_error="skip")
    assert "t: 1 files are left out, for example" in look(session).words


# --- plans ---


def test_a_plan_shows_its_balance(session):
    plan = session.table("events").plan_shards(world_size=3, num_workers=2, batch_size=7)
    page = look(plan)
    assert "10 splits · 3 ranks × 2 workers" in page.words
    assert "every rank delivers" in page.words
    bars = [attrs for tag, attrs in page.tags if tag == "rect"]
    assert len(bars) == 6
    heights = [float(bar["height"]) for bar in bars]
    sizes = [shard.bytes for shard in plan.shards]
    assert heights == pytest.approx([size / max(sizes) * 120 for size in sizes], abs=0.06)
    assert page.cells[:6] == ["rank", "worker", "splits", "rows before filters", "bytes", "batches at most"]  # fmt: skip
    assert f"{sizes[0]:,}" in page.cells


def test_what_every_step_waits_for_is_marked(session):
    plan = session.table("events").plan_shards(world_size=4)
    marked = [attrs["fill"] for tag, attrs in look(plan).tags if tag == "rect"]
    assert len(set(marked)) == 2
    assert [fill != "currentColor" for fill in marked] == [
        shard.bytes > 0.99 * max(shard.bytes for shard in plan.shards) for shard in plan.shards
    ]
    even = session.table("events").plan_shards(world_size=2)
    assert {attrs["fill"] for tag, attrs in look(even).tags if tag == "rect"} == {"currentColor"}


def test_pictures_of_large_plans_are_small(session):
    query = session.table("events")
    bars, what = bars_of(query.plan_shards(world_size=200, num_workers=4))
    assert (len(bars), what) == (200, "rank")
    plan = query.plan_shards(world_size=1000, num_workers=1)
    bars, what = bars_of(plan)
    assert (len(bars), what) == (250, "heaviest of 4 ranks")
    assert max(bar.bytes for bar in bars) == max(shard.bytes for shard in plan.shards)
    assert len(plan._repr_html_()) < 100_000


def test_a_plan_without_a_row_has_no_bars(session):
    plan = session.sql("SELECT user FROM events WHERE day = '2030-01-01'").plan_shards()
    assert plan.num_splits == 0
    assert balance_svg(*bars_of(plan)) == ""
    assert "0 splits" in look(plan).words


def test_a_plan_is_plotted(session):
    plan = session.table("events").plan_shards(world_size=4)
    axes = plan.plot()
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([shard.bytes / 1024 for shard in plan.shards])
    assert axes.get_ylabel() == "KiB to read"
    assert not axes.figure.patch.get_visible()
    assert "10 splits" in axes.get_title()
    _, own = matplotlib.pyplot.subplots()
    assert plan.plot(own) is own
    assert own.figure.patch.get_visible()
    # Nothing to read is a picture, too.
    session.sql("SELECT user FROM events WHERE day = '2030-01-01'").plan_shards().plot()
    matplotlib.pyplot.close("all")


def test_without_matplotlib_the_error_says_what_to_install(session, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'tensorquery\[plot\]'"):
        session.table("events").plan_shards().plot()


@pytest.mark.slow
def test_importing_the_package_imports_none_of_what_pictures_need():
    code = (
        "import sys, tensorquery; "
        "print([name for name in ('IPython', 'matplotlib', 'pandas', 'polars', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_where_torch_is_imported_the_loader_comes_with_the_package():
    """The first loader would wait for its modules."""
    code = "import sys, torch, tensorquery; print('tensorquery.loading.create' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
