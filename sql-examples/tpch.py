"""Writes the tables of the TPC-H benchmark as Parquet: customers, their orders and what they ordered, made up by rule.

The rows come from `tpchgen-cli` on PyPI. Run it as ``python sql-examples/tpch.py [folder] [scale factor]``; a complete
folder is left as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
# 60,175 rows of lineitem, 2.8 MB: enough for every example, and made in a second.
SCALE = 0.01
# Several files and row groups, so that even these small tables have splits to deal out.
LARGE, PARTS, GROUP_BYTES = ("lineitem", "orders"), 2, "512KB"


def write(folder: Path, scale: float = SCALE) -> None:
    """Write all tables below `folder`, each in a folder of its own.

    Everything is written beside the folder and moved at the end, so that an interrupted run leaves
    nothing half done.
    """
    if (folder / "complete").exists():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    generate(partial, scale, LARGE, [f"--parts={PARTS}"])
    small = [name for name in TABLES if name not in LARGE]
    generate(partial, scale, small, [])
    for name in small:
        (partial / name).mkdir()
        (partial / f"{name}.parquet").rename(partial / name / f"{name}.parquet")
    (partial / "complete").touch()
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def generate(
    folder: Path, scale: float, tables: tuple[str, ...] | list[str], more: list[str]
) -> None:
    """Run the generator for some tables."""
    command = [generator(), "parquet", f"--scale-factor={scale}", f"--tables={','.join(tables)}"]
    command += [f"--row-group-bytes={GROUP_BYTES}", f"--output-dir={folder}", "--quiet", *more]
    subprocess.run(command, check=True)


def generator() -> str:
    """Where the program lies: beside this Python, or on the PATH."""
    found = shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts"))
    found = found or shutil.which("tpchgen-cli")
    if found is None:
        raise SystemExit("The program tpchgen-cli is missing: pip install 'tpchgen-cli>=4'")
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".tpch")
    write(target, float(sys.argv[2]) if len(sys.argv) > 2 else SCALE)
    files = sorted(target.glob("*/*.parquet"))
    print(
        f"{target}: {len(files)} Parquet files, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB"
    )
