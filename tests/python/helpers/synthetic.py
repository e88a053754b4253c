"""Plans over files that were never written: the metadata of a large table, and nothing behind it."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq

import tensorquery as tq
from tensorquery import _core

GROUPS = 10
"""Row groups of a file, each a split."""

VARIANTS = 97
"""Kinds of files, by the sizes of their row groups."""

GROUP_BYTES = 16 << 20


def plan_of(files, folder, seed=0):
    """A plan of ``SELECT *`` over `files` made-up Parquet files of ten splits each, of 2 to 14 MiB.

    The query is planned over one small file in `folder`, whose recipe is then given other files and splits.
    """
    path = folder / "template.parquet"
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64()), "x": [0.5, 1.5]}), path)
    session = tq.Session()
    session.register_parquet("t", str(path))
    text, blobs, _ = session.sql("SELECT * FROM t")._core.plan(128 << 20).recipe()
    recipe = json.loads(text)
    [(_, table)] = recipe["tables"]
    [(pin, _)] = table["Files"]["spec"]["files"]
    table["Files"]["spec"]["files"] = [
        ({**pin, "path": f"bucket/table/day={day // 96:04}/part-{day:06}.parquet"}, 80_000)
        for day in range(files)
    ]
    recipe["fingerprint"] = None
    blobs = [*blobs, _packed(files, random.Random(seed))]
    recipe["splits"] = len(blobs) - 1
    return _core.Plan.from_recipe(json.dumps(recipe), blobs)


def _packed(files, dice):
    """Splits as in a worker plan: numbers of seven bits a byte, mostly differences to the split before."""
    variants = []
    for _ in range(VARIANTS):
        rows, before = [], None
        for group in range(GROUPS):
            # The last group of a file is the same in all variants, so that any file may follow any other.
            last = group == GROUPS - 1
            count = 8_000 if last else dice.randrange(2_000, 8_192)
            # Rows of one table take about as many bytes everywhere.
            size = count * (1_500 if last else dice.randrange(1_200, 1_800))
            start = group * GROUP_BYTES
            row = (0, group, 1, start, start + GROUP_BYTES, count, group * 8_192, size)
            rows.append((row, before))
            before = row
        variants.append(rows)
    end = variants[0][-1][0]
    encoded = [_encode(rows, end, 1) for rows in variants]
    first = _encode(variants[0], (0,) * 8, 0)
    content = [first, *(encoded[file % VARIANTS] for file in range(1, files))]
    return _number(files * GROUPS) + b"".join(content)


def _encode(rows, end, step):
    """The splits of one file that is `step` files after the one whose last split was `end`."""
    written = bytearray()
    for row, before in rows:
        old = end if before is None else before
        near = [_number(_zigzag(now - then)) for now, then in zip(row, old, strict=True)]
        scan, group, count, start, stop, rows_, first_row, size = near
        file = _number(_zigzag(step if before is None else 0))
        kind, known, deleted = b"\0", b"\1", b"\0"
        parts = (
            scan,
            file,
            kind,
            group,
            count,
            start,
            stop,
            known,
            rows_,
            deleted,
            first_row,
            size,
        )
        written += b"".join(parts)
    return bytes(written)


def _zigzag(step):
    return step << 1 if step >= 0 else (-step << 1) - 1


def _number(number):
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
