"""Promise 7 (docs/promises.md): values of text files arrive exactly as they are written, or are an error that names
column, value and record; none is cut off.

Types come from the first records, or are declared; later values may not fit them.
"""

import datetime as dt
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorquery as tq

D = decimal.Decimal
DAY = dt.datetime(2026, 1, 1)


pytestmark = pytest.mark.usefixtures("folder")


def read(kind, text, **options):
    """All rows of a file with this text, as the engine has them and as loaders do."""
    with open(f"t.{kind}", "w") as file:
        file.write(text)
    session = tq.Session()
    getattr(session, f"register_{kind.removesuffix('l')}")("t", f"t.{kind}", **options)
    rows = session.table("t").to_arrow().to_pylist()
    loader, _ = tq.create_dataloader(
        table="t", session=session, split_bytes=997, output_format="arrow", batch_size=1000
    )
    assert [row for batch in loader for row in batch.to_pylist()] == rows
    return rows


def csv(values, **options):
    return [row["a"] for row in read("csv", "a\n" + "".join(f"{v}\n" for v in values), **options)]


def lines(*values, **options):
    """The values of a column that is written in JSON."""
    text = "".join(f'{{"a": {value}}}\n' for value in values)
    return [row["a"] for row in read("jsonl", text, **options)]


def array(*values, **options):
    text = "[" + ",\n".join(f'{{"a": {value}}}' for value in values) + "]"
    return [row["a"] for row in read("json", text, **options)]


def declared(data_type):
    return pa.schema([("a", data_type)])


@pytest.fixture(params=[lines, array])
def as_json(request):
    return request.param


# --- whole numbers of JSON ---


@pytest.mark.parametrize(
    ("first", "late", "said"),
    [
        (
            "1",
            "2.75",
            '"2.75" in column "a" in record 1001 of what was read is not exactly a value of Int64',
        ),
        ("1", "-0.5", '"-0.5" in column "a" in record 1001'),
        ("0", "1e-30", '"1e-30" in column "a" in record 1001'),
        ("1", "1e19", '"1e19" in column "a" in record 1001'),
        ("1", '"2.5"', '"2.5" in column "a" in record 1001'),
        ("1", "true", '"true" in column "a" in record 1001'),
        ("[1, 2]", "[0.5, 2]", '"0.5" in column "a" is not exactly a value of Int64'),
        ('{"x": [1]}', '{"x": [1, 0.75]}', '"0.75" in column "a" is not exactly a value of Int64'),
    ],
)
def test_a_late_number_that_is_not_whole_is_an_error(as_json, first, late, said):
    with pytest.raises(tq.DataError) as error:
        as_json(*[first] * 1000, late)
    assert said in str(error.value)
    assert "infer_rows=" in str(error.value)


def test_more_records_make_floats(as_json):
    assert as_json(*["1"] * 1000, "2.75", infer_rows=1001) == [1.0] * 1000 + [2.75]


def test_whole_numbers_are_exact_however_they_are_written(as_json):
    texts = ["9007199254740993", "-9223372036854775808", "1.0", "1e3", "30e-1", "-0", "null", '"7"']
    expected = [2**53 + 1, -(2**63), 1, 1000, 3, 0, None, 7]
    assert as_json(*["1"] * 1000, *texts) == [1] * 1000 + expected
    expected = [[2**53 + 1], None, [], [None, 1]]
    late = ["[9007199254740993]", "null", "[]", "[null, 1.0]"]
    assert as_json(*["[1]"] * 1000, *late)[1000:] == expected


def test_a_sum_of_late_fractions_is_an_error_and_never_wrong():
    with pytest.raises(tq.DataError, match=r'"0\.5" in column "a" in record 1001'):
        lines(*["1"] * 1000, "0.5")
    session = tq.Session()
    session.register_json("t", "t.jsonl")
    with pytest.raises(tq.DataError, match=r'"0\.5" in column "a"'):
        session.sql("SELECT sum(a) FROM t").to_arrow()
    # Columns that are not read are not judged.
    assert session.sql("SELECT count(*) AS n FROM t").to_arrow()["n"].to_pylist() == [1001]
    loader, _ = tq.create_dataloader(table="t", session=session)
    with pytest.raises(tq.DataError, match=r'"0\.5" in column "a"'):
        list(loader)


@pytest.mark.parametrize("data_type", [pa.int8(), pa.uint16(), pa.int32(), pa.uint64()])
def test_declared_whole_numbers(as_json, data_type):
    assert as_json("1", "2.0", schema=declared(data_type)) == [1, 2]
    for value in ("1.7", "-0.2", "1e30"):
        with pytest.raises(tq.DataError, match=f'"{value}" in column "a" in record 2'):
            as_json("1", value, schema=declared(data_type))


def test_nested_columns_of_every_kind_are_parsed(as_json):
    schema = pa.schema(
        [
            (
                "a",
                pa.struct(
                    [
                        ("fixed", pa.list_(pa.int16(), 2)),
                        ("large", pa.large_list(pa.timestamp("s"))),
                        ("map", pa.map_(pa.string(), pa.int64())),
                        ("text", pa.string()),
                    ]
                ),
            )
        ]
    )
    value = {
        "fixed": [1, None],
        "large": ["2026-01-01T00:00:00", None],
        "map": {"x": 1, "y": 2**60},
        "text": "x",
    }
    rows = as_json(json.dumps(value), "null", '{"text": "y"}', schema=schema)
    first = {"fixed": [1, None], "large": [DAY, None], "map": [("x", 1), ("y", 2**60)], "text": "x"}
    assert rows == [first, None, {"fixed": None, "large": None, "map": None, "text": "y"}]


def test_text_takes_numbers_as_they_are_written(as_json):
    values = as_json(*['"x"'] * 1000, "1.50", "true", "null")
    assert values[1000:] == ["1.50", "true", None]
    with pytest.raises(tq.DataError, match="expected a single value got"):
        as_json(*['"x"'] * 1000, "[1]")


# --- dates and times of CSV ---


@pytest.mark.parametrize(
    ("first", "late"),
    [
        ("2026-01-01", "2026-01-01T13:30:00"),
        ("2026-01-01", "2026-01-01 00:00:00.5"),
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00.1234567"),
        ("2026-01-01T00:00:00.123456789", "2026-01-01T00:00:00.1234567891"),
    ],
)
def test_what_is_finer_than_a_column_is_an_error(first, late):
    with pytest.raises(tq.DataError) as error:
        csv([first] * 1000 + [late])
    assert f'"{late}" in column "a" in record 1001 of what was read' in str(error.value)


def test_times_of_the_first_records_may_be_coarser_than_later_ones():
    late = ["2026-01-01T00:00:00.75", "2026-01-01 00:00:00.125999", "2026-01-01", "", "1500-01-01"]
    found = csv(["2026-01-01T00:00:00"] * 1000 + late, infer_rows=1000)
    microseconds = [dt.timedelta(microseconds=n) for n in (750_000, 125_999, 0)]
    expected = [*(DAY + after for after in microseconds), dt.datetime(1500, 1, 1)]
    assert [value for value in found[1000:] if value is not None] == expected


def test_dates_may_be_written_as_midnight():
    late = ["2026-01-02T00:00:00", "2026-1-3", "2026-01-04 00:00:00.000"]
    found = csv(["2026-01-01"] * 1000 + late)
    assert found[1000:] == [dt.date(2026, 1, day) for day in (2, 3, 4)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("2026-01-01T00:00:00", "2026-01-01T00:00:00.5", "timestamp[us]"),
        ("2026-01-01T00:00:00.5", "2026-01-01T00:00:00.123456789", "timestamp[ns]"),
        ("2026-01-01", "2026-01-01T12:00:00", "timestamp[us]"),
    ],
)
def test_files_whose_times_differ_in_precision_are_one_table(first, second, expected):
    for name, text in (("a", first), ("b", second)):
        with open(f"{name}.csv", "w") as file:
            file.write(f"t\n{text}\n")
    session = tq.Session()
    for names in (["a.csv", "b.csv"], ["b.csv", "a.csv"]):
        session.register_csv("t", names)
        found = session.table("t").to_arrow()["t"]
        assert str(found.type) == expected
        assert {str(value)[:19] for value in found} == {
            text.replace("T", " ")[:19].ljust(19) if "T" in text else f"{text} 00:00:00"
            for text in (first, second)
        }


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("[1]", "[1.5]", [[1.0], [1.5]]),
        ('{"x": 1, "y": [{"z": 2}]}', '{"x": 1.5, "y": [{"z": 0.5}]}', None),
    ],
)
def test_files_with_whole_and_broken_numbers_inside_are_floats(first, second, expected):
    for name, text in (("a", first), ("b", second)):
        with open(f"{name}.jsonl", "w") as file:
            file.write(f'{{"a": {text}}}\n')
    session = tq.Session()
    session.register_json("t", ["a.jsonl", "b.jsonl"])
    found = session.table("t").to_arrow()["a"]
    assert found.to_pylist() == (expected or [json.loads(first), json.loads(second)])
    assert "int64" not in str(found.type)


# --- declared types ---


@pytest.mark.parametrize(
    ("data_type", "good", "bad"),
    [
        (pa.time32("s"), [("12:00:01", dt.time(12, 0, 1))], ["12:00:01.75", "x"]),
        (pa.time64("us"), [("12:00:01.75", dt.time(12, 0, 1, 750_000))], ["12:00:01.0000001"]),
        (pa.timestamp("s"), [("2026-01-01T00:00:00", DAY)], ["2026-01-01T00:00:00.75"]),
        (pa.timestamp("ms"), [("2026-01-01T00:00:00.0", DAY)], ["2026-01-01T00:00:00.0001"]),
        (pa.timestamp("ns"), [("2026-01-01", DAY)], ["1500-01-01T00:00:00", "2026"]),
        (
            pa.date32(),
            [("2026-01-01", DAY.date())],
            ["2026-01-01T12:00:00", "2026-01-01T00:00:00+01:00"],
        ),
        (pa.date64(), [("2026-01-01", DAY.date())], ["2026-01-01T00:00:00.0001"]),
        (pa.float16(), [("1.5", 1.5), ("inf", float("inf"))], ["70000", "x"]),
        (pa.float32(), [("0.5", 0.5), ("-inf", -float("inf"))], ["1e39"]),
        (
            pa.decimal128(5, 2),
            [
                ("1.239", D("1.24")),
                ("-1.235", D("-1.24")),
                ("1.5e2", D("150.00")),
                ("7", D("7.00")),
            ],
            ["1.2.3", "99999"],
        ),
        (pa.decimal256(60, 3), [("1.2345", D("1.235"))], ["x"]),
        (pa.decimal128(38, 0), [("1e3", D(1000)), ("0.5", D(1))], ["1e40"]),
    ],
    ids=str,
)
def test_declared_types_take_exactly_their_values(data_type, good, bad):
    schema = declared(data_type)
    texts, values = [text for text, _ in good], [value for _, value in good]
    assert csv(texts, schema=schema) == values
    for to_json in (lines, array):
        assert to_json(*map(json.dumps, texts), schema=schema) == values
        numbers = [text for text in texts if text.replace(".", "").replace("-", "").isdigit()]
        if pa.types.is_decimal(data_type) or pa.types.is_floating(data_type):
            found = to_json(*numbers, schema=schema)
            assert found == [value for text, value in good if text in numbers]
    for text in bad:
        with pytest.raises(tq.DataError, match='column "a"|column: a'):
            csv([texts[0], text], schema=schema)
        with pytest.raises(tq.DataError, match='column "a"|column: a'):
            lines(json.dumps(text), schema=schema)


def test_decimals_are_rounded_as_in_binary_formats():
    values = [D("1.235"), D("-1.235"), D("1.2349"), D("0.005"), None]
    pq.write_table(pa.table({"a": pa.array(values, pa.decimal128(10, 4))}), "t.parquet")
    schema = declared(pa.decimal128(5, 2))
    session = tq.Session()
    session.register_parquet("t", "t.parquet", schema=schema)
    expected = session.table("t").to_arrow()["a"].to_pylist()
    assert expected == [D("1.24"), D("-1.24"), D("1.23"), D("0.01"), None]
    assert csv([str(value) for value in values[:4]], schema=schema) == expected[:4]
    texts = ["null" if value is None else str(value) for value in values]
    assert lines(*texts, schema=schema) == expected


@pytest.mark.parametrize(
    ("data_type", "value"),
    [(pa.timestamp("s"), "12"), (pa.timestamp("s"), '"20260101"'), (pa.date32(), "12")],
)
def test_numbers_are_no_dates(as_json, data_type, value):
    """Digits in quotes, which may be a date, are decoded as numbers are."""
    with pytest.raises(tq.DataError, match=f'"{json.loads(value)}" in column "a" in record 1 '):
        as_json(value, schema=declared(data_type))


def test_dates_may_have_no_dashes(as_json):
    assert as_json('"20260101"', schema=declared(pa.date32())) == [DAY.date()]
    assert csv(["20260101"], schema=declared(pa.date32())) == [DAY.date()]


def test_numbers_of_json_are_durations(as_json):
    found = as_json("12", "12.0", "null", schema=declared(pa.duration("s")))
    assert found == [dt.timedelta(seconds=12), dt.timedelta(seconds=12), None]
    with pytest.raises(tq.DataError, match=r'"1\.5" in column "a"'):
        as_json("1.5", schema=declared(pa.duration("s")))
