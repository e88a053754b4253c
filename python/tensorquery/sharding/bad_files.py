"""Bad files, row groups and stripes: found before an epoch is dealt, left out of it, and named.

Bad splits must be known before rows are dealt. Otherwise ranks could not take equal steps, and an order could not be
repeated. So every split is executed once, shared between ranks as counting is, and what cannot be read for its content
is left out of the plan, under a fingerprint of its own. From there on nothing is skipped: a split that fails later is
an error.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorquery._util.callers import stack_level_outside
from tensorquery._util.digests import digest
from tensorquery._util.options import check_choice
from tensorquery.distributed.rendezvous import Board, StoreLostError
from tensorquery.distributed.topology import Topology, group_store
from tensorquery.errors import CheckpointMismatchError, ConfigError, DataError, StorageError
from tensorquery.metrics.progress import ProgressLine
from tensorquery.sharding.row_counts import Shared, keep, kept, portion_of, together

if TYPE_CHECKING:
    from tensorquery import _core

__all__ = ["Quarantine", "Quarantined", "check_on_error", "of_files", "warn_of"]

_LOG = logging.getLogger("tensorquery")

_SHOWN = 3
"""Bad parts that a warning names."""

_PATIENCE = 60.0
"""Seconds that the rank which has all verdicts first may take to publish them."""

_LOOK = 0.01
"""Seconds between two looks."""

_BY_STATE = "left out by the run whose state was loaded"


def check_on_error(value: Any) -> bool:
    """Whether ``on_error=`` says to leave bad data out.

    Raises:
        ConfigError: It is neither "raise" nor "skip".
    """
    return check_choice("on_error", value, ("raise", "skip")) == "skip"


@dataclass(frozen=True)
class Quarantined:
    """A file, or a part of one, that is left out because it cannot be read.

    Attributes:
        path: The file, as the user would write it.
        unit: The part of it, for example "row group 3", "stripe 0", "bytes 0 to 4194304" or "whole file".
        rows: Its rows before any filter, where metadata says them.
        error: Why it cannot be read.
    """

    path: str
    unit: str
    rows: int | None
    error: str

    def __str__(self) -> str:
        return f"{self.path}, {self.unit}: {self.error}"


def of_files(files: Sequence[tuple[str, str]]) -> list[Quarantined]:
    """Files that a table was registered without, by path and error."""
    return [Quarantined(path, "whole file", None, error) for path, error in files]


def warn_of(found: Sequence[Quarantined], of: str) -> None:
    """Warn once about left-out files and splits, with the first few names.

    Args:
        found: The files and splits left out; no warning if there are none.
        of: The table or query without them, for the message.
    """
    if not found:
        return
    rows = sum(part.rows or 0 for part in found)
    files = len({part.path for part in found})
    known = f", {rows:,} rows as far as metadata says them" if rows else ""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    warnings.warn(
        f'on_error="skip" leaves {len(found)} bad part{"s"[: len(found) != 1]} of {files} '
        f"file{'s'[: files != 1]} out of {of}{known}: {'; '.join(map(str, found[:_SHOWN]))}{more}",
        UserWarning,
        stacklevel=stack_level_outside(),
    )


@dataclass(frozen=True)
class Findings:
    """The bad parts of a plan.

    Attributes:
        bad: By split, which of its parts (see `_core.Plan.parts`).
        listed: The same with names.
        rows: Output rows by split of the plan without them; None where nobody has counted them.
    """

    bad: dict[int, list[int]] = field(default_factory=dict)
    listed: list[Quarantined] = field(default_factory=list)
    rows: list[int] | None = None


class Quarantine:
    """The bad parts that a dataset leaves out of its plan. With ``on_error="skip"`` that is open until it is settled.

    Args:
        query: The query, whose tables may have been registered without some files.
        plan: Its plan; with all splits, where bad ones are left out.
        skips: Whether bad splits are left out.

    Attributes:
        skips: The same.
        found: The files and splits left out; None until that is settled.
    """

    def __init__(self, query: _core.Query, plan: _core.Plan, *, skips: bool) -> None:
        self.skips = skips
        self._files = of_files(query.quarantined())
        self._plan: _core.Plan | None = plan if skips else None
        self.found = None if skips else Findings()

    @property
    def is_settled(self) -> bool:
        """True if the bad files and splits are known."""
        return self.found is not None

    @property
    def listed(self) -> list[Quarantined]:
        """All that is left out, files of the tables first, as far as it is known."""
        return [*self._files, *(self.found.listed if self.found else [])]

    @property
    def rows(self) -> list[int] | None:
        """Output rows by split of the plan that is left, where verification counted them."""
        return self.found.rows if self.found else None

    def metrics(self) -> dict[str, float]:
        """Counts of left-out files and splits; empty if nobody asked for leaving them out."""
        if not self.skips and not self._files:
            return {}
        listed = self.listed
        rows = sum(part.rows or 0 for part in listed)
        return {"quarantined_splits": float(len(listed)), "quarantined_rows": float(rows)}

    def constant(self) -> dict[str, Any]:
        """The entries of every state, beside its parts."""
        return {"on_error": "skip"} if self.skips else {}

    def parts(self) -> dict[str, Any]:
        """The part of a state that names left-out files and splits; empty if there are none."""
        splits = sorted(self.found.bad.items()) if self.found else []
        files = [digest(part.path)[:8] for part in self._files]
        if not splits and not files:
            return {}
        named = {"splits": [[split, bad] for split, bad in splits], "files": files}
        return {"quarantine": {"digest": digest(named), **named}}

    def settle(
        self,
        *,
        topology: Topology,
        process_group: Any | None,
        show_progress: bool | str,
        threads: int,
    ) -> _core.Plan:
        """Verify all splits, where that was not done yet, and return the plan of the good ones.

        Raises:
            DataError: Every split is bad; a file changed since it was pinned; the query fails on good data.
            StorageError: A file cannot be reached.
        """
        plan = self._plan
        assert plan is not None
        if self.found is not None:
            return plan
        verdicts = _verdicts(plan, topology, process_group, show_progress, threads)
        found = _findings(plan, verdicts)
        return self._accept(found, warn=not topology.local_rank)

    def follow(self, state: Mapping[str, Any]) -> _core.Plan | None:
        """The plan without what a state names, where it is a state of this query and of ``on_error="skip"``.

        Returns:
            The plan; None where the state is of another query, or says nothing that is not known.

        Raises:
            CheckpointMismatchError: The state leaves out what this run reads.
        """
        splits = _named(state)
        if not self.skips:
            if splits:
                raise CheckpointMismatchError(
                    f'the run that saved this state left out bad parts of {len(splits)} splits (on_error="skip"), '
                    'which this one would read; resume with on_error="skip"'
                )
            return None
        if state.get("on_error") != "skip" or self._plan is None:
            return None
        if self.found is not None and self.found.bad == splits:
            return None
        plan = self._plan
        if any(split >= plan.num_splits for split in splits):
            return None
        try:
            left = plan.without(splits) if splits else plan
        except ConfigError:
            # Another plan has other parts: the caller that compares the state reports the difference.
            return None
        if left.fingerprint != state["fingerprint"]:
            return None
        self.found = Findings(splits, _listed_by_state(plan, splits), None)
        return self._note(left, warn=True)

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that a state that skipped nothing is not of rows that this run leaves out.

        Raises:
            CheckpointMismatchError: It is.
        """
        if self.skips and state.get("on_error") != "skip" and self.found and self.found.bad:
            raise CheckpointMismatchError(
                'the run that saved this state read all rows (on_error="raise"), and now '
                f"{len(self.found.listed)} bad parts would be left out, the first of them "
                f'{self.found.listed[0]}; resume with on_error="raise" once the files are whole again, or start a '
                "new run without load_state_dict"
            )

    def is_of(self, state: Mapping[str, Any]) -> bool:
        """Whether a state of ``on_error="raise"`` is of this query, so that only verification can tell more."""
        return (
            self.skips
            and not self.is_settled
            and state.get("on_error") != "skip"
            and self._plan is not None
            and state["fingerprint"] == self._plan.fingerprint
        )

    def _accept(self, found: Findings, *, warn: bool) -> _core.Plan:
        plan = self._plan
        assert plan is not None
        left = plan.without(found.bad) if found.bad else plan
        if found.bad and not left.num_splits:
            raise DataError(
                f"every split of the query is bad, so that nothing is left to deliver; the first: {found.listed[0]}"
            )
        self.found = found
        return self._note(left, warn=warn)

    def _note(self, left: _core.Plan, *, warn: bool) -> _core.Plan:
        assert self.found is not None
        listed = self.found.listed
        for part in listed:
            _LOG.info("left out: %s", part)
        if warn:
            warn_of(listed, "the query")
        return left

    def __getstate__(self) -> dict[str, Any]:
        # A worker neither verifies nor follows a state.
        return {**self.__dict__, "_plan": None}


def _named(state: Mapping[str, Any]) -> dict[int, list[int]]:
    """The bad parts by split that a state names."""
    part = state["parts"].get("quarantine")
    if part is None:
        return {}
    try:
        named = {"splits": part["splits"], "files": part["files"]}
        splits = {split: list(bad) for split, bad in part["splits"]}
        numbers = [*splits, *(number for bad in splits.values() for number in bad)]
        if part["digest"] == digest(named) and all(
            type(number) is int and 0 <= number < 2**32 for number in numbers
        ):
            return splits
    except (KeyError, TypeError, ValueError):
        pass
    raise CheckpointMismatchError(
        "the state is damaged: its list of bad splits contradicts itself; load an earlier state"
    )


def _listed_by_state(plan: _core.Plan, splits: Mapping[int, Sequence[int]]) -> list[Quarantined]:
    found = []
    for split, bad in sorted(splits.items()):
        path, parts = plan.splits([split])[0][1], plan.parts(split)
        found += [Quarantined(path, *parts[number], _BY_STATE) for number in bad]
    return found


# ------------------------------------------------------------------------------------------------
# Verification. A verdict is a number of output rows; or for a bad split a list of its parts, each with what is read,
# stored rows, output rows, and the error.


class _Verifying(Shared):
    """Verifies splits in this process."""

    def __init__(self, plan: _core.Plan, threads: int, progress: ProgressLine) -> None:
        super().__init__(progress)
        self._verifier = plan.verifier()
        self._threads = threads

    def count(self, ids: Sequence[int]) -> list[Any]:
        """The verdicts on these splits."""
        found = self._verifier.verify(ids, self._threads, self.reporter())
        verdicts = [[list(part) for part in parts] or rows for rows, parts in found]
        self.done(len(found), sum(rows for rows, _ in found))
        return verdicts

    def accept(self, result: Any, length: int) -> bool:
        """Take what another rank verified."""
        if not _are_verdicts(result, length):
            return False
        self.done(length, sum(_rows_of(verdict) for verdict in result))
        return True


def _verdicts(
    plan: _core.Plan,
    topology: Topology,
    process_group: Any | None,
    show_progress: bool | str,
    threads: int,
) -> list[Any]:
    """The verdict on every split: kept on disk by an earlier run, or found together with other ranks."""
    fingerprint, splits = plan.fingerprint, plan.num_splits
    name = f"{fingerprint}-verified"
    store = group_store(topology, process_group)
    portion = splits if store is None else portion_of(splits, topology)
    board = (
        None
        if store is None or not splits
        else Board(store, f"verified/{fingerprint}", -(-splits // portion))
    )
    known = kept(name, fingerprint, lambda found: _are_verdicts(found, splits))
    if known is None and board is not None:
        known = _published(board, splits)
    if known is None:
        line = ProgressLine(splits, topology, show=show_progress, what="verifying")
        with line as progress:
            verifying = _Verifying(plan, threads, progress)
            if board is None:
                known = verifying.count(range(splits))
            else:
                known = together(verifying, board, splits, portion, threads)
        keep(name, fingerprint, known)
    return known if board is None else _agreed(board, known)


def _published(board: Board, splits: int) -> list[Any] | None:
    """The verdicts that a rank had all of first, where there is one."""
    try:
        if board.get("digest of all") is None:
            return None
        found = board.get("all")
    except StoreLostError as error:
        _LOG.warning("the process group's store does not answer (%s)", error)
        return None
    return found if _are_verdicts(found, splits) else None


def _agreed(board: Board, verdicts: list[Any]) -> list[Any]:
    """The verdicts of the rank that had all of them first: a decoder that fails by chance must not part the ranks."""
    mine = digest(verdicts)
    try:
        if board.announce(0, "all"):
            board.put("all", verdicts)
            board.put("digest of all", mine)
            return verdicts
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            theirs = board.get("digest of all")
            if theirs == mine:
                return verdicts
            if theirs is not None:
                found = _published(board, len(verdicts))
                if found is not None:
                    return found
            time.sleep(_LOOK)
        raise StorageError(
            "another rank verified the splits first and did not publish its results within "
            f"{_PATIENCE:.0f} seconds; it may have failed: see its own error"
        )
    except StoreLostError as error:
        _LOG.warning("the process group's store does not answer (%s)", error)
        return verdicts


def _findings(plan: _core.Plan, verdicts: Sequence[Any]) -> Findings:
    bad: dict[int, list[int]] = {}
    rows: list[int] = []
    listed: list[Quarantined] = []
    for split, verdict in enumerate(verdicts):
        if isinstance(verdict, int):
            rows.append(verdict)
            continue
        path = plan.splits([split])[0][1]
        bad[split] = [number for number, part in enumerate(verdict) if part[3] is not None]
        rows += [part[2] for part in verdict if part[3] is None]
        listed += [
            Quarantined(path, unit, stored, error)
            for unit, stored, _, error in verdict
            if error is not None
        ]
    return Findings(bad, listed, rows)


def _rows_of(verdict: Any) -> int:
    if isinstance(verdict, int):
        return verdict
    return sum(part[2] for part in verdict if part[3] is None)


def _are_verdicts(found: Any, length: int) -> bool:
    """Whether it is a verdict each on so many splits."""
    if not isinstance(found, list) or len(found) != length:
        return False
    return all(_is_count(verdict) or _is_bad(verdict) for verdict in found)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_bad(verdict: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        good = [
            isinstance(unit, str)
            and (stored is None or _is_count(stored))
            and (_is_count(rows) if error is None else rows is None and isinstance(error, str))
            for unit, stored, rows, error in verdict
        ]
        return all(good) and any(part[3] is not None for part in verdict)
    return False
