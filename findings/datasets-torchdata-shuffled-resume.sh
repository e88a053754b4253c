#!/usr/bin/env bash
# datasets 5.2 with torchdata's StatefulDataLoader: a state of a shuffled stream cannot be loaded with the two workers that wrote it.
#
# A stream with shards, a shuffle buffer and StatefulDataLoader are made for resuming together, and one would expect the state to fit the
# topology that it came from. The worker that has fewer files fails: the lists of its state are shorter than those of its stream. Without
# workers, or without shuffle, the state loads.
#
# Versions: datasets 5.2.0, torchdata 0.11.0, torch 2.15.0, pyarrow 26.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet datasets==5.2.0 torchdata==0.11.0 torch==2.15.0 pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from torchdata.stateful_dataloader import StatefulDataLoader

datasets.disable_progress_bars()
datasets.logging.set_verbosity_error()
files = [f"{k}.parquet" for k in range(5)]
for k, file in enumerate(files):
    pq.write_table(pa.table({"x": range(k * 100, k * 100 + 100)}), file)
whole = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)


def loader(shuffled, workers):
    stream = whole.shuffle(seed=1, buffer_size=50) if shuffled else whole
    return StatefulDataLoader(stream, batch_size=8, num_workers=workers)


for shuffled, workers in ((False, 2), (True, 0), (True, 2)):
    first, second = loader(shuffled, workers), loader(shuffled, workers)
    batches = iter(first)
    for _ in range(11):
        next(batches)
    second.load_state_dict(first.state_dict())
    try:
        answer = f"to the end: {sum(1 for _ in second) > 0}"
    except IndexError as error:
        answer = str(error).strip().splitlines()[-1]
    print(f"shuffled {shuffled}, {workers} workers: goes on", answer)
PYTHON
)
echo "$seen"
expected='shuffled False, 2 workers: goes on to the end: True
shuffled True, 0 workers: goes on to the end: True
shuffled True, 2 workers: goes on IndexError: list index out of range'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
