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
    "a bit flips in a stage",
    "a storm of SIGINT",
    "the stage's folder is read-only",
    "a bit flips in a cache",
    "the ranks' clocks differ",
    "a storm of SIGTERM",
    "the stage's folder vanishes",
)
"""The kinds of faults. The first one of a schedule follows from its seed in turn, so that each is tried equally often."""

FILES = tuple(kind for kind in KINDS if kind.startswith("a file"))
STORE = tuple(kind for kind in KINDS if kind.startswith("the store"))
STANDS = tuple(kind for kind in KINDS if "stands still" in kind)
OF_WORKERS = tuple(kind for kind in KINDS if kind.startswith("a worker"))
FULL_CACHE = "the cache's disk is full"
FLIPPED_CACHE = "a bit flips in a cache"
OF_CACHES = (FULL_CACHE, FLIPPED_CACHE)
REMOTE = (*STORE, *OF_CACHES)
NO_MEMORY = "out of memory"
OF_READERS = (*FILES, *REMOTE, NO_MEMORY)
"""Faults that strike only readers with data still to read: large tables, few processes, early."""

FULL_STAGE = "the stage's disk is full"
FLIPPED_STAGE = "a bit flips in a stage"
READ_ONLY_STAGE = "the stage's folder is read-only"
VANISHED_STAGE = "the stage's folder vanishes"
SKEW = "the ranks' clocks differ"
OF_STAGES = (FULL_STAGE, FLIPPED_STAGE, READ_ONLY_STAGE, VANISHED_STAGE, SKEW)
"""Faults of the rows that are kept once for all ranks. They strike the attempt after the one that has staged them."""

ON_DISKS = (FULL_CACHE, FULL_STAGE, READ_ONLY_STAGE, VANISHED_STAGE)
"""Faults that need a small disk of their own."""

OF_CLOCKS = ("the clock jumps", SKEW)
KILL_ALL = "all are killed"
STORM_INT, STORM_TERM = "a storm of SIGINT", "a storm of SIGTERM"
STORMS = (STORM_INT, STORM_TERM)

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
        of_stages = (FULL_STAGE, FLIPPED_STAGE, READ_ONLY_STAGE, VANISHED_STAGE)
        return self.kind in (*FILES, *of_stages) or self.details.get("stays", False)


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


def cheapest(kind, tries, among=12):
    """Schedules in which a kind has its turn and ranks share the rows, those that take the least work first."""
    first = KINDS.index(kind)
    drawn = [draw(first + number * len(KINDS)) for number in range(among)]
    return sorted(drawn, key=work)[:tries]


def work(schedule):
    """What a schedule costs, in attempts over a small table with one process."""
    rows = {"short": 0, "medium": 3, "long": 5}[schedule.profile]
    topologies = [attempt.topology for attempt in schedule.attempts]
    processes = sum(one.world_size * (1 + one.workers) for one in topologies)
    alone = all(one.world_size == 1 for one in topologies)
    return rows * len(topologies) + processes + (100 if alone else 0)


def draw(seed):
    """The schedule of a seed."""
    rng = random.Random(f"schedule {seed}")
    kind = KINDS[seed % len(KINDS)]
    place = "store" if kind in REMOTE else "local"
    if kind == SKEW:
        # A stage below a URL has a lease, one in a folder a lock.
        place = rng.choice(["local", "store"])
    if place == "local" and kind not in (*FILES, *OF_STAGES) and rng.random() < 0.15:
        place = "store"
    staged = rng.choice(["order", "window"]) if rng.random() < 0.12 else None
    shuffle = _shuffle(rng, kind)
    if kind in OF_STAGES:
        staged = rng.choice(["order", "window", None])
        if staged is None:
            shuffle = {"shuffle": "global", "shuffle_seed": shuffle.get("shuffle_seed", 42)}
    large = 0.9 if kind in OF_READERS else 0.25
    profile = "long" if staged or rng.random() < large else "short"
    if kind in OF_STAGES:
        profile = "medium"
    remainder = rng.choices(["even", "uneven", "drop", "pad"], [50, 24, 13, 13])[0]
    assignment = "dynamic" if _can_be_dynamic(shuffle, remainder) and rng.random() < 0.5 else "static"  # fmt: skip
    caches = kind in OF_CACHES or (place == "store" and rng.random() < 0.3)
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
    if kind in OF_STAGES:
        first = _fault(rng, rng.choice([KILL_ALL, "a rank is killed"]))
        attempts = [_attempt(rng, profile, (first,)), _staging(rng, kind, profile)]
    else:
        attempts.append(_struck(rng, kind, profile))
    if kind != FULL_STAGE and attempts[-1].faults[0].stays and rng.random() < 0.75:
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


def _staging(rng, kind, profile):
    """The attempt that a fault of the stages strikes."""
    if kind == FULL_STAGE:
        return _attempt(rng, profile, (Fault(kind, 0.0, {"room": rng.choice([0, 1 << 16, 1 << 20])}),))  # fmt: skip
    fault = _fault(rng, kind)
    if kind == SKEW:
        fault = dataclasses.replace(fault, at=0.0)
        # Whoever builds may be killed meanwhile: the next attempt finds its lease.
        opening = Fault(
            KILL_ALL, 0.0, {"opening": rng.uniform(0.2, 1.5), "after": 0.0, "pick": 0.5}
        )
        attempt = _attempt(rng, profile, (fault, opening) if rng.random() < 0.3 else (fault,))
        ranks = dataclasses.replace(attempt.topology, world_size=rng.choice([2, 3]))
        return dataclasses.replace(attempt, topology=ranks)
    faults = [dataclasses.replace(fault, at=rng.choice([0.0, 0.0, fault.at]))]
    if rng.random() < 0.5:
        faults.append(Fault(KILL_ALL, rng.uniform(fault.at, 0.9), {"after": 0.0}))
    return _attempt(rng, profile, tuple(faults))


def _fits(kind, place, caches):
    """Whether a fault of this kind can strike the table."""
    if kind in FILES:
        return place == "local"
    if kind in REMOTE:
        return place == "store" and (caches or kind in STORE)
    return kind not in OF_STAGES


def _struck(rng, kind, profile):
    """An attempt with a fault; where that does not end it, most often all are killed later."""
    fault = _fault(rng, kind)
    faults = [fault]
    ends = "killed" in kind or fault.details.get("manner", "notes") != "notes"
    if not ends and rng.random() < (0.9 if kind in FILES else 0.75):
        faults.append(Fault(KILL_ALL, rng.uniform(fault.at, 0.9), {"after": 0.0}))
    return _attempt(rng, profile, tuple(faults), kind)


def _attempt(rng, profile, faults=(), kind=""):
    # A fault of the storage strikes only readers with data still to read.
    few = kind in (*OF_READERS, *STORMS)
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
        details["seconds"] = _jump(rng)
    elif kind == SKEW:
        # In a folder, and below a URL, whose store refuses a difference of more than a quarter of an hour.
        details["seconds"] = [0, _jump(rng), _jump(rng)]
        details["small"] = [0, *(rng.choice([-1, 1]) * rng.randrange(60, 800) for _ in range(2))]
    elif kind in STORMS:
        manners = ["raises", "raises once"]
        details["manner"] = rng.choice(manners if kind == STORM_INT else [*manners, "notes", "notes", "kills"])  # fmt: skip
        details["of_workers"] = rng.random() < 0.35
        details["after"] = rng.uniform(0, 0.04)
        details["seconds"] = round(rng.uniform(0.05, 0.5), 2)
        details["pause"] = rng.choice([0.0003, 0.001, 0.003])
    elif kind == FLIPPED_STAGE:
        # Seen by the time of the file; or a disk that rots, and a file that was verified long ago.
        details |= {"rots": rng.random() < 0.5, "place": rng.random(), "bit": rng.randrange(8)}
    elif kind == READ_ONLY_STAGE:
        details["holds_it"] = rng.random() < 0.5
    elif kind == VANISHED_STAGE:
        details["leaves"] = rng.choice(["nothing", "nothing", "a file", "a read-only folder"])
    elif kind == FLIPPED_CACHE:
        details["share"] = rng.choice([0.2, 1.0])
    return Fault(kind, at, details)


def _jump(rng):
    """Seconds by which a clock is wrong."""
    size = rng.choice([90, 5 * 3600, 40 * 86400, 20 * 365 * 86400])
    return rng.choice([-1, 1]) * size
