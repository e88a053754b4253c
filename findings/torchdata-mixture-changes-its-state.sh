#!/usr/bin/env bash
# torchdata 0.11: a mixture writes into the state that it was loaded from, and a second load of that state begins the epoch anew.
#
# A state is kept to be loaded again, after the next crash as well. MultiNodeWeightedSampler takes the dict of the exhausted sources out of
# the state without a copy, and marks its sources there as they end. One would expect both loads to deliver the 35 items that are left: the
# second one finds all sources exhausted, starts over, and delivers all 40, without an error. A state that went through a file in between is
# safe.
#
# Versions: torchdata 0.11.0, torch 2.15.0. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet torchdata==0.11.0 torch==2.15.0
seen=$(venv/bin/python - <<'PYTHON'
import pickle

import torchdata.nodes as nodes

sources = {"a": range(20), "b": range(100, 120)}


def mixture():
    mixed = {name: nodes.IterableWrapper(items) for name, items in sources.items()}
    criterion = nodes.StopCriteria.ALL_DATASETS_EXHAUSTED
    return nodes.Loader(nodes.MultiNodeWeightedSampler(mixed, {"a": 1.0, "b": 2.0}, criterion, seed=0))


loader = mixture()
items = iter(loader)
for _ in range(5):
    next(items)
state = loader.state_dict()
copy = pickle.dumps(state)
for number in (1, 2):
    again = mixture()
    again.load_state_dict(state)
    print(f"load {number}: {len(list(again))} items")
again = mixture()
again.load_state_dict(pickle.loads(copy))
print(f"a copy made before: {len(list(again))} items")
PYTHON
)
echo "$seen"
expected='load 1: 35 items
load 2: 40 items
a copy made before: 35 items'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
