"""A schedule from its first start to the end of the epoch: attempt after attempt, each from the last saved states."""

import dataclasses
import json
import resource
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import stores
import tensorquery as tq

from . import check, epoch, faults, sandbox, tables
from .epoch import Struck
from .rank import Task
from .schedule import (
    FILES,
    FULL_CACHE,
    FULL_STAGE,
    KINDS,
    ON_DISKS,
    READ_ONLY_STAGE,
    SKEW,
    STANDS,
    STORE,
    STORMS,
    VANISHED_STAGE,
    Topology,
)

FEW_AT_ONCE = {"max_concurrent_requests": "2"}
"""A request that is under way is not struck."""

EPOCH_SECONDS = 1.0
"""In which a table comes from the store."""

AT_ONCE = (
    *(kind for kind in KINDS if "killed" in kind),
    *STANDS,
    *STORMS,
    "the clock jumps",
    SKEW,
    READ_ONLY_STAGE,
)
"""Kinds that no process can be spared."""

LEAST_SPLITS = 8
"""Of each rank, in a whole epoch."""


@dataclass
class Verdict:
    """The result of a schedule.

    Attributes:
        seed: Its seed.
        kind: The kind that had its turn.
        violations: What should not have been; empty where all held.
        struck: The faults that were made.
        attempts: How each attempt ended.
        rows: Rows of the epoch that were compared with the query's.
        splits: Splits per rank.
        runs: Of each attempt: its topology, the rows delivered before it, the length of the state that it went on from, and
            the seconds of CPU that a rank took to its first batch, at most.
        disturbed: Whether the machine stood still meanwhile, so that it says nothing.
        seconds: By the clock.
        cpu_seconds: Of all processes.
    """

    seed: int
    kind: str
    violations: list[str] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    runs: list[dict] = field(default_factory=list)
    rows: int = 0
    splits: int = 0
    disturbed: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def landed(self):
        """Whether a fault of the kind that had its turn struck in the middle of the epoch."""
        return any(one.kind == self.kind and one.landed for one in self.struck)

    def plain(self):
        """As plain data."""
        return {**dataclasses.asdict(self), "landed": self.landed}


@dataclass(frozen=True)
class Place:
    """Where a schedule finds what it needs.

    Attributes:
        folder: Its own folder.
        tables: The folder of all tables.
        proxy: The proxy of its lane, or None.
    """

    folder: Path
    tables: Path
    proxy: object | None


def run(schedule, place, plant=None):
    """Run a schedule.

    Args:
        schedule: The schedule.
        place: Where.
        plant: The name of a planted bug, or None.

    Returns:
        The verdict.
    """
    verdict = Verdict(schedule.seed, schedule.kind)
    began, chain = time.monotonic(), None
    try:
        chain = _Chain(schedule, place, plant, verdict)
        chain.run()
    except Exception:
        verdict.violations.append(f"the harness itself failed:\n{traceback.format_exc()}")
    finally:
        if chain is not None:
            chain.close()
    verdict.seconds = time.monotonic() - began
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        verdict.cpu_seconds += used.ru_utime + used.ru_stime
    return verdict


class _Chain:
    def __init__(self, schedule, place, plant, verdict):
        self.schedule, self.place, self.plant, self.verdict = schedule, place, plant, verdict
        self.wanted = tables.wanted(schedule.profile, schedule.where)
        self.kept = np.empty(0, np.int64)
        self.state = None
        self.complete = False
        self.in_force = set()
        self.scene = faults.Scene(sandbox.Clock(), proxy=place.proxy)
        self._lay_out()

    def _lay_out(self):
        """The schedule's own table and disk, where faults strike those."""
        schedule, place = self.schedule, self.place
        source = place.tables / f"{schedule.profile}-{schedule.format}"
        self.splits = tables.split_options(schedule.profile, schedule.format, source / "t")
        self.table = str(source / "t")
        if schedule.place == "store":
            self.table = f"{place.proxy.store.root}/{source.name}/"
            if schedule.profile == "long":
                # So that a job reads while it trains, and not all before.
                rate = tables.stored_bytes(source / "t") / EPOCH_SECONDS
                self.scene.pace = [{"kind": "link", "rate": rate}]
            place.proxy.set(*self.scene.pace)
        if schedule.has(*FILES):
            own = place.folder / "table"
            tables.copied(source, own)
            self.scene.table, self.scene.other = own / "t", own / "other"
            self.table = str(own / "t")
        if schedule.has(*ON_DISKS):
            self.scene.disk = sandbox.Disk(place.folder / "disk")

    def close(self):
        """Give back what others may need."""
        self.scene.repair()
        if self.schedule.has(SKEW) and self.schedule.place == "store":
            store = self.place.proxy.store
            tq.clear_stages(self._leased(), unused_days=0, storage_options=store.options)
        if self.place.proxy is not None:
            self.place.proxy.set()
        if self.scene.disk is not None:
            self.scene.disk.remove()

    def run(self):
        """Attempt after attempt, until the epoch is complete or something is wrong."""
        for number, attempt in enumerate(self.schedule.attempts):
            if attempt.repaired:
                self.scene.repair()
                self.in_force.clear()
            self._attempt(number, attempt)
            if self.complete or self.verdict.violations or self.verdict.disturbed:
                break
        if not (self.complete or self.verdict.violations or self.verdict.disturbed):
            self.verdict.violations.append("the last attempt had no fault and did not come to the epoch's end")  # fmt: skip
        self.verdict.rows = len(self.kept)

    def _attempt(self, number, attempt):
        left = len(self.wanted) - len(self.kept)
        topology = _that_fits(attempt.topology, left)
        steps = -(-left // (topology.world_size * topology.batch_size))
        gates = tuple(
            fault.details.get("step", min(max(2, 1 + round(fault.at * steps)), max(2, steps)))
            for fault in attempt.faults
            if fault.at > 0
        )
        task = self._task(number, attempt, topology, _rising(gates))
        before, struck = len(self.kept), []
        for fault in attempt.faults:
            if fault.at == 0 and "opening" not in fault.details:
                what = faults.strike(self.scene, fault, lambda: None)
                struck.append(Struck(fault.kind, 0 < before < len(self.wanted), before, what))
        outcome = epoch.run(task, attempt, self.scene, before, len(self.wanted))
        outcome.struck[:0] = struck
        self.verdict.struck += outcome.struck
        self.verdict.disturbed |= outcome.disturbed
        self.in_force |= {one.kind for one in outcome.struck}
        self._note_met(task, outcome)
        url = Path(self.table).name if self.schedule.place == "store" else None
        self._note_run(topology, outcome, before)
        wrong = check.ends(outcome, self.in_force, self.scene.broken, url)
        texts = [task.last_words(number) for number in range(topology.world_size)]
        wrong += check.last_words(texts, self.in_force)
        self._go_on_from(outcome, topology, wrong)
        wrong += check.rows(
            self.kept, self.wanted, self.schedule.remainder, self.complete, topology
        )
        self.verdict.attempts.append(_told(number, topology, task.gates, outcome, len(self.kept)))
        self.verdict.violations += [f"attempt {number}: {text}" for text in wrong]

    def _note_run(self, topology, outcome, before):
        first = [told.first for told in outcome.told]
        self.verdict.runs.append(
            {
                "topology": dataclasses.astuple(topology),
                "rows_before": before,
                "state_bytes": len(self.state or ""),
                "first_batch": None if None in first else max(first),
            }
        )

    def _note_met(self, task, outcome):
        """Say of the faults that are in force whether this attempt has met them."""
        # Not those that other faults have killed.
        badly = any(
            end == "error" or end in check.DEATHS_WITHOUT_MEMORY[1:] for end in outcome.ends
        )
        proxy, numbers = self.place.proxy, range(task.topology.world_size)
        for one in self.verdict.struck:
            if one.kind in AT_ONCE:
                one.met = one.landed
            elif one.kind == FULL_CACHE:
                one.met |= any("local_cache" in task.last_words(n) for n in numbers)
            elif one.kind in self.scene.noticed:
                noticed = self.scene.noticed[one.kind]
                one.met |= one.kind in self.in_force and (badly or noticed())
            elif one.kind in STORE:
                hits = proxy.figures()["hits"]
                one.met |= one.kind in self.in_force and any(
                    hits[rule] for rule in hits if rule != "link"
                )
            else:
                one.met |= one.kind in self.in_force and badly

    def _task(self, number, attempt, topology, gates):
        folder = self.place.folder / str(number)
        folder.mkdir()
        storage, cache = {}, None
        if self.schedule.place == "store":
            stays = not attempt.repaired or any(fault.stays for fault in attempt.faults)
            # Where a fault of the store stays, it gives up soon.
            patience = stores.HASTY if stays else stores.PATIENT
            storage = {**self.place.proxy.store.options, **patience, **FEW_AT_ONCE}
        if self.schedule.caches:
            cache = self.scene.disk.folder / "cache" if self.scene.disk else self.place.folder / "cache"  # fmt: skip
        stages = self._stages(number)
        counts = self.place.folder / "counts"
        self.scene.stages, self.scene.cache, self.scene.counts = stages, cache, counts
        self.scene.leases = self._has_leases(number)
        return Task(
            schedule=self.schedule,
            topology=topology,
            folder=folder,
            table=self.table,
            splits=self.splits,
            storage=storage,
            cache=cache,
            stages=stages,
            stage_dir=self._leased() if self.scene.leases else str(stages),
            counts=counts,
            state=self.state,
            gates=gates,
            plant=self.plant,
            storm=next((fault for fault in attempt.faults if fault.kind in STORMS), None),
        )

    def _stages(self, number):
        """The folder of the stages of an attempt."""
        schedule, disk = self.schedule, self.scene.disk
        if schedule.has(FULL_STAGE) and number > 0:
            # Another machine, whose disk is full until it is repaired.
            return disk.folder / "stages"
        if schedule.has(READ_ONLY_STAGE, VANISHED_STAGE):
            (strike,) = (
                fault
                for attempt in schedule.attempts
                for fault in attempt.faults
                if fault.kind in (READ_ONLY_STAGE, VANISHED_STAGE)
            )
            is_there = number == 0 or strike.details.get("holds_it", True)
            return disk.folder / ("stages" if is_there else "elsewhere")
        if schedule.has(SKEW) and number > 0:
            return self.place.folder / "elsewhere"
        return self.place.folder / "stages"

    def _has_leases(self, number):
        """Whether the stages of an attempt lie below a URL."""
        schedule = self.schedule
        return (
            bool(schedule.has(SKEW) and number > 0 and schedule.staged)
            and schedule.place == "store"
        )

    def _leased(self):
        """Where they lie there."""
        return f"{self.place.proxy.store.root}/stages-{self.schedule.seed}"

    def _go_on_from(self, outcome, topology, wrong):
        """Keep the rows up to the last round that all ranks have saved; what came after it is forgotten."""
        opened = [told.opened for told in outcome.told if told.opened is not None]
        if opened and not self.verdict.splits:
            # Each rank knows all splits, or its share of them.
            self.verdict.splits = min(one["splits"] for one in opened) // topology.world_size
            if self.verdict.splits < LEAST_SPLITS:
                wrong.append(f"only {self.verdict.splits} splits per rank: the schedule is too small")  # fmt: skip
        if outcome.finished:
            self.complete = True
            self._keep(outcome.told, 1 << 62)
            return
        saved = set.intersection(*(set(told.states) for told in outcome.told))
        if not saved:
            return
        step = max(saved)
        states = [json.loads(told.states[step]) for told in outcome.told]
        if self.schedule.remainder == "uneven":
            state = tq.merge_state_dicts(states)
        else:
            if any(one != states[0] for one in states):
                wrong.append(f"the states of the ranks differ at step {step}")
            state = states[self.schedule.seed % len(states)]
        self.state = json.dumps(state)
        wrong += check.size(self.state)
        self.complete = state["epoch"] > self.schedule.epoch
        self._keep(outcome.told, step)

    def _keep(self, tolds, step):
        self.kept = np.concatenate([self.kept, *(ids for told in tolds for ids in told.rows_until(step))])  # fmt: skip


def _that_fits(topology, left):
    """Equal steps need a row for each rank."""
    if left >= 2 * topology.world_size:
        return topology
    return Topology(1, topology.workers, topology.batch_size)


def _rising(gates):
    """Each gate after the one before."""
    found = []
    for gate in gates:
        found.append(gate if not found else max(gate, found[-1] + 1))
    return tuple(found)


def _told(number, topology, gates, outcome, kept):
    """A line about an attempt."""
    ends = ", ".join(
        end if told.outcome is None or end != "error" else f"{told.outcome['name']}: {told.outcome['message'][:160]}"
        for end, told in zip(outcome.ends, outcome.told, strict=True)
    )  # fmt: skip
    struck = "; ".join(
        f"{one.kind} at {one.rows} rows{'' if one.landed else ' (not in the middle)'} {one.what}"
        for one in outcome.struck
    )
    where = f"{topology.world_size} ranks x {topology.workers} workers, batches of {topology.batch_size}"  # fmt: skip
    return f"attempt {number}: {where}, gates {list(gates)}; {struck or 'no fault'}; {ends}; {kept} rows kept, {outcome.seconds:.1f} s"
