"""Tables with damaged files, in every format, and loaders that leave out the bad parts."""

import gzip
import os
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import support
import tensorquery as tq

ROWS, GROUP = 3000, 100


def numbers(rows=ROWS):
    """Ids, and words that do not compress to nothing."""
    words = np.random.default_rng(5).integers(0, 10**9, rows)
    return pa.table({"id": np.arange(rows), "word": pa.array([f"w{word}" for word in words])})


def overwrite(path, start, length, byte=b"\xff"):
    data = bytearray(Path(path).read_bytes())
    data[start : start + length] = byte * length
    Path(path).write_bytes(data)


def spoil_group(path, group):
    """Damage the pages of a row group; returns the ids that are left, as pyarrow reads them."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    overwrite(path, start, chunk.total_compressed_size)
    return ids_of_groups(path, skip={group})


def ids_of_groups(path, skip=()):
    file = pq.ParquetFile(path)
    good = [group for group in range(file.num_row_groups) if group not in skip]
    return [row for group in good for row in file.read_row_group(group)["id"].to_pylist()]


def truncate(path, part=0.5):
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * part)])


def spoiled_parquet(folder):
    """Write three files of ten row groups, with row group 4 of the second damaged. Gives the folder, and the ids left."""
    folder = support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    left = [
        *ids_of_groups(f"{folder}/000.parquet"),
        *spoil_group(f"{folder}/001.parquet", 4),
        *ids_of_groups(f"{folder}/002.parquet"),
    ]
    assert len(left) == ROWS - GROUP
    return folder, left


def query_of(folder, sql="SELECT id, word FROM t", **options):
    session = tq.Session()
    session.register_parquet("t", str(folder), **options)
    return session.sql(sql)


def dataset_of(query, rank=0, world_size=1, **options):
    options = {"batch_size": 64, "output_format": "arrow", "on_error": "skip", **options}
    return tq.QueryDataset(query, rank=rank, world_size=world_size, **options)


def read(query, world_size=1, **options):
    """Batches of ids of every rank; no rank knows of the others."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rank in range(world_size):
            found.append(support.ids_of(dataset_of(query, rank, world_size, **options)))
    return found


def check_delivered(found, left):
    """Assert that each id left comes once over all ranks, in equal steps."""
    assert sorted(support.flat(support.flat(found))) == sorted(left)
    assert len({len(rank) for rank in found}) == 1


# ------------------------------------------------------------------------------------------------
# Every format: each writes three files of ids, spoils the second, and says which ids are left.


def orc_case(folder):
    os.makedirs(folder)
    for number, part in enumerate(support.cut(numbers(), 3)):
        path = f"{folder}/{number:03}.orc"
        pa.orc.write_table(
            part,
            path,
            batch_size=100,
            stripe_size=1,
            compression="zlib",
            dictionary_key_size_threshold=1.0,
        )
    path = f"{folder}/001.orc"
    file = pa.orc.ORCFile(path)
    assert file.nstripes > 3
    # The file begins with three letters, and then with its first stripe.
    overwrite(path, 3, 200)
    left = list(range(1000))
    for stripe in range(1, file.nstripes):
        left += pa.orc.ORCFile(path).read_stripe(stripe)["id"].to_pylist()
    return left + list(range(2000, 3000)), "stripe 0"


def csv_case(folder):
    support.write_csv(folder, numbers(), files=3)
    spoil_line(f"{folder}/001.csv", 900, "7,seven,eight")
    return without_the_second(), "bytes 0 to"


def json_case(folder):
    support.write_json(folder, numbers(), files=3)
    spoil_line(f"{folder}/001.json", 500, '{"id": 7, "wo')
    return without_the_second(), "bytes 0 to"


def array_case(folder):
    support.write_json(folder, numbers(), files=3, array=True)
    truncate(f"{folder}/001.json")
    return without_the_second(), "whole file"


def gzip_case(folder):
    support.write_csv(folder, numbers(), files=3, compress="gz")
    truncate(f"{folder}/001.csv.gz", 0.9)
    with pytest.raises(EOFError):
        gzip.decompress(Path(f"{folder}/001.csv.gz").read_bytes())
    return without_the_second(), "whole file"


def arrow_case(folder):
    support.write_arrow(folder, numbers(), files=3)
    truncate(f"{folder}/001.arrow")
    return without_the_second(), "whole file"


def footer_case(folder):
    support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    overwrite(f"{folder}/001.parquet", os.path.getsize(f"{folder}/001.parquet") - 60, 40)
    return without_the_second(), "whole file"


def cut_case(folder):
    support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    truncate(f"{folder}/001.parquet")
    return without_the_second(), "whole file"


def empty_case(folder):
    support.write_parquet(folder, numbers(), files=3, row_group=GROUP)
    Path(f"{folder}/001.parquet").write_bytes(b"")
    return without_the_second(), "whole file"


def schema_case(folder):
    support.write_parquet(folder, numbers(), files=3)
    odd = pa.table({"id": [["a"], ["b"]], "word": ["x", "y"]})
    pq.write_table(odd, f"{folder}/001.parquet")
    return without_the_second(), "whole file"


def first_schema_case(folder):
    """The odd one comes first; what most files have is right."""
    support.write_parquet(folder, numbers(), files=3)
    odd = pa.table({"id": [["a"], ["b"]], "word": ["x", "y"]})
    Path(f"{folder}/001.parquet").unlink()
    pq.write_table(odd, f"{folder}/aaa.parquet")
    os.rename(f"{folder}/aaa.parquet", f"{folder}/!first.parquet")
    return without_the_second(), "whole file"


def columns_case(folder):
    support.write_csv(folder, numbers(), files=3)
    Path(f"{folder}/001.csv").write_text("word,id\nx,1\n")
    return without_the_second(), "whole file"


def without_the_second():
    return [*range(1000), *range(2000, 3000)]


def spoil_line(path, line, text):
    lines = Path(path).read_text().splitlines()
    lines[line] = text
    Path(path).write_text("\n".join(lines) + "\n")


CASES = [
    orc_case, csv_case, json_case, array_case, gzip_case, arrow_case, footer_case, cut_case, empty_case, schema_case,
    first_schema_case, columns_case,
]  # fmt: skip
