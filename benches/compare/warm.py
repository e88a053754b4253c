"""Files that were read lately, so that every loader finds them in the page cache.

A machine may drop from it what nobody used for some seconds, and other loaders have their turns between two runs of one. Then data,
and the code of a library that is mapped and not read at once, would come from the disk while the clock runs.
"""

from __future__ import annotations

from pathlib import Path

CHUNK = 8 << 20


def read_data(path: str | Path) -> None:
    """Read a file, or all files below a folder, and forget the bytes."""
    place = Path(path)
    for file in [place] if place.is_file() else sorted(place.rglob("*")):
        if file.is_file():
            _read(file)


def read_libraries() -> None:
    """Read the shared libraries that this process has loaded, but those of torch, which its import has just used."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    mapped = {Path(fields[5]) for fields in lines if len(fields) == 6 and "x" in fields[1]}
    for library in mapped:
        if library.is_file() and not {"torch", "nvidia"} & set(library.parts):
            _read(library)


def _read(file: Path) -> None:
    buffer = bytearray(CHUNK)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(buffer):
            pass
