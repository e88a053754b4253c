"""The tables of TPC-H as Parquet files, generated once and kept in a folder that git ignores.

Run it as ``python tests/python/helpers/tpch_data.py [folder]``; a complete folder is left as it is.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

TABLES = (
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
)  # fmt: skip

FOLDER = Path(__file__).parents[3] / ".cache" / "tpch" / "0.1"

SCALE = "0.1"

PARTS = {"lineitem": 4, "orders": 3, "customer": 2}
"""Files of the large tables; the others are one file each."""

ROW_GROUP_BYTES = "1MB"
"""Small row groups, so that tables of this size have splits to deal out."""


def make_tpch(folder=FOLDER):
    """The folder with a folder per table, written first unless it is there and complete.

    Everything is written beside the folder and moved at the end: an interrupted run leaves nothing half done, and of two
    runs at once one wins. Another generator, or other options, make the files anew.
    """
    made_by = f"tpchgen-cli {version('tpchgen-cli')}, scale {SCALE}, {PARTS}, {ROW_GROUP_BYTES}\n"
    complete = folder / "complete"

    def is_there():
        return complete.exists() and complete.read_text() == made_by

    if is_there():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for table in TABLES:
            _generate(table, PARTS.get(table), partial)
        (partial / "complete").write_text(made_by)
        partial.chmod(0o755)
        try:
            # Not what somebody else has finished meanwhile, and may be reading.
            if not is_there():
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
        except OSError:
            if not is_there():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _generate(table, parts, folder):
    generator = Path(sys.executable).with_name("tpchgen-cli")
    target = folder if parts else folder / table
    command = [
        generator, "parquet", "-s", SCALE, f"--tables={table}", f"--output-dir={target}",
        f"--row-group-bytes={ROW_GROUP_BYTES}", "--compression=SNAPPY", "--quiet",
        *([f"--parts={parts}"] if parts else []),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = len(list((folder / table).glob("*.parquet")))
    assert found == (parts or 1), f"{found} files of {table}"


if __name__ == "__main__":
    target = make_tpch(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    size = sum(os.path.getsize(file) for file in target.rglob("*.parquet"))
    print(f"{target}: {len(TABLES)} tables, {size / 1e6:.1f} MB")
