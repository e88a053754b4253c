"""One rank of a training job: a process that was forked from one that had imported torch, but used nothing of it.

It trains as jobs do: a round of all ranks per step, in which they reduce a number; checkpoints of all ranks after the same
round; and `loader.state_dict()` as the only thing that it knows of where it is.
"""

import datetime
import itertools
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed

import tensorquery as tq

from . import hunger, planted, sandbox, storms, tables
from .journal import Journal
from .schedule import FILES, NO_MEMORY, Fault, Schedule, Topology

GROUP_SECONDS = 300
"""After which a rank no longer waits for another: longer than the harness waits for either."""


@dataclass(frozen=True)
class Task:
    """The task of the ranks in one attempt.

    Attributes:
        schedule: The schedule.
        topology: The topology of this attempt.
        folder: Where the ranks meet and write their journals.
        table: Folder or URL of the table.
        splits: The option that decides the size of its splits.
        storage: Options of the store; empty for a local table.
        cache: The folder of the local cache, or None.
        stages: The folder of all stages.
        stage_dir: Where stages of queries are kept: that folder, or a URL.
        counts: The folder of row counts.
        state: The state to go on from, or None.
        gates: The steps before which ranks wait for a fault.
        plant: The name of a planted bug, or None.
        storm: The storm of signals that is to come, or None.
    """

    schedule: Schedule
    topology: Topology
    folder: Path
    table: str
    splits: dict
    storage: dict
    cache: Path | None
    stages: Path
    stage_dir: str
    counts: Path
    state: str | None
    gates: tuple[int, ...]
    plant: str | None
    storm: Fault | None

    def journal(self, rank):
        """The journal of a rank."""
        return self.folder / f"{rank}.journal"

    def errors(self, rank):
        """The file of a rank's standard error, and its workers'."""
        return self.folder / f"{rank}.stderr"

    def last_words(self, rank):
        """What a rank and its workers have written to it; nothing of one that was killed before it began."""
        path = self.errors(rank)
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def sql(self):
        """The query."""
        schedule = self.schedule
        where = f" WHERE {schedule.where}" if schedule.where else ""
        rows = f"SELECT {tables.columns(schedule.profile)} FROM t{where}"
        if schedule.staged == "order":
            return f"{rows} ORDER BY v DESC"
        if schedule.staged == "window":
            numbered = f"SELECT *, row_number() OVER (ORDER BY id) AS n FROM t{where}"
            return f"SELECT {tables.columns(schedule.profile)} FROM ({numbered}) AS numbered WHERE n > 0"
        return rows


class Gates:
    """Where all ranks wait until a fault has struck; memory that they share with the harness.

    Attributes:
        hungry: Where the harness writes who has no more memory.
    """

    def __init__(self, world_size):
        counts = np.frombuffer(mmap.mmap(-1, 8 * (2 + world_size)), np.int64)
        self._opened, self.hungry, self._arrived = counts[:1], counts[1:2], counts[2:]

    def wait(self, rank, number):
        """Of a rank: wait at gate `number` until it is opened."""
        self._arrived[rank] = number + 1
        while self._opened[0] <= number:
            time.sleep(0.001)
        hunger.starve_if_told(self.hungry)

    def have_arrived(self, number):
        """Whether all ranks are at the gate."""
        return bool((self._arrived > number).all())

    def open(self, number):
        """Let them go on."""
        self._opened[0] = number + 1


def run(task, rank, gates):
    """Be that rank, and end the process."""
    sandbox.end_with_parent()
    os.setsid()
    journal = Journal(task.journal(rank))
    errors = os.open(task.errors(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = 1
    try:
        # They go to the standard error of the rank and of its workers, which the harness reads.
        warnings.simplefilter("always")
        _train(task, rank, gates, journal)
        journal.end(kind="finished")
        status = 0
    except BaseException as error:
        # torch's handler raises when another worker ends.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        hunger.feed()
        traceback.print_exc()
        journal.end(
            kind="error",
            name=type(error).__name__,
            clear=isinstance(error, tq.TensorQueryError),
            message=str(error),
        )
    finally:
        sys.stderr.flush()
        # Neither threads of gloo nor workers are waited for: the harness ends them.
        os._exit(status)


def _train(task, rank, gates, journal):
    schedule = task.schedule
    _meet(task, rank)
    if schedule.has(NO_MEMORY):
        hunger.share_one_heap()
    if task.plant is not None:
        planted.plant(task.plant)
    loader, dataset = _open(task, gates)
    began = time.process_time()
    if task.state is None:
        loader.set_epoch(schedule.epoch)
    else:
        loader.load_state_dict(json.loads(task.state))
    journal.state(0, loader.state_dict())
    journal.opened(splits=dataset._plan.core.num_splits, clock=time.time() - time.monotonic())
    loop = _Loop(task, rank, loader, journal, began)
    if task.storm is None:
        loop.run(gates)
        return
    storms.prepare(task.storm)
    try:
        loop.run(gates)
    except (KeyboardInterrupt, SystemExit):
        storms.calm()
        loop.save()
        raise


class _Loop:
    """The loop of a training program."""

    def __init__(self, task, rank, loader, journal, began):
        self._task, self._rank, self._loader, self._journal = task, rank, loader, journal
        self._began = began
        self._received = []
        self._step = 0

    def run(self, gates):
        """Train to the end of the epoch."""
        task, schedule, batches = self._task, self._task.schedule, iter(self._loader)
        while True:
            self._step += 1
            if self._step in task.gates:
                gates.wait(self._rank, task.gates.index(self._step))
            before = len(self._received)
            # In compiled code: no signal is heard between what the loader counts and what this has.
            self._received.extend(itertools.islice(batches, 1))
            has_one = len(self._received) > before
            if has_one:
                if not before:
                    self._journal.first(time.process_time() - self._began)
                self._note(before)
            # As a step of training does, and as `Join` does where ranks have different numbers of them.
            having = _sum(has_one)
            if not having:
                break
            if schedule.remainder != "uneven" and having != task.topology.world_size:
                raise AssertionError(
                    f"unequal steps: at step {self._step} only {having} of {task.topology.world_size} ranks have a batch"
                )
            if self._step % schedule.cadence == 0:
                self._journal.state(self._step, self._loader.state_dict())

    def _note(self, at):
        batch = self._received[at]
        self._journal.batch(at + 1, tables.ids_of(batch, self._task.schedule.profile))
        self._received[at] = None

    def save(self):
        """Note what was received until an exception of a signal, and the state."""
        for at, batch in enumerate(self._received):
            if batch is not None:
                self._note(at)
        # A rank without batches goes on beside the others.
        step = max(len(self._received), self._step - 1)
        self._journal.state(step, self._loader.state_dict())


def _sum(value):
    """The sum over all ranks."""
    total = torch.tensor([int(value)])
    torch.distributed.all_reduce(total)
    return int(total)


def _meet(task, rank):
    """Join the process group of the attempt, by a store that the first rank serves."""
    world_size = task.topology.world_size
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        TENSORQUERY_CACHE=str(task.counts),
        TENSORQUERY_STAGES=str(task.stages),
    )
    patience = datetime.timedelta(seconds=GROUP_SECONDS)
    address = task.folder / "port"
    if rank == 0:
        store = torch.distributed.TCPStore(
            "127.0.0.1", 0, world_size, True, patience, wait_for_workers=False
        )
        (task.folder / "port.new").write_text(str(store.port))
        (task.folder / "port.new").rename(address)
    else:
        while not address.exists():
            time.sleep(0.002)
        store = torch.distributed.TCPStore(
            "127.0.0.1", int(address.read_text()), world_size, False, patience
        )
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=patience
    )


def _open(task, gates):
    schedule, topology = task.schedule, task.topology
    cache = {} if task.cache is None else {"local_cache": str(task.cache)}
    session = tq.Session(storage_options=task.storage or None, **cache)
    # A file that is cut short under a mapping ends the process by SIGBUS, as docs/files.md says.
    more = {"memory_map": False} if schedule.format == "arrow" and schedule.has(*FILES) else {}
    kind = "iceberg_table" if schedule.format == "iceberg" else schedule.format
    getattr(session, f"register_{kind}")("t", task.table, **more)
    workers = {"prefetch_factor": 2} if topology.workers else {}
    if topology.workers and schedule.has(NO_MEMORY):
        workers["worker_init_fn"] = lambda _: hunger.wait_to_starve(gates.hungry)
    splits = {"split_rows": 4096} if schedule.staged else task.splits
    return tq.create_dataloader(
        session.sql(task.sql),
        batch_size=topology.batch_size,
        num_workers=topology.workers,
        remainder=schedule.remainder,
        assignment=schedule.assignment,
        stage_dir=task.stage_dir,
        **schedule.shuffle,
        **splits,
        **workers,
    )
