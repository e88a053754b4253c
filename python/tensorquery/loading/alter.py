"""Alters what a dataset delivers in the middle of an epoch: what was delivered is taken off the altered result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tensorquery._util.digests import digest
from tensorquery._util.options import nearest_name
from tensorquery.distributed.broadcast import channel_of
from tensorquery.errors import ConfigError
from tensorquery.loading.alteration import Alteration, Request, sources_of
from tensorquery.loading.epoch_progress import Progress
from tensorquery.loading.epoch_state import EpochState
from tensorquery.loading.plan import DatasetPlan
from tensorquery.loading.snapshot_pins import agreed
from tensorquery.loading.subtraction import Result, Subtraction
from tensorquery.sharding.altered import Altered
from tensorquery.sharding.checkpoint import check_sum, run_of
from tensorquery.sharding.file_rows import left_rows
from tensorquery.sharding.left import Left
from tensorquery.sql.mixture import Mixture
from tensorquery.sql.query import Query

__all__ = ["alter"]


def alter(
    state: EpochState, request: Request, current: Mapping[str, Any]
) -> tuple[Alteration, dict[str, Any]]:
    """Alter the query of a dataset; where it fails, nothing has changed.

    Args:
        state: The dataset's state.
        request: What changes.
        current: The state of the loader, or of the dataset, up to now.

    Returns:
        What it did, and the state with which the next iteration begins.

    Raises:
        ConfigError: It does not go with an option, or rows cannot be told apart; names what and why.
        QueryError: The altered query is malformed.
        DataError: A file cannot be read.
    """
    plan = state.plan
    _refuse(plan, state)
    epoch, run, left = current["epoch"], run_of(current), Left.read(current["left"])
    if left is not None or run["step"]:
        state.check_numbering(run["layout"], state.workers)
        plan.widen()
    steps = run["step"] + (0 if left is None else left.steps)
    left_now = plan.epochs.left_after(epoch, left, run) if run["step"] else left
    assert plan.query is not None
    known = state.altered or Altered()
    names = known.names or [source.name for source in sources_of(plan.query)]
    _agree(plan, [epoch, steps, request.agreed(), [] if left_now is None else left_now.rows])
    query, sources, words = request.applied(plan.query, names)
    _check_columns(plan.query, query)
    _check_key(query, request.key)
    before = Result.of(plan, sources_of(plan.query, names))
    with plan.kept():
        plan.open(agreed(query, plan.topology, plan.group), channel_of(plan.topology, plan.group))
        plan.widen()
        assert plan.query is not None
        pinned = [each.query for each in sources_of(plan.query)]
        sources = [source._replace(query=own) for source, own in zip(sources, pinned, strict=True)]
        after = Result.of(plan, sources)
        only_weights = before.is_same(after)
        if not only_weights:
            _refuse_numbers(plan)
        subtracting = Subtraction(before, after, known.past_of(epoch), request.key)
        found: Left | None = None
        if left_now is None:
            subtracting.subtract([np.ones(rows, dtype=bool) for rows in before.counts])
        else:
            left_of = left_rows(before.core, before.counts, epoch, left_now)
            if only_weights:
                found = replace(left_now, anew=True)
                subtracting.count(left_of, plan.deal.exclude)
            else:
                subtracting.subtract(left_of)
                found = plan.epochs.left_without(epoch, subtracting.delivered, steps)
        # Whether equal steps are possible is known now, and not when the next batch is asked for.
        plan.epochs.shards(state.workers, epoch, found)
        report = Alteration(epoch, steps, words, tuple(subtracting.rows))
        altered = known.after(
            (epoch, steps),
            words,
            [source.name for source in sources],
            _weights(plan.query),
            subtracting.past,
        )
        altered.to_dict(epoch)
    state.altered = altered
    following = Progress(epoch, state.workers, left=found)
    state.progress, state.ended = following, None
    state.changed()
    begin = {
        **plan.constant,
        "epoch": epoch,
        "layout": plan.epochs.layout(state.workers),
        "step": 0,
        "cursors": {},
        "turns": {},
        "left": None if found is None else found.to_dict(),
        "altered": altered.to_dict(epoch),
    }
    return report, {**begin, "check": check_sum(begin)}


def _weights(query: Query | Mixture) -> Any:
    """The weights of a mixture as plain data."""
    if isinstance(query, Query):
        return None
    return query.weights if query.schedule is None else query.schedule.to_dict()


def _refuse(plan: DatasetPlan, state: EpochState) -> None:
    """Refuse options under which rows cannot be taken off."""
    if not plan.is_at_home or plan.query is None:
        raise ConfigError(
            "alter() is for the dataset that was made in this process; a worker, and a copy, have no query"
        )
    deal = plan.deal
    wrong = {
        f"sample_weight={deal.weighing.column!r}"
        if deal.weighing
        else "": "draws rows by weight, of all rows of the query",
        'shuffle="global"'
        if deal.shuffle == "global"
        else "": "permutes all rows of the query at once; use shuffle=True",
        'assignment="dynamic"'
        if deal.assignment == "dynamic"
        else "": "has no step that all ranks share",
        'on_transform_error="skip"'
        if deal.refills
        else "": "fills batches up with rows that no step names",
        "windows="
        if plan.windows is not None
        else "": "has many samples of one row, so that delivered rows cannot be taken off; make a new loader",
        'on_error="skip"'
        if plan.skips
        else "": "has found the bad parts of the files that the query had before",
    }
    for option, reason in wrong.items():
        if option:
            raise ConfigError(f"{option} does not go with alter(): it {reason}")
    if plan.topology.world_size > 1 and not state.follows(state.workers):
        raise ConfigError(
            f"alter() needs steps that all {plan.topology.world_size} ranks share, which remainder={deal.remainder!r} "
            f'{"" if state.in_order else "with in_order=False "}does not give; use remainder="even"'
        )


def _refuse_numbers(plan: DatasetPlan) -> None:
    """Refuse options that name splits of the query as it was."""
    if plan.deal.exclude:
        raise ConfigError(
            "exclude= names splits of the query as it was, and the altered one has others; leave these rows out by a filter, or "
            "alter weights alone"
        )
    if not isinstance(plan.deal.strategy, str):
        raise ConfigError(
            "a split_strategy of your own deals the splits of the query as it was, so that alter() takes weights alone; use "
            'split_strategy="lpt"'
        )


def _agree(plan: DatasetPlan, mine: list[Any]) -> None:
    """Check that all ranks of a group alter the same at the same step."""
    channel = channel_of(plan.topology, plan.group)
    if channel is not None:
        epoch, steps, change, left = mine
        record = {
            "epoch": epoch,
            "step": steps,
            "change": change,
            "rows that are left": digest(left),
        }
        channel.agree("an alteration of the query", record, plan.topology.world_size)


def _check_key(query: Query | Mixture, key: tuple[str, ...]) -> None:
    """Check that the altered query has the columns that tell rows apart."""
    columns = [column[0] for column in query._core.columns()]
    for name in key:
        if name not in columns:
            near = nearest_name(name, columns)
            hint = f"; did you mean {near!r}?" if near else f"; it has {', '.join(columns)}"
            raise ConfigError(f"key= names {name!r}, which is no column of the query{hint}")


def _check_columns(old: Query | Mixture, new: Query | Mixture) -> None:
    """Check that batches go on as they were."""
    before, after = ([column[:2] for column in each._core.columns()] for each in (old, new))
    if before != after:
        then, now = ([name for name, _ in columns] for columns in (before, after))
        raise ConfigError(
            f"the altered query has other columns ({', '.join(now)}) than batches have until now ({', '.join(then)}), or other "
            "types of them; select the same ones"
        )
