"""Stored bytes of columns of served Parquet files, and which of them a client read."""

import os

import pyarrow.parquet as pq

FOOTER = 64 << 10
"""The last bytes of a file, which hold its footer: read before anything else is known."""


def chunk_bytes(root, files, groups, columns):
    """Stored bytes of these columns in these row groups of these files, as their footers say."""
    total = 0
    for number in files:
        footer = pq.read_metadata(f"{root}/{number:03}.parquet")
        for group in groups:
            row_group = footer.row_group(group)
            for index in range(row_group.num_columns):
                chunk = row_group.column(index)
                if chunk.path_in_schema in columns:
                    total += chunk.total_compressed_size
    return total


def split_bytes(root, ranges):
    """Bytes of the footers' ends, and of everything before them."""
    sizes = {name: os.path.getsize(f"{root}/{name}") for name, _, _ in ranges}
    footers = sum(stop - start for name, start, stop in ranges if start >= sizes[name] - FOOTER)
    return footers, sum(stop - start for _, start, stop in ranges) - footers
