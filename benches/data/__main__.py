"""Makes every set of files: ``python benches/data``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import data

SETS = {
    "lineitem, snappy": data.make,
    "lineitem, zstd": data.zstd,
    "lineitem, small pages": data.paged,
    "lineitem, no page index": data.bare,
    "lineitem, one large file": data.large,
    "lineitem, row groups of 64 MiB": data.grouped,
    "lineitem, row groups of 256 MiB": data.beyond,
    "wide, equal files": lambda: data.wide("equal"),
    "wide, unequal files": lambda: data.wide("unequal"),
    "embeddings": data.embeddings,
    "1,000 files": lambda: data.many(1_000),
    "10,000 files": lambda: data.many(10_000),
}

if __name__ == "__main__":
    for name, make in SETS.items():
        print(f"{name}: {make()}", flush=True)
