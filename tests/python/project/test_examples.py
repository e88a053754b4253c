"""Every SQL example is a training set: as tensors it has the rows, shapes, types and content that its header says.

Each file is run by the loader call of its own header, alone and as two ranks. What it must contain is computed apart from
the engine, by pandas, DuckDB or plain Python.
"""

import hashlib
import itertools
import re
import sys
from collections import Counter, defaultdict
from datetime import date, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
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
        **dict.fromkeys(("weekend", "distance", "from_newark", "from_kennedy", "temp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib", "plane_age", "seats", "plane_unknown", "regional", "label"), F32),
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
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def in_the_root():
    """One example names files relative to where the job runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def tables(in_the_root):
    return examples.session(FLIGHTS, TPCH)


@pytest.fixture(scope="module")
def duck(tables):
    """A DuckDB connection with the files as views."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for folder in (FLIGHTS, TPCH):
            for table in sorted(path for path in folder.iterdir() if path.is_dir()):
                connection.execute(f"CREATE VIEW {table.name} AS FROM '{table}/*.parquet'")
        yield connection


@pytest.fixture(scope="module")
def flights(duck):
    """All flights as pandas has them, with the scheduled departure in seconds."""
    frame = duck.execute(
        "SELECT *, epoch(time_hour)::BIGINT + minute * 60 AS departs FROM flights"
    ).df()
    assert len(frame) == 336_776
    return frame


class Runner:
    """Runs examples by their headers, each once for all tests of this file."""

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


@pytest.fixture(scope="module")
def runner(tables):
    return Runner(tables)


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


# --- what holds for all of them ---


def test_there_are_examples_and_each_one_has_its_line_here_and_its_test():
    assert len(FILES) >= 15
    assert [path.stem for path in FILES] == list(BATCHES)
    tested = {name[5:7] for name in globals() if re.match(r"test_\d\d_", name)}
    assert tested == {path.stem[:2] for path in FILES}


def test_the_readme_of_the_folder_has_a_line_for_each_of_them():
    readme = (ROOT / "sql-examples/README.md").read_text()
    assert [name for name in re.findall(r"`(\d\d_\w+)`", readme) if name in BATCHES] == list(
        BATCHES
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_example_gives_tensors_of_its_types_and_every_row_once(runner, path):
    name = path.stem
    example = runner.read[name]
    query = runner.session.sql(example.sql)
    chosen = query.select(example.options.get("columns"), example.options.get("filters"))
    wanted = chosen.count()
    assert wanted == chosen.to_arrow().num_rows > 0
    alone = runner.epoch(name)
    assert {len(column) for column in alone.values()} == {wanted}
    shares = [
        sum(length for length, _ in checked(name, runner.loader(name, rank=rank, world_size=2)))
        for rank in range(2)
    ]
    assert sum(shares) == wanted
    assert abs(shares[0] - shares[1]) <= 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_header_says_whether_something_is_staged(runner, path):
    example = runner.read[path.stem]
    if example.is_staged:
        with pytest.raises(tq.NotShardableError):
            runner.loader(path.stem, stage="never")
    else:
        assert len(runner.loader(path.stem, stage="never")) > 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_header_names_the_tables_that_the_query_reads(runner, path):
    example = runner.read[path.stem]
    alone = tq.Session()
    for table in example.tables:
        folder = FLIGHTS if (FLIGHTS / table).exists() else TPCH
        alone.register_parquet(table, folder / table)
    assert alone.sql(example.sql).column_names == runner.session.sql(example.sql).column_names
    for table in example.tables:
        fewer = tq.Session()
        for other in set(example.tables) - {table}:
            folder = FLIGHTS if (FLIGHTS / other).exists() else TPCH
            fewer.register_parquet(other, folder / other)
        with pytest.raises(tq.TensorQueryError, match=table):
            fewer.sql(example.sql)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("-- Tables: t\n-- Staged: nothing.\n", 'one line "-- Loader: …", not 0'),
        ("-- Tables: t\n-- Loader: open(query)\n-- Staged: nothing.\n", "must be tq.create_dataloader"),
        ("-- Tables: t\n-- Loader: tq.create_dataloader(t)\n-- Staged: nothing.\n", "must be query"),
    ],
)  # fmt: skip
def test_a_header_that_says_no_loader_is_an_error(tmp_path, header, message):
    path = tmp_path / "x.sql"
    path.write_text(header + "SELECT 1")
    with pytest.raises(ValueError, match=re.escape(message)):
        examples.read(path)


def test_the_script_prints_the_shapes_of_an_example(capsys):
    examples.main(["04"])
    said = capsys.readouterr().out
    assert said.startswith("04_case_features: 336776 rows, 83 batches\n")
    assert "x: (4096, 4) torch.float64" in said


# --- what each of them contains ---


def test_01_is_the_flights_with_weather_and_their_lateness(runner, duck):
    got = runner.epoch("01_flights_delay")
    rows, late = duck.execute(
        "SELECT count(*), count(*) FILTER (WHERE arr_delay > 15) FROM flights "
        "SEMI JOIN weather USING (origin, time_hour) WHERE arr_delay IS NOT NULL"
    ).fetchone()
    assert len(got["label"]) == rows
    assert got["label"].sum() == late
    np.testing.assert_allclose(np.square(got["time"]).sum(axis=1), 1, rtol=1e-6)
    codes = [
        "9E",
        "AA",
        "AS",
        "B6",
        "DL",
        "EV",
        "F9",
        "FL",
        "HA",
        "MQ",
        "OO",
        "UA",
        "US",
        "VX",
        "WN",
        "YV",
    ]
    carriers = duck.execute(
        "SELECT carrier, count(*) FROM flights SEMI JOIN weather USING (origin, time_hour) "
        "WHERE arr_delay IS NOT NULL GROUP BY carrier"
    ).fetchall()
    assert Counter(codes[code] for code in got["carrier"].tolist()) == dict(carriers)


def test_02_is_the_flights_of_july(runner, flights):
    got = runner.epoch("02_one_summer")
    inside = flights["time_hour"].between("2013-07-01T00Z", "2013-08-01T00Z", inclusive="left")
    wanted = flights[inside & flights["dep_delay"].notna()]
    columns = ["month", "day", "hour", "distance", "dep_delay"]
    assert_same_rows(np.column_stack([got["x"], got["dep_delay"]]), wanted[columns])


def test_03_is_the_last_three_months(runner, flights):
    got = runner.epoch("03_files_by_path")
    wanted = flights[(flights["month"] >= 10) & flights["air_time"].notna()]
    pace = (wanted["air_time"] / wanted["distance"]).tolist()
    names = runner.read["03_files_by_path"].options["categories"]["origin"]
    origins = [names[code] for code in got["origin"].tolist()]
    assert Counter(zip(origins, got["carrier"], got["minutes_per_mile"].tolist(), strict=True)) == (
        Counter(zip(wanted["origin"], wanted["carrier"], pace, strict=True))
    )


def test_04_has_one_origin_a_row_and_the_classes_of_all_flights(runner, flights):
    got = runner.epoch("04_case_features")
    assert (got["x"][:, :3].sum(axis=1) == 1).all()
    late = flights["arr_delay"] > 15
    cancelled = flights["arr_delay"].isna()
    wanted = [(~late & ~cancelled).sum(), late.sum(), cancelled.sum()]
    assert np.bincount(got["outcome"]).tolist() == wanted


def test_05_is_the_distance_on_the_sphere(runner, duck):
    got = runner.epoch("05_great_circle")
    rows = duck.execute(
        "SELECT f.distance, o.lat, o.lon, d.lat, d.lon FROM flights f JOIN airports o ON f.origin = o.faa "
        "LEFT JOIN airports d ON f.dest = d.faa"
    ).fetchnumpy()
    miles, lat1, lon1, lat2, lon2 = (np.ma.filled(column, np.nan) for column in rows.values())
    lat1, lon1, lat2, lon2 = map(np.radians, (lat1, lon1, lat2, lon2))
    # By the chord through the globe instead of the haversine.
    ends = [
        np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
        for lat, lon in ((lat1, lon1), (lat2, lon2))
    ]
    chord = np.linalg.norm(ends[0] - ends[1], axis=0)
    wanted = np.nan_to_num(12742 * np.arcsin(chord / 2))
    np.testing.assert_allclose(np.sort(got["great_circle_km"]), np.sort(wanted), rtol=1e-6)
    np.testing.assert_allclose(np.sort(got["flown_km"]), np.sort(miles * 1.609344))


def test_06_has_both_tasks(runner, flights):
    got = runner.epoch("06_two_tasks")
    for task, column in enumerate(("dep_delay", "arr_delay")):
        mine = got["delay"][got["task"] == task]
        assert_same_rows(mine[:, None], flights[[column]].dropna())


def test_07_is_the_late_flights_of_windy_hours(runner, duck):
    got = runner.epoch("07_inline_view")
    wanted = duck.execute(
        "SELECT wind_speed, visib, dep_delay FROM flights JOIN weather USING (origin, time_hour) "
        "WHERE dep_delay > 60 AND wind_speed > 25"
    ).fetchall()
    assert_same_rows(np.column_stack([got["x"], got["dep_delay"]]), wanted)


def test_08_rates_know_only_the_thirty_days_before(runner, duck):
    got = runner.epoch("08_late_rates")
    wanted = duck.execute(
        """
        WITH known AS (FROM flights SELECT *, make_date(year, month, day) AS date WHERE arr_delay IS NOT NULL),
        past AS (
            SELECT carrier, origin, dest, d.date, count(k.flight) AS flown, count(k.flight) FILTER (WHERE k.arr_delay > 15) AS late
            FROM (SELECT DISTINCT carrier, origin, dest, date FROM known) AS d LEFT JOIN known AS k
            USING (carrier, origin, dest) WHERE k.date < d.date AND k.date + 30 >= d.date GROUP BY ALL
        )
        SELECT flight, coalesce(flown, 0), coalesce(late, 0), arr_delay > 15
        FROM known LEFT JOIN past USING (carrier, origin, dest, date)
        """
    ).fetchnumpy()
    flight, flown, late, label = map(np.ma.filled, wanted.values())
    assert (flown == 0).any()
    assert flown.max() > 200
    rate = ((late + 20 * 0.24) / (flown + 20)).astype(np.float32)
    assert_same_rows(
        np.column_stack(
            [got["flight"], np.expm1(got["x"][:, 1]).round(), got["x"][:, 0], got["label"]]
        ),
        np.column_stack([flight, flown, rate, label]),
    )


def test_09_sequences_are_the_last_eight_in_order_of_time(runner, flights):
    got = runner.epoch("09_aircraft_sequences")
    legs = flights[flights["tailnum"].notna() & flights["arr_delay"].notna()].sort_values(
        ["tailnum", "time_hour", "minute", "carrier", "flight", "origin", "dest"]
    )
    place = legs.groupby("tailnum").cumcount()
    assert sorted(map(len, got["delays"])) == sorted(place[place > 0].clip(upper=8))
    for departs, departures in zip(got["departs"].tolist(), got["departures"], strict=True):
        assert departures[-1] <= departs
        assert sorted(departures) == departures
    # Word for word for some of the aircraft.
    chosen = {name for name in legs["tailnum"].unique() if name.endswith("JB")}
    assert len(chosen) > 100
    wanted = Counter()
    for tailnum, group in legs[legs["tailnum"].isin(chosen)].groupby("tailnum"):
        delays, departures = group["arr_delay"].tolist(), group["departs"].tolist()
        for place in range(1, len(delays)):
            window = slice(max(place - 8, 0), place)
            before = (tuple(delays[window]), tuple(departures[window]))
            wanted[tailnum, departures[place], *before, float(delays[place] > 15)] += 1
    rows = zip(
        got["tailnum"], got["departs"].tolist(), map(tuple, got["delays"]), map(tuple, got["departures"]),
        got["label"].tolist(), strict=True,
    )  # fmt: skip
    assert Counter(row for row in rows if row[0] in chosen) == wanted


def test_10_histories_end_before_the_target(runner, duck):
    got = runner.epoch("10_customer_histories")
    orders = defaultdict(list)
    for customer, day, price in duck.execute(
        "SELECT o_custkey, o_orderdate, o_totalprice FROM orders ORDER BY o_custkey, o_orderdate, o_orderkey"
    ).fetchall():
        orders[customer].append((day, np.float32(price)))
    assert sorted(got["customer"].tolist()) == sorted(
        customer for customer, mine in orders.items() if len(mine) > 1
    )
    for customer, amounts, gaps, target in zip(
        got["customer"].tolist(), got["amounts"], got["gaps"], got["target"], strict=True
    ):
        *history, last = orders[customer]
        size = len(history)
        assert amounts[:size].tolist() == [price for _, price in history]
        assert not amounts[size:].any()
        days = [day for day, _ in history]
        assert gaps[:size].tolist() == [0] + [
            (after - before).days for before, after in itertools.pairwise(days)
        ]
        assert (gaps[size:] == -1).all()
        assert target == last[1]


def test_11_negatives_were_never_bought(runner, duck):
    got = runner.epoch("11_negative_sampling")
    pairs = list(zip(got["customer"].tolist(), got["part"].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    positives = {pair for pair, label in zip(pairs, got["label"], strict=True) if label == 1}
    negatives = set(pairs) - positives
    bought = set(
        duck.execute(
            "SELECT o_custkey, l_partkey FROM orders JOIN lineitem ON o_orderkey = l_orderkey"
        ).fetchall()
    )
    assert positives == bought
    assert not negatives & bought
    parts = {part for (part,) in duck.execute("SELECT p_partkey FROM part").fetchall()}
    assert {part for _, part in negatives} == parts
    assert {customer for customer, _ in negatives} == {customer for customer, _ in bought}
    assert 3.5 < len(negatives) / len(positives) <= 4


def test_12_subsets_share_no_customer_and_are_all_orders(runner, duck):
    example = runner.read["12_split_by_customer"]
    assert example.options["filters"] == "subset = 'train'"
    ids, customers = {}, {}
    for subset in ("train", "validation", "test"):
        got = runner.batches(
            "12_split_by_customer",
            filters=f"subset = '{subset}'",
            columns=["id", "customer"],
            categories=None,
        )
        ids[subset], customers[subset] = got["id"].tolist(), set(got["customer"].tolist())
    orders = duck.execute("SELECT o_orderkey, o_custkey FROM orders").fetchall()
    assert sorted(itertools.chain(*ids.values())) == sorted(order for order, _ in orders)
    assert sum(map(len, customers.values())) == len({customer for _, customer in orders})
    for subset, mine in customers.items():
        first = [int(hashlib.md5(str(customer).encode()).hexdigest()[:2], 16) for customer in mine]
        low, high = {"train": (0, 204), "validation": (205, 230), "test": (231, 255)}[subset]
        assert low <= min(first) <= max(first) <= high
    assert 0.75 < len(ids["train"]) / len(orders) < 0.85
    # The header's own call is the training subset with its features.
    assert len(runner.epoch("12_split_by_customer")["price"]) == len(ids["train"])


def test_13_subsets_are_disjoint_and_exact_in_every_stratum(runner, flights):
    flown = flights[flights["arr_delay"].notna()]
    strata = Counter(zip(flown["carrier"], (flown["arr_delay"] > 15).astype(int), strict=True))
    ids = Counter()
    found = {}
    for subset in range(3):
        got = runner.batches(
            "13_stratified_split", filters=f"subset = {subset}", columns=["id", "carrier", "label"]
        )
        ids.update(got["id"])
        found[subset] = Counter(zip(got["carrier"], got["label"].tolist(), strict=True))
    assert max(ids.values()) == 1
    assert len(ids) == len(flown)
    assert min(strata.values()) < 50
    for stratum, size in strata.items():
        train, validation = size * 8 // 10, size * 9 // 10 - size * 8 // 10
        assert found[0][stratum] == train
        assert found[1][stratum] == validation
        assert found[2][stratum] == size - train - validation
    assert len(runner.epoch("13_stratified_split")["label"]) == found[0].total()


def test_14_keeps_the_newest_of_each_flight(runner, flights):
    got = runner.epoch("14_deduplicate")
    keys = ["carrier", "flight", "origin", "dest"]
    newest = flights.groupby(keys)["departs"].max().to_dict()
    seen = zip(got["carrier"], got["flight"].tolist(), got["origin"], got["dest"], strict=True)
    departs = got["time_hour"] // 1000 + got["minute"] * 60
    kept = list(zip(seen, departs.tolist(), strict=True))
    assert len(kept) == len(newest) < len(flights) / 10
    assert dict(kept) == newest


def test_15_sees_the_last_weather_before_the_decision(runner, duck):
    got = runner.epoch("15_point_in_time")
    flown = duck.execute(
        "SELECT flight, origin, arr_delay, epoch(time_hour)::BIGINT + minute * 60 - 3600 AS decided "
        "FROM flights WHERE arr_delay IS NOT NULL"
    ).df()
    weather = duck.execute(
        "SELECT origin, epoch(time_hour)::BIGINT AS seen, temp, wind_speed, visib FROM weather"
    ).df()
    wanted = pd.merge_asof(
        flown.sort_values("decided"), weather.sort_values("seen"), left_on="decided", right_on="seen",
        by="origin", tolerance=3 * 3600,
    )  # fmt: skip
    assert (wanted["seen"].dropna() <= wanted["decided"][wanted["seen"].notna()]).all()
    assert 0 < wanted["seen"].isna().sum() < 1000
    features = ["temp", "wind_speed", "visib"]
    mine = [got["flight"], got["decided"] // 1000, got["label"], *got["x"].T]
    wanted["label"] = wanted["arr_delay"] > 15
    assert_same_rows(np.column_stack(mine), wanted[["flight", "decided", "label", *features]])


def test_15_is_what_the_helper_writes():
    path = ROOT / "sql-examples/15_point_in_time.sql"
    sql = path.read_text()
    body = sql[re.search(r"^SELECT l\.\*", sql, re.MULTILINE).start() :]
    left = re.search(r"^ *FROM \(\n(SELECT\n.*?)\n\) AS l$", body, re.MULTILINE | re.DOTALL)[1]
    assert left.endswith("WHERE arr_delay IS NOT NULL")
    made_by = examples.header(path, sql, "Made by")
    assert body.strip() == eval(made_by, {"tq": tq, "left": left})


def test_16_is_the_comments_in_lower_case(runner, duck):
    got = runner.epoch("16_comments")
    names = runner.read["16_comments"].options["categories"]["priority"]
    priorities = [names[code] for code in got["priority"].tolist()]
    wanted = duck.execute("SELECT o_comment, o_orderpriority FROM orders").fetchall()
    long = [
        (text.strip().lower(), priority) for text, priority in wanted if len(text.strip()) >= 20
    ]
    assert len(long) < len(wanted)
    assert Counter(zip(got["text"], priorities, strict=True)) == Counter(long)
    assert got["characters"].tolist() == [len(text) for text in got["text"]]
    special = [bool(re.search("special.*requests", text)) for text in got["text"]]
    assert got["complains"].tolist() == special
    assert 0 < sum(special) < len(special) / 2


def test_17_vectors_are_the_shares_of_the_months(runner, flights):
    got = runner.epoch("17_airport_vectors")
    np.testing.assert_allclose(got["vector"].sum(axis=1), 1, rtol=1e-5)
    shares = pd.crosstab(flights["dest"], flights["month"], normalize="index").astype(np.float32)
    vectors = {
        dest: tuple(row.round(4)) for dest, row in zip(shares.index, shares.to_numpy(), strict=True)
    }
    flown = flights[flights["air_time"].notna()]
    wanted = Counter(
        (vectors[dest], float(minutes))
        for dest, minutes in zip(flown["dest"], flown["air_time"], strict=True)
    )
    rows = zip(map(tuple, got["vector"].round(4)), got["minutes"].tolist(), strict=True)
    assert sum((Counter(rows) - wanted).values()) < 0.001 * len(flown)


def test_18_targets_are_smoothed_by_their_neighbours(runner, flights):
    got = runner.epoch("18_label_smoothing")
    flown = flights[flights["arr_delay"].notna()].sort_values(["departs", "flight", "dest"]).copy()
    flown["label"] = (flown["arr_delay"] > 15).astype(float)
    around = flown.groupby(["carrier", "origin"])["label"].rolling(41, center=True, min_periods=1)
    smooth = around.mean().reset_index(level=[0, 1], drop=True)
    flown["target"] = 0.8 * flown["label"] + 0.2 * smooth
    np.testing.assert_allclose(
        np.sort(got["target"]), np.sort(flown["target"]), rtol=1e-5, atol=1e-6
    )
    assert ((got["target"] > 0.5) == (got["label"] == 1)).all()
    assert len(np.unique(got["target"].round(4))) > 80


def test_19_classes_are_equal_and_chosen_by_the_hash(runner, flights):
    got = runner.epoch("19_balanced_classes")
    outcome = np.where(flights["arr_delay"].isna(), 2, (flights["arr_delay"] > 15).astype(int))
    size = np.bincount(outcome).min()
    assert np.bincount(got["outcome"]).tolist() == [size] * 3
    parts = ["carrier", "flight", "origin", "year", "month", "day", "sched_dep_time"]
    hashes = [
        hashlib.md5("/".join(map(str, row)).encode()).hexdigest()
        for row in flights[parts].itertuples(index=False)
    ]
    wanted = (
        flights.assign(outcome=outcome, hash=hashes)
        .sort_values("hash")
        .groupby("outcome")
        .head(size)[["month", "hour", "distance", "outcome"]]
    )
    assert_same_rows(np.column_stack([got["x"], got["outcome"]]), wanted)


def test_20_rotations_end_where_an_aircraft_stays_away(runner, flights):
    got = runner.epoch("20_rotations")
    wanted = {}
    known = flights[flights["tailnum"].notna()].sort_values(
        ["tailnum", "departs", "carrier", "flight"]
    )
    legs = zip(*(known[name].tolist() for name in ("tailnum", "departs", "distance")), strict=True)
    for tailnum, group in itertools.groupby(legs, key=lambda leg: leg[0]):
        _, times, distances = map(list, zip(*group, strict=True))
        borders = [0] + [
            place for place in range(1, len(times)) if times[place] - times[place - 1] > 172_800
        ]
        for number, (start, end) in enumerate(
            zip(borders, [*borders[1:], len(times)], strict=True)
        ):
            if 2 <= end - start <= 32:
                waits = [0.0] + [(b - a) / 3600 for a, b in itertools.pairwise(times[start:end])]
                wanted[tailnum, number] = (distances[start:end], waits)
    keys = list(zip(got["tailnum"], got["rotation"].tolist(), strict=True))
    assert len(keys) == len(wanted)
    for row, key in enumerate(keys):
        distances, waits = wanted[key]
        size = got["flights"][row]
        assert size == len(distances)
        assert got["distances"][row, :size].tolist() == distances
        np.testing.assert_allclose(got["waits"][row, :size], waits, rtol=1e-6)
        assert not got["distances"][row, size:].any()
        assert abs(got["hours"][row] - sum(waits)) < 0.01


def test_21_lags_are_of_the_days_before(runner, duck):
    got = runner.epoch("21_revenue_forecast")
    days = dict(
        duck.execute(
            "SELECT l_shipdate, sum(l_extendedprice * (1 - l_discount))::DOUBLE / 1e6 FROM lineitem GROUP BY l_shipdate"
        ).fetchall()
    )
    first, last = min(days), max(days)
    calendar = [first + timedelta(n) for n in range((last - first).days + 1)]
    assert len(days) < len(calendar)
    revenue = np.array([days.get(day, 0.0) for day in calendar])
    # In order, since nothing shuffles: one row a day, from the first with four weeks before it.
    epoch = np.array([(day - date(1970, 1, 1)).days for day in calendar])
    assert got["day"].tolist() == epoch[28:].tolist()
    for column, lag in enumerate((1, 2, 3, 7, 28)):
        np.testing.assert_allclose(got["x"][:, column], revenue[28 - lag : -lag], rtol=1e-5)
    means = np.lib.stride_tricks.sliding_window_view(revenue, 28)[:-1].mean(axis=1)
    np.testing.assert_allclose(got["x"][:, 5], means, rtol=1e-4)
    np.testing.assert_allclose(got["target"], revenue[28:], rtol=1e-5)


def test_22_easy_flights_come_first(runner, flights):
    got = runner.epoch("22_curriculum")
    assert (np.diff(got["margin"]) <= 0).all()
    flown = flights[flights["arr_delay"].notna()]
    margins = (flown["arr_delay"] - 15).abs()
    assert got["margin"].tolist() == sorted(margins, reverse=True)
    assert got["label"].sum() == (flown["arr_delay"] > 15).sum()


def assert_same_rows(got, wanted):
    """Assert that two tables of numbers have the same rows, in any order; NaN equals NaN."""
    tables = []
    for rows in (got, wanted):
        rows = np.asarray(rows, dtype=float)
        tables.append(rows[np.lexsort(rows.T)])
    np.testing.assert_array_equal(*tables)
