"""Runs the SQL examples by their headers, and knows the types of their batches."""

import itertools
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import tensorquery as tq

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "sql-examples"))
import examples  # noqa: E402

FILES = sorted((ROOT / "sql-examples").glob("*.sql"))
FLIGHTS, TPCH = ROOT / ".demo", ROOT / ".tpch"

I32, I64, F32, F64 = ("int32", ()), ("int64", ()), ("float32", ()), ("float64", ())
TEXT, LISTS32, LISTS64 = "str", "jagged float32", "jagged int64"
# The batches of each example: type and shape of one row; None is the length of a batch's longest list.
BATCHES = {
    "01_flights_delay": {
        **dict.fromkeys(("month", "day", "carrier"), I32),
        "season": ("float32", (2,)),
        "time": ("float32", (2,)),
        **dict.fromkeys(("weekend", "hours_behind", "distance", "from_newark", "from_kennedy", "temp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib", "plane_age", "seats", "plane_unknown", "regional", "label"), F32),
    },
    "02_one_summer": {"x": ("float64", (4,)), "dep_delay": F64},
    "03_files_by_path": {"carrier": TEXT, "origin": I64, "dest": TEXT, "minutes_per_mile": F64},
    "04_case_features": {"part_of_day": I64, "x": ("float64", (4,)), "outcome": I64},
    "05_great_circle": {"flown_km": F64, "great_circle_km": F64},
    "06_two_tasks": {"task": I64, "hour": I32, "distance": F64, "delay": F64},
    "07_inline_view": {"dep_delay": F64, "x": ("float64", (2,))},
    "08_late_rates": {"flight": I32, "x": ("float32", (2,)), "label": F32},
    "09_aircraft_sequences": {
        "tailnum": TEXT, "departs": I64, "delays": LISTS32, "departures": LISTS64, "label": F32,
    },
    "10_customer_histories": {
        "customer": I64, "amounts": ("float32", (None,)), "gaps": ("int64", (None,)), "target": F32,
    },
    "11_negative_sampling": {"customer": I64, "part": I64, "label": F32},
    "12_split_by_customer": {"customer": I64, "balance": F32, "segment": I64, "price": F32},
    "13_stratified_split": {"hour": I32, "distance": F64, "label": I32},
    "14_deduplicate": {
        "carrier": TEXT, "flight": I32, "origin": TEXT, "dest": TEXT, "time_hour": I64, "minute": I32, "distance": F64,
    },
    "15_point_in_time": {
        "flight": I32, "origin": TEXT, "hour": I32, "distance": F64, "decided": I64, "label": F32, "x": ("float64", (3,)),
    },
    "16_comments": {"text": TEXT, "characters": I32, "complains": F32, "priority": I64},
    "17_airport_vectors": {"vector": ("float32", (12,)), "hour": I32, "minutes": F32},
    "18_label_smoothing": {"x": ("float64", (3,)), "label": F64, "target": F32},
    "19_balanced_classes": {"x": ("float64", (3,)), "outcome": I64},
    "20_rotations": {
        "tailnum": TEXT, "rotation": I32, "flights": I32, "hours": F32,
        "distances": ("float32", (32,)), "waits": ("float32", (32,)),
    },
    "21_revenue_forecast": {"day": I64, "x": ("float32", (6,)), "target": F32},
    "22_curriculum": {"x": ("float64", (3,)), "margin": F64, "label": F32},
    "23_ranking_features": {
        "dense": ("float64", (4,)), "ids": ("int64", (4,)), "weight": F32, "label": F32,
    },
    "24_airport_hours": {
        "origin": TEXT, "hour": I64, "departures": ("float32", (48,)), "delay": ("float32", (48,)),
        "departures_target": ("float32", (12,)),
    },
}  # fmt: skip


class Runner:
    """Runs examples by their headers, each once for all tests of a process."""

    def __init__(self, session):
        self.session = session
        self.read = {path.stem: examples.read(path) for path in FILES}
        self.run = {}

    def loader(self, name, **changed):
        example = self.read[name]
        return tq.create_dataloader(
            self.session.sql(example.sql), **{**example.options, **changed}
        )[0]

    def batches(self, name, **changed):
        """The columns of a whole epoch."""
        return joined_batches(self.loader(name, **changed))

    def epoch(self, name):
        if name not in self.run:
            loader = self.loader(name)
            self.run[name] = joined_batches(batch for _, batch in checked(name, loader))
            assert len(loader) == -(-loader.dataset.num_rows // loader.dataset.batch_size)
        return self.run[name]


def rows_of(value):
    """A column of one batch as numpy has it, or as a list where rows differ in length or are text."""
    if isinstance(value, list | np.ndarray):
        return value
    if value.is_nested:
        flat, offsets = value.values().tolist(), value.offsets().tolist()
        return [flat[start:end] for start, end in itertools.pairwise(offsets)]
    return value.numpy()


def checked(name, loader):
    """The batches with their lengths, each of them as the header and `BATCHES` say."""
    for batch in loader:
        assert set(batch) == set(BATCHES[name])
        lengths = {len(value) for value in batch.values()}
        assert len(lengths) == 1
        length = lengths.pop()
        assert 0 < length <= loader.dataset.batch_size
        for column, value in batch.items():
            kind, found = BATCHES[name][column], kind_of(value)
            if kind[1:] == ((None,),):
                assert (found[0], len(found[1])) == (kind[0], 1), column
            else:
                assert found == kind, column
        yield length, batch


def joined_batches(batches):
    """Every column of an epoch, batches joined."""
    columns = defaultdict(list)
    for batch in batches:
        for name, value in batch.items():
            columns[name].append(rows_of(value))
    return {name: joined(parts) for name, parts in columns.items()}


def joined(parts):
    is_padded = not isinstance(parts[0], list) and parts[0].ndim > 1
    if isinstance(parts[0], list) or (is_padded and len({part.shape[1:] for part in parts}) > 1):
        return [row for part in parts for row in part]
    return np.concatenate(parts)


def kind_of(value):
    """The type of a column of a batch and the shape of its rows, as `BATCHES` says them."""
    if isinstance(value, list):
        return {type(row).__name__ for row in value}.pop()
    dtype = str(value.dtype).removeprefix("torch.")
    if isinstance(value, torch.Tensor) and value.is_nested:
        return f"jagged {dtype}"
    return dtype, tuple(value.shape[1:])
