"""The promises that must hold: how ranks may end under the faults that struck, and which rows were delivered."""

import re

import numpy as np

from .schedule import FILES, FULL_STAGE, KILL_ALL, STORE

_LOST_WORKER = re.compile(r"DataLoader worker .*(exited unexpectedly|killed by signal)", re.S)
_LOST_PEER = re.compile(
    r"connection (closed|reset)|closed by (remote )?peer|gloo|broken pipe|store|socket", re.I
)
_LOST_STORE = "the process group's store does not answer"
_NO_MEMORY = re.compile(r"memory|can't allocate|can't start new thread|spawn", re.I)
_SKEWED = re.compile(r"RequestTimeTooSkewed|\b403\b")
# Status 127 is the dynamic loader's, which ends a process that has no memory for a thread's variables.
DEATHS_WITHOUT_MEMORY = (
    "killed by signal 9",
    "killed by signal 6",
    "killed by signal 11",
    "status 127",
)


def ends(outcome, in_force, words, url):
    """Violations in how the ranks of an attempt ended.

    Args:
        outcome: The outcome.
        in_force: Kinds of faults that struck in it, or before and were not repaired.
        words: Of which a clear error about a fault that stays has one.
        url: The name of the table in a store, which each error about the store has; None where it is not in one.

    Returns:
        A text for each.
    """
    found = []
    for number, (end, told) in enumerate(zip(outcome.ends, outcome.told, strict=True)):
        others = [other for at, other in enumerate(outcome.ends) if at != number]
        if not _is_explained(end, told.outcome, others, set(in_force), words, url):
            found.append(f"rank {number} {_spelled(end, told.outcome)}, under {sorted(in_force)}")
    return found


def _is_explained(end, outcome, others, in_force, words, url):
    no_memory = "out of memory" in in_force
    match end:
        case "finished":
            return True
        case "hangs":
            return False
        case "ended":
            # By the harness, as a launcher does when another rank is gone.
            return any(other not in ("finished", "ended") for other in others)
        case "error":
            pass
        case _:
            killed = {KILL_ALL, "a rank is killed"} & in_force and end == "killed by signal 9"
            return bool(killed) or (no_memory and end in DEATHS_WITHOUT_MEMORY)
    message, is_clear = outcome["message"], outcome["clear"]
    lost = any(other not in ("finished", "ended") for other in others)
    if is_clear and _LOST_STORE in message:
        return lost
    if is_clear and in_force & {*FILES, *STORE, FULL_STAGE}:
        return any(word in message for word in words) and (url is None or url in message)
    if is_clear and "the clock jumps" in in_force and url is not None:
        return bool(_SKEWED.search(message))
    if _LOST_WORKER.search(message):
        return no_memory or "a worker is killed" in in_force or KILL_ALL in in_force
    if no_memory and (outcome["name"] == "MemoryError" or _NO_MEMORY.search(message)):
        return True
    return lost and not is_clear and bool(_LOST_PEER.search(message))


def _spelled(end, outcome):
    if outcome is None or end != "error":
        return end if end != "hangs" else "hangs: it was ended after the time limit"
    return f"fails with {outcome['name']}: {outcome['message'][:600]}"


def rows(kept, wanted, remainder, complete, topology):
    """Violations in the rows that count as delivered.

    Args:
        kept: Their ids, of all attempts.
        wanted: Those of the query, ascending.
        remainder: The mode.
        complete: Whether the epoch is over.
        topology: That of the last attempt.

    Returns:
        A text for each.
    """
    found = []
    kept = np.sort(kept)
    foreign = kept[~np.isin(kept, wanted)]
    if len(foreign):
        found.append(f"{len(foreign)} rows are not of the query, the first is {foreign[0]}")
    distinct = np.unique(kept)
    twice = len(kept) - len(distinct)
    spare = topology.world_size * topology.batch_size
    if twice > (spare if remainder == "pad" and complete else 0):
        again = distinct[np.unique(kept, return_counts=True)[1] > 1]
        found.append(f"{twice} rows too many, {len(again)} ids more than once, the first is {again[0]}")  # fmt: skip
    missing = np.setdiff1d(wanted, distinct)
    if complete and len(missing) > (spare - 1 if remainder == "drop" else 0):
        found.append(f"{len(missing)} rows are missing, the first is {missing[0]}")
    return found
