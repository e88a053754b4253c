"""The file system of the golden tests: tests/golden/inputs, wherever the checkout lies.

A plan's fingerprint, and so its order, has the paths of its files and the times of their last writes. Here a path begins
at the folder of the inputs, and a file's identity is a digest of its content, so that both are the same everywhere.
"""

import hashlib
from pathlib import Path

from fsspec import AbstractFileSystem

INPUTS = Path(__file__).parents[2] / "golden" / "inputs"


class GoldenFiles(AbstractFileSystem):
    """The files below `INPUTS`, by paths that begin there."""

    protocol = ("golden",)
    cachable = False

    def info(self, path, **_):
        """Name, size and identity of a file, or the name of a folder."""
        path = self._strip_protocol(path)
        place = INPUTS / path
        if place.is_dir():
            return {"name": path, "size": 0, "type": "directory"}
        content = place.read_bytes()
        etag = hashlib.sha256(content).hexdigest()[:16]
        return {"name": path, "size": len(content), "type": "file", "etag": etag}

    def ls(self, path, detail=True, **_):
        """The entries of a folder, by name."""
        path = self._strip_protocol(path)
        if (INPUTS / path).is_dir():
            names = sorted(entry.name for entry in (INPUTS / path).iterdir())
            found = [self.info(f"{path}/{name}".strip("/")) for name in names]
        else:
            found = [self.info(path)]
        return found if detail else [entry["name"] for entry in found]

    def cat_file(self, path, start=None, end=None, **_):
        """Bytes of a file."""
        return (INPUTS / self._strip_protocol(path)).read_bytes()[start:end]
