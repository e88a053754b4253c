"""Every SQL example is a training set: as tensors it has the rows, shapes and types that its header says.

Each file is run by the loader call of its own header, alone and as two ranks. Contents: test_example_contents.py.
"""

import re
from pathlib import Path

import pytest

import tensorquery as tq
from sql_example_runs import BATCHES, FILES, FLIGHTS, ROOT, TPCH, checked, examples

pytestmark = pytest.mark.usefixtures("in_the_root")


def test_there_are_examples_and_each_one_has_its_line_here_and_its_test():
    assert len(FILES) >= 15
    assert [path.stem for path in FILES] == list(BATCHES)
    contents = Path(__file__).with_name("test_example_contents.py").read_text()
    tested = set(re.findall(r"^def test_(\d\d)_", contents, flags=re.MULTILINE))
    assert tested == {path.stem[:2] for path in FILES}


def test_the_readme_of_the_folder_has_a_line_for_each_of_them():
    readme = (ROOT / "sql-examples/README.md").read_text()
    assert [name for name in re.findall(r"`(\d\d_\w+)`", readme) if name in BATCHES] == list(
        BATCHES
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_example_gives_tensors_of_its_types_and_every_row_once(runner, path):
    name = path.stem
    example = runner.read[name]
    query = runner.session.sql(example.sql)
    chosen = query.select(example.options.get("columns"), example.options.get("filters"))
    wanted = chosen.count()
    assert wanted == chosen.to_arrow().num_rows > 0
    alone = runner.epoch(name)
    if "windows" in example.options:
        wanted = runner.loader(name).dataset.windowing.windows
    assert {len(column) for column in alone.values()} == {wanted}
    shares = [
        sum(length for length, _ in checked(name, runner.loader(name, rank=rank, world_size=2)))
        for rank in range(2)
    ]
    assert sum(shares) == wanted
    assert abs(shares[0] - shares[1]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_header_says_whether_something_is_staged(runner, path):
    example = runner.read[path.stem]
    if example.is_staged:
        with pytest.raises(tq.NotShardableError):
            runner.loader(path.stem, stage="never")
    else:
        assert len(runner.loader(path.stem, stage="never")) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_header_names_the_tables_that_the_query_reads(runner, path):
    example = runner.read[path.stem]
    alone = tq.Session()
    for table in example.tables:
        folder = FLIGHTS if (FLIGHTS / table).exists() else TPCH
        alone.register_parquet(table, folder / table)
    assert alone.sql(example.sql).column_names == runner.session.sql(example.sql).column_names
    for table in example.tables:
        fewer = tq.Session()
        for other in set(example.tables) - {table}:
            folder = FLIGHTS if (FLIGHTS / other).exists() else TPCH
            fewer.register_parquet(other, folder / other)
        with pytest.raises(tq.TensorQueryError, match=table):
            fewer.sql(example.sql)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("-- Tables: t\n-- Staged: nothing.\n", 'one line "-- Loader: …", not 0'),
        ("-- Tables: t\n-- Loader: open(query)\n-- Staged: nothing.\n", "must be tq.create_dataloader"),
        ("-- Tables: t\n-- Loader: tq.create_dataloader(t)\n-- Staged: nothing.\n", "must be query"),
    ],
)  # fmt: skip
def test_a_header_that_says_no_loader_is_an_error(tmp_path, header, message):
    path = tmp_path / "x.sql"
    path.write_text(header + "SELECT 1")
    with pytest.raises(ValueError, match=re.escape(message)):
        examples.read(path)


def test_the_script_prints_the_shapes_of_an_example(capsys):
    examples.main(["04"])
    said = capsys.readouterr().out
    assert said.startswith("04_case_features: 336776 rows, 83 batches\n")
    assert "x: (4096, 4) torch.float64" in said
