"""The files that the benchmarks read, each set made once, below ``.bench``: a function per set returns its place.

Run as a script, ``python benches/data``, makes all of them, in a few minutes and some 4 GiB.
"""

from data.embeddings import embeddings
from data.lineitem import (
    COLUMNS,
    bare,
    beyond,
    grouped,
    key_range,
    large,
    make,
    paged,
    scattered_range,
    single,
    text,
    zstd,
)
from data.many import many
from data.once import DATA
from data.wide import FEATURES, wide

__all__ = [
    "COLUMNS",
    "DATA",
    "FEATURES",
    "bare",
    "beyond",
    "embeddings",
    "grouped",
    "key_range",
    "large",
    "make",
    "many",
    "paged",
    "scattered_range",
    "single",
    "text",
    "wide",
    "zstd",
]
