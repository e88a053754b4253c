"""A schedule of faults, drawn from a seed: what is trained on, where faults strike, and on which topologies it goes on."""

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any

from .tables import FEW_ROWS, FORMATS, PROFILES, WHERE

KINDS = (
    "a worker is killed",
    "a worker stands still",
    "a file is replaced",
    "the store refuses",
    "a rank is killed",
    "the cache's disk is full",
    "a file is truncated",
    "the store resets",
    "all are killed",
    "a rank stands still",
    "a file is deleted",
    "the store cuts bodies",
    "out of memory",
    "the stage's disk is full",
    "the clock jumps",
    "the store stalls",
)
"""The kinds of faults. The first one of a schedule follows from its seed in turn, so that each is tried equally often."""

FILES = tuple(kind for kind in KINDS if kind.startswith("a file"))
STORE = tuple(kind for kind in KINDS if kind.startswith("the store"))
STANDS = tuple(kind for kind in KINDS if "stands still" in kind)
OF_WORKERS = tuple(kind for kind in KINDS if kind.startswith("a worker"))
FULL_CACHE = "the cache's disk is full"
REMOTE = (*STORE, FULL_CACHE)
NO_MEMORY = "out of memory"
OF_READERS = (*FILES, *REMOTE, NO_MEMORY)
"""Faults that strike only readers with data still to read: large tables, few processes, early."""

FULL_STAGE = "the stage's disk is full"
KILL_ALL = "all are killed"

PASSING = {
    "the store refuses": [
        {"kind": "status", "share": 0.3, "tries": 5},
        {"kind": "status", "status": 429, "code": "SlowDown", "burst": [4, 9], "retry_after": 0},
        {"kind": "status", "status": 500, "code": "InternalError", "share": 0.3, "tries": 5},
    ],
    "the store resets": [
        {"kind": "reset", "when": "before", "share": 0.3, "tries": 5},
        {"kind": "reset", "when": "headers", "share": 0.3, "tries": 5},
        {"kind": "reset", "when": "body", "share": 0.3, "tries": 5},
    ],
    "the store cuts bodies": [
        {"kind": "cut", "share": 0.5, "tries": 5},
        {"kind": "cut", "part": 0.0, "share": 0.3, "tries": 5},
    ],
    "the store stalls": [
        {"kind": "stall", "when": "headers", "seconds": 600, "times": 2},
        {"kind": "stall", "when": "body", "seconds": 600, "times": 2},
        {"kind": "silent", "times": 1},
    ],
}
"""Faults of the store that pass: requests are tried again, and the rows must come."""

STAYING = {
    "the store refuses": [{"kind": "status"}, {"kind": "status", "status": 500, "code": "InternalError"}],
    "the store resets": [{"kind": "reset", "when": "before"}, {"kind": "reset", "when": "body", "part": 0.0}],
    "the store cuts bodies": [{"kind": "cut", "part": 0.0}],
    "the store stalls": [{"kind": "silent"}, {"kind": "stall", "part": 0.0, "seconds": 600}],
}  # fmt: skip
"""Faults of the store that stay until it is repaired: one clear error."""


@dataclass(frozen=True)
class Topology:
    """Ranks, worker processes of each, and rows per batch."""

    world_size: int
    workers: int
    batch_size: int


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        kind: One of `KINDS`.
        at: After which part of the attempt's steps it strikes; 0: before the first one.
        details: What else its seed says.
    """

    kind: str
    at: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def stays(self):
        """Whether it goes on until somebody repairs it."""
        return self.kind in (*FILES, FULL_STAGE) or self.details.get("stays", False)


@dataclass(frozen=True)
class Attempt:
    """One start of the training job, from the last saved states on.

    Attributes:
        topology: Its topology.
        faults: The faults that strike while it runs, in order.
        repaired: Whether the damage of earlier faults was repaired before.
    """

    topology: Topology
    faults: tuple[Fault, ...] = ()
    repaired: bool = True


@dataclass(frozen=True)
class Schedule:
    """Everything that follows from a seed."""

    seed: int
    kind: str
    profile: str
    format: str
    place: str
    caches: bool
    where: str
    staged: str | None
    shuffle: dict[str, Any]
    remainder: str
    assignment: str
    cadence: int
    epoch: int
    attempts: tuple[Attempt, ...]

    def plain(self):
        """As plain data."""
        return dataclasses.asdict(self)

    def has(self, *kinds):
        """Whether one of its faults is of these kinds."""
        return any(fault.kind in kinds for one in self.attempts for fault in one.faults)


def draw(seed):
    """The schedule of a seed."""
    rng = random.Random(f"schedule {seed}")
    kind = KINDS[seed % len(KINDS)]
    place = "store" if kind in REMOTE else "local"
    if place == "local" and kind not in (*FILES, FULL_STAGE) and rng.random() < 0.15:
        place = "store"
    staged = rng.choice(["order", "window"]) if rng.random() < 0.12 else None
    shuffle = _shuffle(rng, kind)
    if kind == FULL_STAGE:
        staged = rng.choice(["order", "window", None])
        if staged is None:
            shuffle = {"shuffle": "global", "shuffle_seed": shuffle.get("shuffle_seed", 42)}
    large = 0.9 if kind in (*OF_READERS, FULL_STAGE) else 0.25
    profile = "long" if staged or rng.random() < large else "short"
    remainder = rng.choices(["even", "uneven", "drop", "pad"], [50, 24, 13, 13])[0]
    assignment = "dynamic" if _can_be_dynamic(shuffle, remainder) and rng.random() < 0.5 else "static"  # fmt: skip
    caches = kind == FULL_CACHE or (place == "store" and rng.random() < 0.3)
    schedule = Schedule(
        seed=seed,
        kind=kind,
        profile=profile,
        format="parquet" if rng.random() < 0.6 else rng.choice(FORMATS),
        place=place,
        caches=caches,
        where=rng.choice(list(WHERE)),
        staged=staged,
        shuffle=shuffle,
        remainder=remainder,
        assignment=assignment,
        cadence=rng.choice([1, 1, 2, 3, 5]),
        epoch=rng.choice([0, 0, 1, 4]),
        attempts=_attempts(rng, kind, profile, place, caches),
    )
    if (staged or shuffle.get("shuffle") == "global") and schedule.where in FEW_ROWS:
        # Splits of a stage have thousands of rows: of a third of the table there would be too few of them.
        schedule = dataclasses.replace(schedule, where="")
    return _of_more_formats(schedule)


def _of_more_formats(schedule):
    """Give some schedules later formats, drawn apart, so that all other schedules stay unchanged."""
    share = random.Random(f"format {schedule.seed}").random()
    if share < 0.25 and schedule.place == "local" and not schedule.has(*FILES):
        return dataclasses.replace(schedule, format="iceberg")
    if share > 0.9:
        return dataclasses.replace(schedule, format="avro")
    return schedule


def _shuffle(rng, kind):
    seed = {"shuffle_seed": rng.randrange(1000)}
    few_open = [
        {},
        {"shuffle": True, "shuffle_buffer_size": rng.choice([50, 300]), **seed},
        {"shuffle_buffer_size": rng.choice([33, 2000]), **seed},
    ]
    # These have read all splits of such a table with the first batch.
    all_open = [
        {"shuffle": True, **seed},
        {"shuffle": True, "shuffle_buffer_size": 20_000, **seed},
        {"shuffle": "global", **seed},
    ]
    return rng.choice(few_open * 5 + all_open if kind in OF_READERS else few_open + all_open)


def _can_be_dynamic(shuffle, remainder):
    """Whether assignment may be dynamic: ranks may differ in steps, and whole splits are taken."""
    return remainder == "uneven" and shuffle.get("shuffle") != "global"


def _attempts(rng, kind, profile, place, caches):
    attempts = []
    if kind == FULL_STAGE:
        first = _fault(rng, rng.choice([KILL_ALL, "a rank is killed"]))
        attempts = [_attempt(rng, profile, (first,))]
        attempts.append(_attempt(rng, profile, (Fault(kind, 0.0, {"room": rng.choice([0, 1 << 16, 1 << 20])}),)))  # fmt: skip
    else:
        attempts.append(_struck(rng, kind, profile))
        if attempts[-1].faults[0].stays and rng.random() < 0.75:
            attempts.append(dataclasses.replace(_attempt(rng, profile), repaired=False))
    if rng.random() < 0.4:
        others = [other for other in KINDS if _fits(other, place, caches)]
        opening = Fault(
            KILL_ALL, 0.0, {"opening": rng.uniform(0.02, 0.5), "after": 0.0, "pick": 0.5}
        )
        again = None if rng.random() < 0.2 else rng.choice(others)
        attempts.append(
            _struck(rng, again, profile) if again else _attempt(rng, profile, (opening,))
        )
    return (*attempts, _attempt(rng, profile))


def _fits(kind, place, caches):
    """Whether a fault of this kind can strike the table."""
    if kind in FILES:
        return place == "local"
    if kind in REMOTE:
        return place == "store" and (caches or kind in STORE)
    return kind != FULL_STAGE


def _struck(rng, kind, profile):
    """An attempt with a fault; where that does not end it, most often all are killed later."""
    fault = _fault(rng, kind)
    faults = [fault]
    if "killed" not in kind and rng.random() < (0.9 if kind in FILES else 0.75):
        faults.append(Fault(KILL_ALL, rng.uniform(fault.at, 0.9), {"after": 0.0}))
    return _attempt(rng, profile, tuple(faults), kind)


def _attempt(rng, profile, faults=(), kind=""):
    # A fault of the storage strikes only readers with data still to read.
    few = kind in OF_READERS
    ranks = rng.choices([1, 2, 3], [5, 3, 1] if few else [3, 4, 3])[0]
    least = 1 if kind in OF_WORKERS else 0
    workers = rng.choices([0, 1, 2], [6, 3, 2] if few else [4, 3, 4])[0]
    return Attempt(
        Topology(ranks, max(least, workers), rng.choice(PROFILES[profile].batch_sizes)), faults
    )


def _fault(rng, kind):
    """The details of a fault. All are drawn, used or not, so that a seed always means the same."""
    early = kind in OF_READERS
    at = rng.uniform(0.005, 0.15) if early else rng.uniform(0.02, 0.85)
    details = {"pick": rng.random()}
    if "killed" in kind:
        details["after"] = rng.choice([0.0, rng.uniform(0, 0.03)])
    elif kind in STANDS:
        details["seconds"] = round(rng.uniform(0.5, 2.0), 2)
    elif kind in FILES:
        details["part"] = round(rng.uniform(0.0, 0.95), 2)
    elif kind in STORE:
        details["stays"] = rng.random() < 0.5
        details["rule"] = rng.choice((STAYING if details["stays"] else PASSING)[kind])
    elif kind == NO_MEMORY:
        details |= {"of_worker": rng.random() < 0.5, "room": rng.choice([0, 1 << 18, 1 << 20])}
    elif kind == "the clock jumps":
        size = rng.choice([90, 5 * 3600, 40 * 86400, 20 * 365 * 86400])
        details["seconds"] = rng.choice([-1, 1]) * size
    return Fault(kind, at, details)
