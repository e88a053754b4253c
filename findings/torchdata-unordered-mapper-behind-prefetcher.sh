#!/usr/bin/env bash
# torchdata 0.11: a state of a Prefetcher over an unordered ParallelMapper loses items.
#
# With in_order=False only the order is said to be open. One would expect the items of a resumed run to be those that were not delivered.
# The snapshot that an item brings stands behind the items which it overtook in the mapper, and the Prefetcher's state is that snapshot:
# those are lost. Which ones depends on timing; here the first item takes long.
#
# Versions: torchdata 0.11.0, torch 2.15.0. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet torchdata==0.11.0 torch==2.15.0
seen=$(venv/bin/python - <<'PYTHON'
import time

import torchdata.nodes as nodes


def late(item):
    time.sleep(3 if item == 0 else 0.01)
    return item


def loader():
    mapper = nodes.ParallelMapper(nodes.IterableWrapper(range(40)), late, num_workers=2, in_order=False)
    return nodes.Loader(nodes.Prefetcher(nodes.Batcher(mapper, 5, drop_last=False), 2))


first = loader()
batches = iter(first)
before = next(batches) + next(batches)
second = loader()
second.load_state_dict(first.state_dict())
after = [item for batch in second for item in batch]
print("delivered before:", before)
print("lost:", sorted({*range(40)} - {*before, *after}), "twice:", sorted({*before} & {*after}))
PYTHON
)
echo "$seen"
expected='delivered before: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
lost: [0] twice: []'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
