"""States of a run: plain data that say which rows the training loop has received.

A state names the run's query and files by digest, its order by seed and epoch, and how far each shard came by
a cursor of a few numbers. It holds no rows, no SQL and no credentials, and can be written as JSON.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensorquery._core import FINGERPRINT_VERSION
from tensorquery._util.digests import digest
from tensorquery.errors import CheckpointMismatchError
from tensorquery.sharding.altered import Altered
from tensorquery.sharding.left import Left, digest_of_run
from tensorquery.sharding.packed_cursors import unpack_cursor

__all__ = ["FORMAT", "VERSION", "check_state", "merge_state_dicts", "run_of"]

FORMAT = "tensorquery"
VERSION = 2

_KEYS = {
    "format": str,
    "version": int,
    "fingerprint": str,
    "parts": dict,
    "seed": int,
    "epoch": int,
    "layout": dict,
    "step": int,
    "cursors": dict,
    "turns": dict,
    "check": int,
}
_RUN_KEYS = {"layout": dict, "step": int, "cursors": dict}
# The core bounds counts: its products must not overflow.
_LAYOUT_KEYS: dict[str, tuple[type, ...]] = {
    "world_size": (int,),
    "num_workers": (int,),
    "batch_size": (int,),
    "remainder": (str,),
    "dynamic": (bool,),
    "counted": (bool,),
    "partitions": (int, type(None)),
    "strategy": (str, type(None)),
    "shuffle": (bool,),
    "permuted": (int, type(None)),
    "mixing": (dict,),
}
_LEAST = {"world_size": 1, "batch_size": 1, "partitions": 1, "permuted": 1}
_MOST_SHARDS = 2**31
_MOST = 2**63 - 1
_FILE_GROUPS = 1024
# Those of the first states had no version.
_FINGERPRINT = re.compile("(?:([0-9]{1,9})-)?[0-9a-f]{64}")


def file_digests(files: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Digests of files for a state: a digest of the name and one of the identity, by file.

    Beyond 1024 files a digest stands for several neighbours, so that a state stays small.

    Args:
        files: Path and identity (size, entity tag, time of the last write) of each.
    """
    step = max(1, -(-len(files) // _FILE_GROUPS))
    return [
        [
            digest([path for path, _ in files[start : start + step]])[:8],
            digest([identity for _, identity in files[start : start + step]])[:8],
        ]
        for start in range(0, len(files), step)
    ]


def check_state(state: Any) -> dict[str, Any]:
    """Return `state` where it is one of ours and whole.

    Raises:
        CheckpointMismatchError: It is not; names the key that is missing or of the wrong type.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise CheckpointMismatchError(
            "this is not a state of tensorquery; give load_state_dict what state_dict() returned, got "
            f"{_sketch(state)}"
        )
    if state.get("version") != VERSION or isinstance(state.get("version"), bool):
        raise CheckpointMismatchError(
            f"the state has version {state.get('version')!r}, and this tensorquery reads version {VERSION}; "
            "resume with the version that wrote it, or go on with set_epoch(epoch + 1)"
        )
    for key, kind in _KEYS.items():
        if not _is_a(state.get(key), (kind,)):
            raise CheckpointMismatchError(
                f"the state is damaged: its {key!r} is {_sketch(state.get(key))}, expected {kind.__name__}"
            )
    _check_fingerprint(state["fingerprint"])
    for key, most in (("seed", _MOST), ("epoch", _MOST - 1), ("step", _MOST - 1)):
        if not 0 <= state[key] <= most:
            raise CheckpointMismatchError(
                f"the state is damaged: its {key!r} is {_sketch(state[key])}"
            )
    _check_run(state)
    for rank, turn in state["turns"].items():
        if not isinstance(rank, str) or not _is_a(turn, (int,)) or not 0 <= turn < _MOST_SHARDS:
            raise CheckpointMismatchError(
                f"the state is damaged: its 'turns' are {_sketch(state['turns'])}"
            )
    ended = state.get("ended")
    if ended is not None:
        if not _is_a(ended, (dict,)) or not _is_a(ended.get("epoch"), (int,)):
            raise CheckpointMismatchError(f"the state is damaged: its 'ended' is {_sketch(ended)}")
        _check_run(ended)
        _checked_left(ended)
    checked = {**state, "left": _checked_left(state)}
    Altered.read(state.get("altered"), state["epoch"])
    files = state["parts"].get("files")
    if not isinstance(files, list) or not all(
        isinstance(pair, list) and [type(half) for half in pair] == [str, str] for pair in files
    ):
        raise CheckpointMismatchError(f"the state is damaged: its files are {_sketch(files)}")
    if state["check"] != check_sum(state):
        raise CheckpointMismatchError(
            "the state is damaged: its numbers do not fit together; load an earlier state"
        )
    return checked


def _checked_left(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was left of the epoch when a run began, as a state has it."""
    left = Left.read(run.get("left", ...))
    return None if left is None else left.to_dict()


def _check_fingerprint(fingerprint: str) -> None:
    """Check that a state's fingerprint has the form that this program writes, so that it can be compared."""
    found = _FINGERPRINT.fullmatch(fingerprint)
    if found is None:
        raise CheckpointMismatchError(
            f"the state is damaged: its 'fingerprint' is {_sketch(fingerprint)}, expected a version, a hyphen and 64 "
            "hexadecimal digits"
        )
    version = int(found[1] or 0)
    if version != FINGERPRINT_VERSION:
        raise CheckpointMismatchError(
            f"the fingerprint of the state has version {version}, and this tensorquery writes version "
            f"{FINGERPRINT_VERSION}, so that nobody can tell whether the state belongs to this query; resume with the "
            "version that wrote it, or start a new run without load_state_dict"
        )


def _check_run(run: Any) -> None:
    """Check the layout, step and cursors of a run: whole, and of the right types."""

    def damaged(what: str, value: Any) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"the state is damaged: {what} is {_sketch(value)}; load an earlier state"
        )

    for key, kind in _RUN_KEYS.items():
        if not _is_a(run.get(key), (kind,)):
            raise damaged(f"{key!r} of a run", run.get(key))
    check_layout(run["layout"], damaged)
    step = run["step"]
    if not 0 <= step < _MOST:
        raise damaged("'step' of a run", step)
    for rank, workers in run["cursors"].items():
        if not isinstance(rank, str) or not isinstance(workers, list):
            raise damaged("'cursors' of a run", run["cursors"])
        for cursor in workers:
            try:
                unpack_cursor(cursor)
            except ValueError as error:
                raise damaged(f"a cursor of rank {rank}", cursor) from error


def check_layout(
    layout: Mapping[str, Any], damaged: Callable[[str, Any], CheckpointMismatchError]
) -> None:
    """Check that a layout is whole, and its values of the right types; `damaged` makes the error."""
    for key, kinds in _LAYOUT_KEYS.items():
        value = layout.get(key, layout)
        if not _is_a(value, kinds):
            raise damaged(f"{key!r} of a layout", None if value is layout else value)
        if _is_a(value, (int,)) and not _LEAST.get(key, 0) <= value < _MOST:
            raise damaged(f"{key!r} of a layout", value)
    if layout.get("refills", True) is not True:
        raise damaged("'refills' of a layout", layout["refills"])
    if layout["world_size"] * max(1, layout["num_workers"]) >= _MOST_SHARDS:
        raise damaged("the number of shards of a layout", layout)


def _is_a(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether it is of one of the kinds; True and False are no numbers here."""
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


def check_sum(state: Mapping[str, Any], base: int | None = None) -> int:
    """A checksum of a run's progress. It protects against damage, not against forgery.

    Args:
        state: The state.
        base: `check_sum_base` of it, where it is known: that part stays the same while an epoch runs.
    """
    if base is None:
        base = check_sum_base(state["layout"], state["left"], state.get("altered"))
    numbers = [state[key] for key in ("epoch", "step", "turns", "cursors")]
    numbers.append(state.get("ended"))
    return zlib.crc32(json.dumps(numbers, sort_keys=True, default=repr).encode(), base)


def check_sum_base(layout: Any, left: Any, altered: Any = None) -> int:
    """The checksum of the layout, of what was left when the run began, and of alterations before."""
    parts = [layout, left] if altered is None else [layout, left, altered]
    return zlib.crc32(json.dumps(parts, sort_keys=True, default=repr).encode())


def _sketch(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"


def check_same(state: Mapping[str, Any], constant: Mapping[str, Any], files: Sequence[str]) -> None:
    """Check that a state belongs to this query, these files, this seed and these options.

    Args:
        state: The state.
        constant: What this run's own states begin with.
        files: The paths of this run's files, for the error; empty where they are not at hand.

    Raises:
        CheckpointMismatchError: Names everything that differs.
    """
    found = []
    theirs, ours = state["parts"], constant["parts"]
    if state["seed"] != constant["seed"]:
        found.append(f"the seed ({state['seed']} then, {constant['seed']} now)")
    for part, words in _PARTS.items():
        if theirs.get(part) != ours.get(part):
            found.append(words)
    found.extend(changed_functions(theirs.get("functions"), ours.get("functions")))
    found.extend(changed_files(theirs.get("files"), ours["files"], files))
    if not found and state["fingerprint"] != constant["fingerprint"]:
        found.append("the query's plan (another version of tensorquery, or other tables in memory)")
    if found:
        raise CheckpointMismatchError(
            f"the state belongs to another run; what differs: {', '.join(found)}. Resume with what the "
            "run was started with, or start a new run without load_state_dict"
        )


_PARTS = {
    "query": "the query",
    "columns": "columns",
    "filters": "filters",
    "splits": "split_bytes or split_rows",
    "strategy": "split_strategy",
    "tensors": "tensor options (output_format, nulls, stack, pad, categories, decimal, keyed)",
    "exclude": "exclude",
    "sample": "sample_weight, sample_replacement or num_samples",
    "windows": "windows (tq.Windows)",
    "mixture": "the weights or stop= of the mixture",
    "snapshot": "the snapshot",
    "moment": "the moment that now() or current_date stands for",
    "quarantine": 'the bad files, row groups or stripes that are left out (on_error="skip")',
}


def changed_functions(theirs: Any, ours: Any) -> list[str]:
    """The differences between the Python functions of two runs, digests by name, in words."""
    then = theirs if isinstance(theirs, Mapping) else {}
    now = ours if isinstance(ours, Mapping) else {}
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    return [f"the Python function{'s' if len(names) > 1 else ''} {', '.join(names)}"] * bool(names)


def changed_files(theirs: Any, ours: list[list[str]], files: Sequence[str]) -> list[str]:
    """The differences between two lists of `file_digests`, in words; `files` are the paths of ours."""
    if theirs == ours:
        return []
    if [name for name, _ in theirs] != [name for name, _ in ours]:
        return [f"the list of files ({len(theirs)} then, {len(ours)} now)"]
    step = max(1, -(-len(files) // _FILE_GROUPS))
    if not files:
        return ["a changed file"]
    changed = [
        files[at * step] if step == 1 else f"one of {step} files from {files[at * step]} on"
        for at, (then, now) in enumerate(zip(theirs, ours, strict=True))
        if then != now
    ]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return [f"a changed file ({', '.join(changed[:3])}{more})"]


def run_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The run of a state, as the core reads it: layout, step and cursors by rank."""
    cursors = {
        rank: [unpack_cursor(cursor) for cursor in workers]
        for rank, workers in state["cursors"].items()
    }
    return {"layout": state["layout"], "step": state["step"], "cursors": cursors}


def _in_one_epoch(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The states, where ranks that are through with an epoch that others are in say so of that epoch."""
    epoch = _common_epoch(states)
    found = []
    for state in states:
        ended = state.get("ended")
        if state["epoch"] != epoch and ended is not None and ended["epoch"] == epoch:
            joined = {**state, **ended, "ended": None}
            state = check_state({**joined, "check": check_sum(joined)})
        found.append(state)
    return found


def _common_epoch(states: list[dict[str, Any]]) -> int:
    """The epoch that each rank is in, or has just ended; the first one where there is none."""
    of_ranks = [{state["epoch"], (state.get("ended") or state)["epoch"]} for state in states]
    epochs = sorted(state["epoch"] for state in states)
    common = (epoch for epoch in epochs if all(epoch in rank for rank in of_ranks))
    return int(next(common, epochs[0]))


def _without_waiting(states: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The states of ranks that have begun, and how many have not since they loaded a state for another topology.

    Such a rank says what it has loaded, whose rest the others share.
    """
    shared = {state["left"]["after"] for state in states if state["cursors"] and state["left"]}
    begun = [
        state
        for state in states
        if digest_of_run(Left.read(state["left"]), run_of(state)) not in shared
    ]
    return begun, len(states) - len(begun)


def _of_ranks(states: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, int]]:
    """Cursors and turns by rank.

    A rank that has begun knows its own better than one that has not since it loaded a state of all of them.
    """
    cursors: dict[str, Any] = {}
    turns: dict[str, int] = {}
    own = {rank for state in states if len(state["cursors"]) == 1 for rank in state["cursors"]}
    for state in states:
        for rank, workers in state["cursors"].items():
            if len(state["cursors"]) > 1 and rank in own:
                continue
            if cursors.setdefault(rank, workers) != workers:
                raise CheckpointMismatchError(f"rank {rank} is there twice, with different cursors")
            if rank in state["turns"]:
                turns[rank] = state["turns"][rank]
    return cursors, turns


def _compared(state: Mapping[str, Any], key: str) -> Any:
    """What is equal in the states of all ranks. The runs before may say the same in other words."""
    value = state[key]
    return value["rows"] if key == "left" and value is not None else value


def merge_state_dicts(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states of all ranks into one, which any topology can resume from.

    With equal steps one rank's state says as much; ``remainder="uneven"``, ``assignment="dynamic"`` and
    ``on_transform_error="skip"`` need it.

    Args:
        states: What ``loader.state_dict()`` returned on every rank, in any order.

    Returns:
        A state for ``load_state_dict`` on every rank. Ranks that have not begun since they loaded a state have nothing of
        their own in it.

    Raises:
        CheckpointMismatchError: The states are of different runs, epochs or topologies, or a rank is missing
            or there twice.
    """
    checked = [check_state(state) for state in states]
    if not checked:
        raise CheckpointMismatchError("there is no state to merge; give the states of all ranks")
    checked, waiting = _without_waiting(_in_one_epoch(checked))
    first = checked[0]
    for key in ("fingerprint", "parts", "seed", "epoch", "layout", "left"):
        for state in checked:
            if _compared(state, key) != _compared(first, key):
                ranks = f"rank {'/'.join(first['cursors'])} and rank {'/'.join(state['cursors'])}"
                raise CheckpointMismatchError(
                    f"the states are not of one run: {ranks} differ in {key}; merge states that were saved "
                    "at the same time"
                )
    for state in checked:
        if state.get("altered") != first.get("altered"):
            raise CheckpointMismatchError(
                "the states are not of one run: ranks differ in what was altered; merge states that were saved at the same time"
            )
    cursors, turns = _of_ranks(checked)
    if not cursors:
        # Equal steps: each state holds for all ranks.
        for state in checked:
            if state["step"] != first["step"]:
                raise CheckpointMismatchError(
                    f"the states were saved at different steps ({first['step']} and {state['step']}), but with "
                    "equal steps one state holds for all ranks; merge states that were saved at the same step, or load "
                    "any one of them"
                )
        return first
    layout = first["layout"]
    missing = [rank for rank in range(layout["world_size"]) if str(rank) not in cursors]
    if len(missing) <= waiting:
        shards = max(1, layout["num_workers"]) + layout["dynamic"]
        for rank in missing:
            cursors[str(rank)], turns[str(rank)] = [[] for _ in range(shards)], 0
    else:
        raise CheckpointMismatchError(
            f"the states of ranks {missing} are missing; merge the states of all {layout['world_size']} ranks"
        )
    step = max(state["step"] for state in checked)
    merged = {**first, "step": step, "cursors": cursors, "turns": turns}
    return {**merged, "check": check_sum(merged)}
