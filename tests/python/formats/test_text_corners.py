"""Records of text files survive every cut: quoted newlines, marks, line ends, escapes, comments; the judge is Python's csv module.

Each file is read whole and in ranges of every small size, and all of these agree with the judge.
"""

import bz2
import csv
import gzip
import io
import lzma
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import tensorquery as tq

SIZES = (1, 2, 3, 5, 7, 11, 16, 33, 1000)
"""Target bytes of a split."""

CASES = {
    "plain": ("a,b\n1,x\n2,y\n3,z\n", {}),
    "last line without newline": ("a,b\n1,x\n2,y\n3,z", {}),
    "carriage returns": ("a,b\r1,x\r2,y\r3,z\r", {}),
    "carriage returns, last line without": ("a,b\r1,x\r2,y\r3,z", {}),
    "both": ('a,b\r\n1,"x\r\ny"\r\n2,"p""q"\r\n3,z', {}),
    "mixed": ('a,b\n1,x\r\n2,y\n3,"z\r\n\n"\r\n4,w', {}),
    "mark": ("\ufeffa,b\n1,x\n2,y\n3,z", {}),
    "mark before a quote": ('\ufeff"a","b"\n1,x\n2,y\n3,z', {}),
    "mark and both": ('\ufeffa,b\r\n1,"x\r\n"\r\n2,y\r\n', {}),
    "escapes": ('a,b\n1,"x\\"\n,y"\n2,"q\\\\"\n3,z\n', {"escape": "\\"}),
    "comments": (
        '# "head\na,b\n1,x\n# it\'s "odd\n2,y\n#last, "\n3,z\n',
        {"comment": "#"},
    ),
    "blank lines": ("a,b\n\n1,x\n\n\n2,y\n\n3,z\n\n", {}),
    "only a header": ("a,b\n", {}),
    "another quote": ("a,b\n1,'x\ny'\n2,'it''s'\n3,z\n", {"quote": "'"}),
    "quotes inside of fields": ('a,b\n1,x"y\n2,6" long\n3,z\n', {}),
    "quotes at every place": ('a,b\n1,"x"\n2,"\n"\n3,"a,b"\n4,""""\n', {}),
    "tabs": ('a\tb\n1\t"x\n\ty"\n2\ty\n', {"delimiter": "\t"}),
    "spaces": ('a,b\n1,x \n2, "y"\n3,z\n', {}),
    "no header": ('1,"x\n"\n2,y\n3,z\n', {"header": False}),
    "more than ASCII": ('a,b\n1,größe\n2,"日本\n語"\n3,z\n', {}),
    "a long quoted field": ('a,b\n1,"' + "x,\n" * 50 + '"\n2,y\n', {}),
}
"""By name: the file, and the options that say how it is written."""


pytestmark = pytest.mark.usefixtures("folder")


def write(path, text):
    with open(path, "wb") as file:
        file.write(text.encode())


def judged(text, *, header=True, delimiter=",", quote='"', escape=None, comment=None):
    """The rows as Python reads them, the first column as numbers."""
    lines = text.removeprefix("\ufeff")
    if comment:
        kept = lines.splitlines(keepends=True)
        lines = "".join(line for line in kept if not line.startswith(comment))
    reader = csv.reader(
        io.StringIO(lines, newline=""),
        delimiter=delimiter,
        quotechar=quote,
        escapechar=escape,
        doublequote=escape is None,
    )
    rows = [row for row in reader if row]
    names = rows.pop(0) if header else ["column_1", "column_2"]
    return [dict(zip(names, [int(row[0]), row[1]], strict=True)) for row in rows]


def in_ranges(session, size, **options):
    loader, _ = tq.create_dataloader(
        table="t", session=session, split_bytes=size, batch_size=2, output_format="arrow", **options
    )
    return [row for batch in loader for row in batch.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_records_survive_every_cut(session, name):
    text, options = CASES[name]
    write("t.csv", text)
    expected = judged(text, **options)
    session.register_csv("t", "t.csv", **options)
    assert session.table("t").to_arrow().to_pylist() == expected
    splits = set()
    for size in SIZES:
        assert in_ranges(session, size) == expected, size
        plan = session.table("t").plan_shards(world_size=1, split_bytes=size)
        splits.add(len(plan.splits()))
    # Lines that end with carriage returns alone have no borders that a search finds: one split.
    assert (max(splits) == 1) == (len(expected) < 2 or name.startswith("carriage returns"))


ENDS = {
    "a quoted newline": ('a,b\n1,"x\ny"', {}),
    "another quote": ("a,b\n1,'x\ny'", {"quote": "'"}),
    "a quote inside of a field": ('a,b\n1,6" pipe', {}),
    "an escape before a quote": ('a,b\n1,"say \\"hi\\""', {"escape": "\\"}),
    "a quote in a comment": ('# a 6" pipe\na,b\n1,x', {"comment": "#"}),
    "a backslash": ('a,b\n1,"C:\\"\n2,"x\ny"', {}),
}
"""By name: a file whose last record has no newline, and how it is written."""


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_types_are_inferred_from_records_as_the_options_say(session, name, declared):
    text, options = ENDS[name]
    write("t.csv", text)
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())]) if declared else None
    session.register_csv("t", "t.csv", schema=schema, **options)
    assert session.table("t").to_arrow().to_pylist() == judged(text, **options)


PACKED = {
    "": lambda text: text,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda text: bytes(pa.compress(text, "zstd", asbytes=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize(
    "options", [{}, {"quote": "'"}, {"escape": "\\"}], ids=["plain", "quote", "escape"]
)
def test_types_are_inferred_from_more_than_one_chunk(session, ending, options):
    quote, escape = options.get("quote", '"'), options.get("escape") or options.get("quote", '"')
    field = quote + f"x\n{escape}{quote}\n" + "y\\" * 3000 + quote
    field = field if "escape" not in options else field.replace("y\\", "yz")
    text = "a,b\n" + "".join(f"{row},{field}\n" for row in range(1500))
    with open(f"t.csv{ending}", "wb") as file:
        file.write(PACKED[ending](text.encode()))
    session.register_csv("t", f"t.csv{ending}", **options)
    found = session.table("t").to_arrow()
    assert found["a"].to_pylist() == list(range(1500))
    assert set(found["b"].to_pylist()) == {judged(text, **options)[0]["b"]}


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_types_of_lines_are_inferred_from_the_first_ones_alone(tmp_path, compression):
    """Blank lines do not count; what comes after is not read, whatever it is."""
    random = Random(7)
    lines = [f'{{"id": {row}, "text": "{random.randbytes(50).hex()}"}}\n' for row in range(60_000)]
    text = "\n".join(lines[:3]) + "".join(lines[3:]) + "not JSON\n"
    write = {"none": open, "gzip": gzip.open}[compression]
    with write(tmp_path / "lines.json", "wt") as file:
        file.write(text)

    def bytes_read():
        return int(Path("/proc/self/io").read_text().split()[1])

    options = {"compression": compression, "infer_rows": 4}
    for _ in range(2):  # Modules are imported at first use.
        session, before = tq.Session(), bytes_read()
        session.register_json("t", tmp_path / "lines.json", **options)
        read = bytes_read() - before
    assert 0 < read < (tmp_path / "lines.json").stat().st_size / 4
    schema = session.table("t").schema
    assert schema.field("id").type == pa.int64()
    with pytest.raises(tq.DataError, match="JSON"):
        session.table("t").to_arrow()


def test_the_types_of_all_pieces_count(session):
    rows = ["1,2026-01-01", "2.5,2026-01-01T00:00:00", *["3,2026-01-02"] * 20_000]
    for text in ("a,b\n" + "\n".join(rows), "a,b\n" + "\n".join(reversed(rows))):
        write("t.csv", text)
        session.register_csv("t", "t.csv", infer_rows=30_000)
        assert session.table("t").to_arrow().schema.types == [pa.float64(), pa.timestamp("us")]


def test_where_the_schema_is_declared_only_the_names_are_read(session):
    write("t.csv", "a,b\n1,x\n" + "2\n")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    session.register_csv("t", "t.csv", schema=schema)
    with pytest.raises(tq.DataError, match="number of fields"):
        session.table("t").to_arrow()
    with pytest.raises(tq.DataError, match="Expected 2 records"):
        session.register_csv("u", "t.csv")


def test_several_files_with_headers_and_without_rows(session):
    texts = {
        "a": "a,b\n1,x\n",
        "b": "",
        "c": "a,b\n",
        "d": 'a,b\r\n2,"y\r\n"',
        "e": "\ufeffa,b\n3,z\n",
    }
    for name, text in texts.items():
        write(f"{name}.csv", text)
    session.register_csv("t", [f"{name}.csv" for name in texts])
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": "y\r\n"}, {"a": 3, "b": "z"}]
    for size in SIZES:
        assert in_ranges(session, size) == expected, size


def test_columns_in_another_order_are_never_mixed_up(session):
    write("a.csv", "a,b\n1,2\n")
    write("b.csv", "b,a\n2,1\n")
    with pytest.raises(tq.DataError, match=r'column 1 is "a" in .*a\.csv and "b" in .*b\.csv'):
        session.register_csv("t", ["a.csv", "b.csv"])


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": "x"}\n{"a": 2, "b": "y\\n"}\n\n{"b": "é", "a": 3}',
        '{"a":1,"b":"x"}\r\n{"a":2,"b":"y\\n"}\r\n{"a":3,"b":"\\u00e9"}\r\n',
    ],
    ids=["newlines", "both"],
)
def test_json_lines_survive_every_cut(session, text):
    write("t.jsonl", text)
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": "y\n"}, {"a": 3, "b": "é"}]
    session.register_json("t", "t.jsonl")
    for size in SIZES:
        assert in_ranges(session, size) == expected, size


@pytest.mark.parametrize("split_bytes", SIZES)
def test_json_may_begin_with_a_mark(session, split_bytes):
    write("t.jsonl", '\ufeff{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    write("t.json", '\ufeff[{"a": 1},\n {"a": 2}, {"a": 3}]')
    for name in ("t.jsonl", "t.json"):
        session.register_json("t", name)
        expected = [{"a": 1}, {"a": 2}, {"a": 3}]
        assert session.table("t").to_arrow().to_pylist() == expected
        assert in_ranges(session, split_bytes) == expected


def test_a_value_of_another_type_is_said_by_its_line(tmp_path):
    lines = ["a,b", *(f"{number},y" for number in range(2000)), "x,y", "7,y"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    session = tq.Session()
    session.register_csv("t", tmp_path / "t.csv")
    with pytest.raises(
        tq.DataError, match="'x' as type 'Int64' for column 0 in line 2002 of what was read"
    ) as error:
        session.sql("SELECT a FROM t").to_arrow()
    assert "schema= of session.register_csv" in str(error.value)
