"""Receipts: plain data that say what a rank has delivered, checkpoint by checkpoint, as a chain of digests.

A receipt names rows as a state does: by the plan, the seed, the layout, what was left when the run began, and steps. With
the query, the rows of any step follow from these. So a record takes about 200 bytes, however many rows were delivered.

Each record has a SHA-256 digest over its content and the digest of the record before. Who changes, moves or drops a record
must compute all digests behind it anew. That is no signature: keep the last digest elsewhere where that matters.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorquery._util.options import MOST_EPOCHS, MOST_SHARDS
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.sharding.checkpoint import check_layout
from tensorquery.sharding.left import Left

__all__ = ["RECEIPT_FORMAT", "RECEIPT_VERSION", "Chain", "Span", "check_receipt", "run_digest"]

RECEIPT_FORMAT = "tensorquery-receipt"
RECEIPT_VERSION = 1

MOST_NAME = 200
"""Letters of the name of a checkpoint."""
MOST_SPAN_EPOCHS = 1 << 20
"""Epochs of one span: who reads a receipt goes through them one by one."""

_MOST_STEPS = 2**62
_CHAIN = re.compile("[0-9a-f]{64}")
_KEYS = {"format", "version", "rank", "after", "plans", "runs", "records"}
_RUN_KEYS = {"plan", "layout", "left"}
_RECORD_KEYS = {"number", "name", "spans", "chain"}
_SPAN_KEYS = {"run", "epoch", "epochs", "steps"}
_PLAN_KEYS: dict[str, tuple[type, ...]] = {
    "fingerprint": (str,),
    "parts": (dict,),
    "seed": (int,),
    "on_error": (str,),
    "splits": (list,),
    "exclude": (list,),
    "shuffle": (bool, str),
    "buffer": (int, type(None)),
    "stage": (str,),
}


@dataclass(frozen=True)
class Span:
    """Steps of one run that a rank has received, in one epoch or in several that follow one another.

    Attributes:
        run: The number of the run in the receipt.
        epoch: The first epoch.
        epochs: How many epochs; the steps are those of each.
        first: The first step.
        last: One past the last step.
    """

    run: int
    epoch: int
    epochs: int
    first: int
    last: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data for a record."""
        return {
            "run": self.run,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "steps": [self.first, self.last],
        }

    def joined(self, other: Span) -> Span | None:
        """This span and a later one as one; None where they are two."""
        if self.run != other.run:
            return None
        if self.epochs == other.epochs == 1 and self.epoch == other.epoch:
            follows = self.last == other.first
            return Span(self.run, self.epoch, 1, self.first, other.last) if follows else None
        alike = (self.first, self.last) == (other.first, other.last)
        epochs = self.epochs + other.epochs
        if not alike or self.epoch + self.epochs != other.epoch or epochs > MOST_SPAN_EPOCHS:
            return None
        return Span(self.run, self.epoch, epochs, self.first, self.last)


@dataclass
class Chain:
    """The receipt of one rank while it grows.

    Attributes:
        rank: The rank.
        after: The last digests of the receipts that it goes on after.
        plans: What rows there are and in which order, by number.
        runs: Plan, layout and what was left when it began, by number.
        records: One for each checkpoint.
    """

    rank: int
    after: list[str]
    plans: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str | None, spans: Sequence[tuple[dict[str, Any], Span]]) -> None:
        """Add the record of a checkpoint.

        Args:
            name: The checkpoint's name.
            spans: What was delivered since the record before, each with its run; a run has its plan in it.
        """
        found: list[Span] = []
        for run, span in spans:
            number = self._number_of(run)
            span = Span(number, span.epoch, span.epochs, span.first, span.last)
            together = found[-1].joined(span) if found else None
            found[-1:] = [together] if together else [*found[-1:], span]
        record = {
            "number": len(self.records),
            "name": name,
            "spans": [span.to_dict() for span in found],
        }
        before = self.records[-1]["chain"] if self.records else _genesis(self.rank, self.after)
        digests = [_run_digest(run, self.plans) for run in self.runs]
        self.records.append({**record, "chain": _link(before, record, digests)})

    def _number_of(self, run: dict[str, Any]) -> int:
        plan = run["plan"]
        if plan not in self.plans:
            self.plans.append(plan)
        own = {**run, "plan": self.plans.index(plan)}
        if own not in self.runs:
            self.runs.append(own)
        return self.runs.index(own)

    def to_dict(self) -> dict[str, Any]:
        """The receipt as plain data, for the caller to keep or change."""
        return copy.deepcopy(
            {
                "format": RECEIPT_FORMAT,
                "version": RECEIPT_VERSION,
                "rank": self.rank,
                "after": self.after,
                "plans": self.plans,
                "runs": self.runs,
                "records": self.records,
            }
        )


def check_receipt(receipt: Any) -> dict[str, Any]:
    """Return `receipt` where it is one of ours, whole, and as it was written.

    Raises:
        CheckpointMismatchError: It is not; names the record or the key.
    """
    if not isinstance(receipt, Mapping) or receipt.get("format") != RECEIPT_FORMAT:
        raise CheckpointMismatchError(
            f"this is no receipt: {_sketch(receipt)}; give what dataset.receipt() returned on each rank"
        )
    if type(receipt.get("version")) is not int or receipt["version"] != RECEIPT_VERSION:
        raise CheckpointMismatchError(
            f"the receipt has version {_sketch(receipt.get('version'))}, and this tensorquery reads version "
            f"{RECEIPT_VERSION}; read it with the version that wrote it"
        )
    if set(receipt) != _KEYS:
        keys = ", ".join(sorted(map(str, set(receipt) ^ _KEYS)))
        raise _damaged(f"the keys {keys} are missing or unknown")
    rank, after = receipt["rank"], receipt["after"]
    if not _is_number(rank, MOST_SHARDS):
        raise _damaged(f"its rank is {_sketch(rank)}")
    if not isinstance(after, list) or not all(_is_chain(head) for head in after):
        raise _damaged(f"its 'after' is {_sketch(after)}")
    for key in ("plans", "runs", "records"):
        if not isinstance(receipt[key], list):
            raise _damaged(f"its {key!r} are {_sketch(receipt[key])}")
    if not receipt["records"]:
        raise _damaged("it has no record, and each has one at least")
    for plan in receipt["plans"]:
        _check_plan(plan)
    for run in receipt["runs"]:
        _check_run(run, len(receipt["plans"]), rank)
    used = _check_records(receipt)
    for key, numbers in (
        ("runs", used),
        ("plans", {receipt["runs"][number]["plan"] for number in used}),
    ):
        if numbers != set(range(len(receipt[key]))):
            raise _damaged(f"it has {key} that belong to no record")
    return dict(receipt)


def run_digest(receipt: Mapping[str, Any], run: int) -> str:
    """A digest of one of a receipt's runs, equal on all of its ranks."""
    return _run_digest(receipt["runs"][run], receipt["plans"])


def spans_of(record: Mapping[str, Any]) -> list[Span]:
    """The spans of a record of a checked receipt."""
    return [
        Span(span["run"], span["epoch"], span["epochs"], *span["steps"]) for span in record["spans"]
    ]


def heads_of(receipts: Iterable[Any] | None) -> list[str]:
    """The last digests of receipts that another goes on after, in ascending order.

    Raises:
        ConfigError: It is no list of receipts.
        CheckpointMismatchError: One of them is damaged.
    """
    if receipts is None:
        return []
    if isinstance(receipts, str | bytes | Mapping) or not isinstance(receipts, Iterable):
        raise ConfigError(
            f"after={_sketch(receipts)} must be a list of receipts: those of all ranks of the run before"
        )
    return sorted({check_receipt(receipt)["records"][-1]["chain"] for receipt in receipts})


def checked_name(name: Any) -> str | None:
    """The name of a checkpoint.

    Raises:
        ConfigError: It is no text, or a long one.
    """
    if name is None or (isinstance(name, str) and 0 < len(name) <= MOST_NAME):
        return name
    raise ConfigError(
        f"name={_sketch(name)} must be a text of 1 to {MOST_NAME} letters, for example the checkpoint's file; or None"
    )


def _check_plan(plan: Any) -> None:
    if not isinstance(plan, dict) or not {*_PLAN_KEYS} - {"on_error"} <= {*plan} <= {*_PLAN_KEYS}:
        raise _damaged(f"a plan of it is {_sketch(plan)}")
    for key, value in plan.items():
        kinds = _PLAN_KEYS[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _damaged(f"{key!r} of a plan is {_sketch(value)}")
    files = plan["parts"].get("files")
    good = {
        "files": isinstance(files, list)
        and all(
            isinstance(pair, list) and [type(half) for half in pair] == [str, str] for pair in files
        ),
        "parts": _are_pins(plan["parts"]),
        "splits": [type(each) for each in plan["splits"]]
        in ([int, int, bool], [int, type(None), bool]),
        "seed": _is_number(plan["seed"], 2**63),
        "exclude": all(_are_numbers(each, 3) for each in plan["exclude"]),
    }
    for key, is_good in good.items():
        if not is_good:
            raise _damaged(f"{key!r} of a plan is {_sketch({**plan['parts'], **plan}.get(key))}")


def _are_pins(parts: Mapping[str, Any]) -> bool:
    """Whether the parts that a plan is made again from have the right types."""
    sample, pins = parts.get("sample", ["", True, None]), parts.get("snapshot", {})
    return (
        isinstance(sample, list)
        and len(sample) == 3
        and isinstance(sample[0], str)
        and isinstance(sample[1], bool)
        and (sample[2] is None or _is_number(sample[2], _MOST_STEPS))
        and isinstance(pins, dict)
        and all(
            isinstance(pin, list) and len(pin) == 2 and all(type(each) is int for each in pin)
            for pin in pins.values()
        )
        and isinstance(parts.get("moment", ""), str)
        and isinstance(parts.get("strategy", ""), str)
    )


def _check_run(run: Any, plans: int, rank: int) -> None:
    if not isinstance(run, dict) or set(run) != _RUN_KEYS or not _is_number(run["plan"], plans):
        raise _damaged(f"a run of it is {_sketch(run)}")
    layout = run["layout"]
    if not isinstance(layout, dict):
        raise _damaged(f"the layout of a run is {_sketch(layout)}")
    check_layout(layout, lambda what, value: _damaged(f"{what} is {_sketch(value)}"))
    if layout["world_size"] * max(1, layout["num_workers"]) > MOST_SHARDS:
        raise _damaged(f"the layout of a run is {_sketch(layout)}, with more shards than any")
    if rank >= layout["world_size"]:
        raise _damaged(f"it is of rank {rank} of {layout['world_size']}")
    try:
        Left.read(run["left"])
    except CheckpointMismatchError as error:
        raise _damaged(f"the 'left' of a run cannot be read ({error})") from error


def _check_records(receipt: Mapping[str, Any]) -> set[int]:
    """Check the chain of a receipt; returns the numbers of the runs that its records name."""
    digests = [_run_digest(run, receipt["plans"]) for run in receipt["runs"]]
    records, used = receipt["records"], set()
    numbers = []
    for record in records:
        if not isinstance(record, dict) or set(record) != _RECORD_KEYS:
            raise _damaged(f"a record of it is {_sketch(record)}")
        if not _is_number(record["number"], _MOST_STEPS) or not _is_chain(record["chain"]):
            raise _damaged(f"the number or digest of a record is {_sketch(record)}")
        numbers.append(record["number"])
    before = _genesis(receipt["rank"], receipt["after"])
    for expected, record in enumerate(records):
        number = record["number"]
        if number != expected:
            raise _damaged(_out_of_order(expected, numbers))
        _check_record(record, receipt["runs"])
        content = {key: value for key, value in record.items() if key != "chain"}
        if _link(before, content, digests) != record["chain"]:
            raise _damaged(
                f"record {number} does not belong here: its digest does not follow from its content, its run and the record "
                "before it, so that one of them was changed or replaced"
            )
        used |= {span["run"] for span in record["spans"]}
        before = record["chain"]
    return used


def _out_of_order(expected: int, numbers: Sequence[int]) -> str:
    found = numbers[expected]
    if numbers.count(found) > 1:
        return f"record {found} is there twice"
    if expected in numbers[expected:]:
        return f"its records are in another order: record {found} stands where record {expected} belongs"
    return f"record {expected} is missing: record {found} stands in its place"


def _check_record(record: Mapping[str, Any], runs: Sequence[Any]) -> None:
    number, name, spans = record["number"], record["name"], record["spans"]
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= MOST_NAME):
        raise _damaged(f"the name of record {number} is {_sketch(name)}")
    if not isinstance(spans, list):
        raise _damaged(f"the spans of record {number} are {_sketch(spans)}")
    for span in spans:
        good = (
            isinstance(span, dict)
            and set(span) == _SPAN_KEYS
            and _is_number(span["run"], len(runs))
            and _is_number(span["epoch"], MOST_EPOCHS + 1)
            and _is_number(span["epochs"], MOST_SPAN_EPOCHS + 1)
            and span["epochs"] > 0
            and _are_numbers(span["steps"], 2)
            and span["steps"][0] < span["steps"][1]
        )
        if not good or (span["epochs"] > 1 and runs[span["run"]]["left"] is not None):
            raise _damaged(f"a span of record {number} is {_sketch(span)}")


def _is_number(value: Any, bound: int) -> bool:
    return type(value) is int and 0 <= value < bound


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count
        and all(_is_number(value, _MOST_STEPS) for value in values)
    )


def _is_chain(value: Any) -> bool:
    return isinstance(value, str) and _CHAIN.fullmatch(value) is not None


def _genesis(rank: int, after: Sequence[str]) -> str:
    """The digest before the first record."""
    return _sha([RECEIPT_FORMAT, RECEIPT_VERSION, rank, list(after)])


def _run_digest(run: Mapping[str, Any], plans: Sequence[Any]) -> str:
    left = run["left"]
    # Ranks may say in other words after which run it was left.
    rows = None if left is None else left["rows"]
    return _sha([plans[run["plan"]], run["layout"], rows])


def _link(before: str, record: Mapping[str, Any], digests: Sequence[str]) -> str:
    """The digest of a record, which goes by what its runs are and not by their numbers."""
    spans = [{**span, "run": digests[span["run"]]} for span in record["spans"]]
    return _sha([before, {**record, "spans": spans}])


def _sha(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(how: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the receipt is damaged: {how}; give it as it was saved, or an earlier one"
    )


def _sketch(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"
