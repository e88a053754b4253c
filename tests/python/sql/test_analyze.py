"""``explain(analyze=True)`` gives a tree of the operators that ran, with true numbers of rows, and times that add
up."""

import re

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from tensorquery.cli import main
from tensorquery.display.tree import operator_tree


def test_branches_of_a_tree_are_drawn():
    nodes = [(0, "a"), (1, "b"), (2, "c"), (2, "d"), (3, "e"), (1, "f"), (2, "g")]
    title, *lines = operator_tree([(depth, name, None, None) for depth, name in nodes]).splitlines()
    drawn = [line[title.index("operator") :] for line in lines]
    assert drawn == ["a", "├─ b", "│  ├─ c", "│  └─ d", "│     └─ e", "└─ f", "   └─ g"]


def test_what_does_not_measure_shows_nothing_and_long_operators_are_cut():
    text = operator_tree([(0, "x" * 500, None, None), (1, "y", 1234567, 2_000_000)])
    title, first, second = text.splitlines()
    assert title.split() == ["rows", "time", "share", "operator"]
    assert first.endswith("x…")
    assert len(first) < 150
    assert second.split() == ["1,234,567", "2.000", "ms", "100", "%", "└─", "y"]


@pytest.fixture
def query(tmp_path):
    pq.write_table(pa.table({"x": range(1000), "k": [n % 7 for n in range(1000)]}), tmp_path / "t.parquet", row_group_size=100)  # fmt: skip
    session = tq.Session()
    session.register_parquet("t", tmp_path / "t.parquet")
    session.register_table("names", pa.table({"k": range(7), "name": list("abcdefg")}))
    sql = "SELECT name, count(*) AS n FROM t JOIN names USING (k) WHERE x % 2 = 0 GROUP BY name ORDER BY n, name"
    return session.sql(sql)


def test_operators_show_the_rows_that_they_gave(query):
    text = query.explain(analyze=True)
    rows = {}
    for line in text.splitlines()[1:]:
        match = re.match(r"\s*([\d,]*)\s+.*?(\w+Exec)", line)
        rows.setdefault(match[2], []).append(match[1])
    assert rows["SortExec"] == ["7"]
    assert rows["AggregateExec"][0] == "7"
    assert rows["HashJoinExec"] == ["500"]
    # The filter is in the scan.
    assert rows["DataSourceExec"] == ["500"]
    shares = [int(share) for share in re.findall(r"(\d+) %", text)]
    assert sum(shares) == pytest.approx(100, abs=len(shares))


def test_decoding_counts_as_the_time_of_its_scan(tmp_path):
    rows = pa.table({"x": range(300_000)})
    pq.write_table(rows, tmp_path / "t.parquet", compression="zstd")
    pa.feather.write_feather(rows, str(tmp_path / "t.arrow"))
    pa.orc.write_table(rows, tmp_path / "t.orc")
    pa.csv.write_csv(rows, tmp_path / "t.csv")
    for path in tmp_path.iterdir():
        text = tq.Session().sql(f"SELECT x FROM '{path}'").explain(analyze=True)
        [took] = [re.search(r"([\d.]+) ms", line)[1] for line in text.splitlines() if "DataSourceExec" in line or "SplitScan" in line]  # fmt: skip
        assert float(took) > 0.05, text


def test_a_failure_of_the_run_is_the_query_s(query):
    with pytest.raises(tq.DataError, match="Divide by zero"):
        query.session.sql("SELECT 1 / (x - 7) AS y FROM t").explain(analyze=True)
    with pytest.raises(tq.ConfigError, match="analyze='yes'"):
        query.explain(analyze="yes")


def test_the_command_line_shows_it(tmp_path, capsys):
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "t.parquet")
    assert main(["explain", f"SELECT x FROM '{tmp_path}/t.parquet'", "--analyze"]) == 0
    assert capsys.readouterr().out.startswith("rows")
