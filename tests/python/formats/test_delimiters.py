"""Promise: a text file has one delimiter, however it is named: tabs in `.tsv`, commas elsewhere, and an explicit one
before both. A file that only another delimiter splits is refused by name."""

import gzip

import pytest

import tensorquery as tq

ROWS = [{"i": 1, "a": "x"}, {"i": 2, "a": "y,z"}]


def text(delimiter, header=True):
    lines = [["i", "a"]] if header else []
    lines += [["1", "x"], ["2", '"y,z"' if delimiter == "," else "y,z"]]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def registered(path, **options):
    session = tq.Session()
    session.register_csv("t", path, **options)
    return session.sql("SELECT * FROM t").to_arrow().to_pylist()


def by_loader(path, **options):
    loader, _ = tq.create_dataloader(path=path, output_format="dict", **options)
    return [
        dict(zip(batch, row, strict=True))
        for batch in loader
        for row in zip(*batch.values(), strict=True)
    ]


@pytest.mark.parametrize("name", ["t.tsv", "T.TSV", "t.tsv.gz"])
def test_every_way_reads_tabs(tmp_path, name):
    path = tmp_path / name
    data = text("\t").encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert registered(path) == ROWS
    assert tq.Session().sql(f"SELECT * FROM '{path}'").to_arrow().to_pylist() == ROWS
    for word in (None, "csv", "tsv"):
        assert by_loader(path, format=word) == ROWS, word
    # An explicit delimiter wins over the file's name.
    path.write_bytes(
        gzip.compress(text("|").encode()) if name.endswith(".gz") else text("|").encode()
    )
    assert registered(path, delimiter="|") == ROWS


def test_a_delimiter_that_is_asked_for_reads_any_name(tmp_path):
    (tmp_path / "a.csv").write_text(text("\t"))
    (tmp_path / "b.tsv").write_text(text("\t"))
    assert registered(tmp_path, delimiter="\t") == ROWS + ROWS
    assert by_loader(tmp_path, format="tsv") == ROWS + ROWS
    (tmp_path / "b.tsv").write_text(text(","))
    assert registered(tmp_path / "b.tsv", delimiter=",") == ROWS


def test_a_folder_of_both_is_two_formats(tmp_path):
    (tmp_path / "a.csv").write_text(text(","))
    (tmp_path / "b.tsv").write_text(text("\t"))
    for read in (registered, by_loader):
        with pytest.raises(
            tq.ConfigError, match=r"a\.csv is csv and .*b\.tsv is csv with the delimiter '\\t'"
        ):
            read(tmp_path)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
def test_one_column_that_is_several_is_refused(tmp_path, delimiter, header):
    path = tmp_path / "t.csv"
    path.write_text(text(delimiter, header).replace("y,z", "y z"))
    with pytest.raises(
        tq.DataError,
        match=r"with the delimiter ',' the file has one column.*register_csv\(…, delimiter=",
    ):
        registered(path, header=header)
    with pytest.raises(tq.DataError, match=r"t\.csv"):
        tq.Session().sql(f"SELECT * FROM '{path}'")
    assert len(registered(path, header=header, delimiter=",")[0]) == 1
    assert len(registered(path, header=header, delimiter=delimiter)[0]) == 2


@pytest.mark.parametrize(
    "content",
    ["text\none; two\nthree\n", "a|b\n", '"a;b"\n"1;2"\n', "x\n1\n2\n", 't\n"tab\there"\n'],
)
def test_one_column_stays_one(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_text(content)
    session = tq.Session()
    session.register_csv("t", path)
    assert len(session.sql("SELECT * FROM t").schema.names) == 1
