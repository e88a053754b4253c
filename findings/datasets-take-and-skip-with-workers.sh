#!/usr/bin/env bash
# datasets 5.2: `take(n)` and `skip(n)` of a stream keep other rows, and fewer, once a DataLoader has workers.
#
# Each worker takes its part of n from its own files. One would expect the rows to be those without workers: `take(450)` of 500 rows gives
# 425 with two workers and 400 with three, since one of them has fewer rows than its part, and `take(300)` has rows behind the first 300, so
# a split into take and skip depends on num_workers.
#
# Versions: datasets 5.2.0, torch 2.15.0, pyarrow 26.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet datasets==5.2.0 torch==2.15.0 pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

datasets.disable_progress_bars()
datasets.logging.set_verbosity_error()
files = [f"{k}.parquet" for k in range(5)]
for k, file in enumerate(files):
    pq.write_table(pa.table({"x": range(k * 100, k * 100 + 100)}), file)
stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
for workers in (0, 2, 3):
    took = {n: {int(row["x"]) for row in DataLoader(stream.take(n), batch_size=None, num_workers=workers)} for n in (450, 300)}
    left = {int(row["x"]) for row in DataLoader(stream.skip(50), batch_size=None, num_workers=workers)}
    print(f"{workers} workers: take(450) has {len(took[450])} rows, take(300) {len(took[300] - {*range(300)})} behind row 300, skip(50) {len(left & {*range(50)})} of the first 50")
PYTHON
)
echo "$seen"
expected='0 workers: take(450) has 450 rows, take(300) 0 behind row 300, skip(50) 0 of the first 50
2 workers: take(450) has 425 rows, take(300) 50 behind row 300, skip(50) 25 of the first 50
3 workers: take(450) has 400 rows, take(300) 0 behind row 300, skip(50) 33 of the first 50'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
