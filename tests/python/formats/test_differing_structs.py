"""Files of one table whose structs differ: a new field is NULL in older files, and numbers become as wide as they must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq
from rows import read_both_ways

OLD = [{"role": "u", "text": "a"}]
NEW = [{"role": "u", "text": "b", "tool": "t"}]
OLD_AS_NEW = [{"role": "u", "text": "a", "tool": None}]

GROWING: dict[str, tuple[Any, Any, Any]] = {
    "struct": (OLD[0], NEW[0], OLD_AS_NEW[0]),
    "list of structs": (OLD, NEW, OLD_AS_NEW),
    "list of lists of structs": ([OLD, None], [NEW], [OLD_AS_NEW, None]),
    "struct in struct": ({"in": OLD[0]}, {"in": NEW[0]}, {"in": OLD_AS_NEW[0]}),
    "list in struct in list": ([{"in": OLD}], [{"in": NEW}], [{"in": OLD_AS_NEW}]),
    "other order": ({"x": 1, "y": 2}, {"y": 4, "x": 3, "z": "a"}, {"x": 1, "y": 2, "z": None}),
    "wider numbers": ([{"x": 1}], [{"x": 2**40}], [{"x": 1}]),
}


def grown(folder: Path, write: Any, old: Any, new: Any) -> None:
    for name, row in [("a", old), ("b", new)]:
        table = pa.table({"id": [1 if name == "a" else 2, 3], "m": [row, None]})
        if row == [{"x": 1}]:
            kind = pa.list_(pa.struct([("x", pa.int32())]))
            table = table.set_column(1, "m", table["m"].cast(kind))
        write(folder / name, table)


def write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path.with_suffix(".parquet"))


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path.with_suffix(".arrow"), table.schema) as file:
        file.write_table(table)


def write_orc(path: Path, table: pa.Table) -> None:
    from pyarrow import orc

    orc.write_table(table, path.with_suffix(".orc"))


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_orc])
@pytest.mark.parametrize("name", GROWING)
def test_structs_that_gained_a_field(tmp_path: Path, name: str, write: Any, declared: bool) -> None:
    old, new, expected = GROWING[name]
    grown(tmp_path, write, old, new)
    session = tq.Session()
    schema = pa.schema([("id", pa.int64()), ("m", pa.array([new]).type)]) if declared else None
    register = {
        write_parquet: session.register_parquet,
        write_arrow: session.register_arrow,
        write_orc: session.register_orc,
    }
    register[write]("t", str(tmp_path), **({"schema": schema} if declared else {}))
    rows = session.sql("SELECT * FROM t").to_arrow().to_pylist()
    assert rows == [
        {"id": 1, "m": expected},
        {"id": 3, "m": None},
        {"id": 2, "m": new},
        {"id": 3, "m": None},
    ]
    assert session.sql("SELECT id FROM t WHERE m IS NOT NULL").to_arrow()["id"].to_pylist() == [
        1,
        2,
    ]
    loader, _ = tq.create_dataloader(
        "SELECT * FROM t", session=session, batch_size=3, output_format="arrow"
    )
    assert [row for batch in loader for row in batch.to_pylist()] == rows


def test_a_field_that_is_new_is_null_in_conditions(tmp_path: Path) -> None:
    grown(tmp_path, write_parquet, OLD[0], NEW[0])
    assert read_both_ways(
        tmp_path, "SELECT id FROM t WHERE m['tool'] IS NULL AND m IS NOT NULL"
    ) == [{"id": 1}]
    assert read_both_ways(tmp_path, "SELECT id FROM t WHERE m['tool'] = 't'") == [{"id": 2}]
    assert read_both_ways(tmp_path, "SELECT m['tool'] AS tool FROM t WHERE id < 3") == [
        {"tool": None},
        {"tool": "t"},
    ]


def test_values_of_maps_that_gained_a_field(tmp_path: Path) -> None:
    def kind(*fields: tuple[str, pa.DataType]) -> pa.DataType:
        return pa.map_(pa.string(), pa.struct(list(fields)))

    old, new = kind(("x", pa.int32())), kind(("x", pa.int64()), ("y", pa.string()))
    pq.write_table(
        pa.table({"m": pa.array([[("k", {"x": 1})], None, []], old)}), tmp_path / "a.parquet"
    )
    pq.write_table(
        pa.table({"m": pa.array([[("k", {"x": 2, "y": "z"})]], new)}), tmp_path / "b.parquet"
    )
    expected = [[("k", {"x": 1, "y": None})], None, [], [("k", {"x": 2, "y": "z"})]]
    assert [row["m"] for row in read_both_ways(tmp_path)] == expected
    assert [
        row["m"] for row in read_both_ways(tmp_path, schema=pa.schema([("m", new)]))
    ] == expected


def test_a_required_field_that_is_missing_or_a_value_that_does_not_fit_is_an_error(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"m": [[{"x": 2**40}]]}), tmp_path / "a.parquet")
    narrow = pa.schema([("m", pa.list_(pa.struct([("x", pa.int32())])))])
    with pytest.raises(tq.DataError, match="1099511627776"):
        read_both_ways(tmp_path, schema=narrow)
    needed = pa.schema([("m", pa.list_(pa.struct([pa.field("y", pa.int32(), nullable=False)])))])
    with pytest.raises(tq.DataError, match='required field "y" is missing'):
        read_both_ways(tmp_path, schema=needed)
