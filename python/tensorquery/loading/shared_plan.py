"""The plan of a loader: found here, or by one rank for all."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorquery._util.callers import stack_level_outside
from tensorquery._util.digests import digest
from tensorquery.errors import ConfigError, DataError, StorageError
from tensorquery.sharding.checkpoint import changed_files, file_digests
from tensorquery.sharding.shards import plan_splits, split_size

if TYPE_CHECKING:
    from tensorquery import _core
    from tensorquery.distributed.broadcast import Channel, Received
    from tensorquery.sharding.epochs import Epochs
    from tensorquery.sql.mixture import Mixture
    from tensorquery.sql.query import Query

__all__ = ["FoundPlan", "find_plan"]

_log = logging.getLogger("tensorquery")


@dataclass
class FoundPlan:
    """A plan, and where its splits come from.

    Attributes:
        plan: All splits, or this rank's share of them.
        epochs: How they are dealt; None where that was not asked for yet.
        share: This rank's share, where another rank dealt it.
        known: Whether that rank knows the output rows without counting.
        whole: Gets the plan with all splits.
    """

    plan: _core.Plan
    epochs: Epochs | None = None
    share: bytes | None = None
    known: bool = False
    whole: Callable[[], _core.Plan] | None = None


def find_plan(
    query: Query | Mixture,
    sizes: tuple[int | str, int | None],
    channel: Channel | None,
    deal: Callable[[_core.Plan], Epochs] | None,
    options: Mapping[str, Any],
    *,
    tolerant: bool = False,
) -> FoundPlan:
    """Plan the splits of a query, once for all ranks of a channel.

    Args:
        query: The query, whose tables this rank has.
        sizes: ``split_bytes`` and ``split_rows``.
        channel: The ranks; None: this process plans by itself.
        deal: How a plan is dealt; called on the rank that plans. None: not yet, and all ranks get all splits.
        options: This rank's options, by name: all ranks must have the same.
        tolerant: Whether a file that cannot be understood is a split that verification finds bad.

    Raises:
        DataError: This rank has other files than the one that planned; names them.
        ConfigError: It has other options; names them.
        StorageError: The rank that plans does not say what it found.
        NotShardableError: The query is not row-local above one scan, and nothing of it was staged.
    """

    def find() -> FoundPlan:
        plan = plan_splits(query._core, *sizes, tolerant=tolerant)
        warn_of_cache(query)
        return FoundPlan(plan, None if deal is None else deal(plan))

    if channel is None:
        return find()
    rank = channel.rank

    def pack(found: FoundPlan) -> dict[str, bytes]:
        epochs = found.epochs
        shares = None if epochs is None else epochs.all_shares()
        head = {
            "options": _plain(options),
            "sizes": list(split_size(*sizes)),
            "files": file_digests(query._core.files()),
            "fingerprint": found.plan.fingerprint,
            "known": epochs is not None and epochs.counts is not None,
            "dealt": shares is not None,
        }
        parts = {"head": json.dumps(head).encode(), "plan": found.plan.memo()}
        for share in shares or []:
            parts[f"share/{share.rank}"] = share.encode()
            parts[f"splits/{share.rank}"] = found.plan.memo(share.split_ids())
        return parts

    def take(got: Received) -> FoundPlan:
        head = json.loads(got["head"])
        files = query._core.files()
        _check_same(head, _plain(options), list(split_size(*sizes)), files)

        def whole() -> _core.Plan:
            try:
                memo = got["plan"]
            except StorageError as error:
                # Late in a job, the rank that serves the store may have ended well: the files are still pinned here.
                _log.warning("%s; this rank reads the footers itself", error)
                return plan_splits(query._core, *sizes, tolerant=tolerant)
            return query._core.plan_of_memo(memo, *split_size(*sizes))

        if not head["dealt"]:
            return FoundPlan(whole())
        plan = query._core.plan_of_memo(got[f"splits/{rank}"], *split_size(*sizes))
        return FoundPlan(plan, None, got[f"share/{rank}"], head["known"], whole)

    return channel.once(["splits of a query", digest(query._parts())], find, pack, take)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(options)))


def _check_same(
    head: Mapping[str, Any],
    options: Mapping[str, Any],
    sizes: list[Any],
    files: list[tuple[str, str]],
) -> None:
    """Check that this rank reads the same files in the same way as the one that planned."""
    found = [
        f"{name} ({head['options'].get(name)!r} there, {value!r} here)"
        for name, value in options.items()
        if head["options"].get(name) != value
    ]
    if head["sizes"] != sizes:
        found.append(f"split_bytes or split_rows ({head['sizes'][:2]} there, {sizes[:2]} here)")
    if found:
        raise ConfigError(
            f"all ranks must give the same options; what differs between this rank and the one that planned: {', '.join(found)}"
        )
    differing = changed_files(head["files"], file_digests(files), [path for path, _ in files])
    if differing and all(name.startswith("a changed file (stage (") for name in differing):
        raise DataError(
            f"this rank and the one that planned have built different stages: {', '.join(differing)}. Give stage_dir= a "
            "folder or URL that all ranks reach, so that one of them builds it for all"
        )
    if differing:
        raise DataError(
            f"this rank and the one that planned do not see the same files; what differs: {', '.join(differing)}. Let one "
            "rank list them for all: Session(process_group=…), or path= of create_dataloader"
        )


def warn_of_cache(query: Query | Mixture) -> None:
    """Warn about trouble with the plan cache: the work was done without it."""
    for message in query._core.take_warnings():
        warnings.warn(message, UserWarning, stacklevel=stack_level_outside())
