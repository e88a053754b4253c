"""The promises that must hold: how ranks may end under the faults that struck, and which rows were delivered."""

import re
from signal import SIGTERM

import numpy as np

from .schedule import (
    FILES,
    FLIPPED_STAGE,
    FULL_STAGE,
    KILL_ALL,
    READ_ONLY_STAGE,
    SKEW,
    STORE,
    STORMS,
    VANISHED_STAGE,
)

_TOLD = {*FILES, *STORE, FULL_STAGE, FLIPPED_STAGE, READ_ONLY_STAGE, VANISHED_STAGE}
"""Kinds that may end a job with a clear error, which has one of the words of the scene."""

_LOST_WORKER = re.compile(r"DataLoader worker .*(exited unexpectedly|killed by signal)", re.S)
_LOST_PEER = re.compile(
    r"connection (closed|reset)|closed by (remote )?peer|gloo|broken pipe|store|socket", re.I
)
_LOST_STORE = "the process group's store does not answer"
_NO_MEMORY = re.compile(r"memory|can't allocate|can't start new thread|spawn", re.I)
_ABORTS = re.compile(r".*(panicked at|Fatal Python error|fatal runtime error|core dumped).*")
_SKEWED = re.compile(r"RequestTimeTooSkewed|\b403\b")
LARGEST_STATE = 64 << 10
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
    storms = in_force & set(STORMS)
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
            # A signal that comes while a rank says how it ends may keep it from saying so.
            killed = killed or (
                storms and end in (f"killed by signal {SIGTERM:d}", "status 1", "status 2")
            )
            return bool(killed) or (no_memory and end in DEATHS_WITHOUT_MEMORY)
    message, is_clear = outcome["message"], outcome["clear"]
    lost = any(other not in ("finished", "ended") for other in others)
    if is_clear and _LOST_STORE in message:
        return lost
    if is_clear and in_force & _TOLD:
        return any(word in message for word in words) and (url is None or url in message)
    if is_clear and in_force & {"the clock jumps", SKEW} and url is not None:
        return bool(_SKEWED.search(message))
    if storms and outcome["name"] in ("KeyboardInterrupt", "SystemExit"):
        return True
    if _LOST_WORKER.search(message):
        return no_memory or bool(storms) or bool({"a worker is killed", KILL_ALL} & in_force)
    if no_memory and (outcome["name"] == "MemoryError" or _NO_MEMORY.search(message)):
        return True
    return lost and not is_clear and bool(_LOST_PEER.search(message))


def _spelled(end, outcome):
    if outcome is None or end != "error":
        return end if end != "hangs" else "hangs: it was ended after the time limit"
    return f"fails with {outcome['name']}: {outcome['message'][:600]}"


def last_words(texts, in_force):
    """Violations in what ranks and their workers wrote before they ended: no exit aborts, and nothing panics.

    Args:
        texts: The standard error of each rank.
        in_force: As for `ends`.

    Returns:
        A text for each.
    """
    if "out of memory" in in_force:
        return []
    found = ((number, _ABORTS.search(text)) for number, text in enumerate(texts))
    return [f"rank {number} or a worker of it wrote {words[0]!r}" for number, words in found if words]  # fmt: skip


def size(state):
    """Violations in the length of a state, as JSON: it says what is left, and not what was."""
    if len(state) <= LARGEST_STATE:
        return []
    return [f"a state of {len(state)} bytes; at most {LARGEST_STATE} are allowed"]


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
