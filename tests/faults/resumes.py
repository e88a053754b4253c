"""A table of resumes: epochs of a hundred runs, each of which is killed after a few steps and goes on with other ranks, workers
and batch sizes. Each row is one way of dealing and shuffling."""

import random
import statistics

from .schedule import KILL_ALL, Attempt, Fault, Schedule, Topology
from .tables import PROFILES

_PROFILE = "many runs"

_SHUFFLED = {"shuffle": True, "shuffle_buffer_size": 200, "shuffle_seed": 3}

ROWS = {
    "shuffled": {"shuffle": _SHUFFLED},
    "dynamic assignment": {"shuffle": _SHUFFLED, "remainder": "uneven", "assignment": "dynamic"},
    "unshuffled": {},
    "windows only": {"shuffle": {"shuffle_buffer_size": 150, "shuffle_seed": 4}},
    'shuffle="global"': {"shuffle": {"shuffle": "global", "shuffle_seed": 5}},
    'remainder="uneven"': {"shuffle": _SHUFFLED, "remainder": "uneven"},
    'remainder="drop"': {"shuffle": _SHUFFLED, "remainder": "drop"},
    'remainder="pad"': {"shuffle": _SHUFFLED, "remainder": "pad"},
}

_FIRST_SEED = 1_000_000
"""Of the rows of the table; schedules have smaller ones."""

_ENDS = 10
"""Runs at the begin and the end of an epoch whose first batches are compared."""


def draw(count, rows=None):
    """The schedules of the first `rows` rows, or of all, each with `count` resumes."""
    return [
        _drawn(name, options, _FIRST_SEED + number, count)
        for number, (name, options) in enumerate(list(ROWS.items())[:rows])
    ]


def _drawn(name, options, seed, count):
    rng = random.Random(f"resumes {name}")

    def run():
        sizes = PROFILES[_PROFILE].batch_sizes
        topology = Topology(rng.choice([1, 1, 2, 3]), rng.choice([0, 0, 1, 2]), rng.choice(sizes))
        return Attempt(topology, (Fault(KILL_ALL, 0.5, {"step": rng.choice([2, 3, 4]), "after": 0.0}),))  # fmt: skip

    return Schedule(
        seed=seed,
        kind=KILL_ALL,
        profile=_PROFILE,
        format="parquet",
        place="local",
        caches=False,
        where="k <> 2",
        staged=None,
        shuffle=options.get("shuffle", {}),
        remainder=options.get("remainder", "even"),
        assignment=options.get("assignment", "static"),
        cadence=1,
        epoch=0,
        # One rank at the end has no step more than others.
        attempts=(*(run() for _ in range(count)), Attempt(Topology(1, 0, 32))),
    )


def row(verdict):
    """A row of the table, as plain data."""
    runs = verdict["runs"]
    resumed = [one for one in runs if one["state_bytes"] and one["rows_before"]]
    first = [one["first_batch"] for one in runs if one["first_batch"] is not None]
    return {
        "name": list(ROWS)[verdict["seed"] - _FIRST_SEED],
        "resumes": len(resumed),
        "topologies": len({tuple(one["topology"]) for one in runs}),
        "rows": verdict["rows"],
        "state_bytes": max((one["state_bytes"] for one in resumed), default=0),
        "first_batch": [
            round(1000 * statistics.median(part), 1)
            for part in (first[:_ENDS], first[-_ENDS - 1 : -1])
            if part
        ],
        "violations": len(verdict["violations"]),
    }
