"""Every SQL example has the content that its header says, computed apart from the engine: by pandas, DuckDB or plain Python."""

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest
import xxhash

import tensorquery as tq
from sql_example_runs import ROOT, examples

pytestmark = pytest.mark.usefixtures("in_the_root")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_23_ids_buckets_circles_and_weights_are_those_of_the_flights(runner, flights):
    got = runner.epoch("23_ranking_features")
    flown = flights[flights["arr_delay"].notna()]

    def hashed(column, seed, modulus):
        found = {
            text: xxhash.xxh64_intdigest(text.encode(), seed) % modulus for text in set(column)
        }
        return column.map(found)

    ids = [
        hashed(flown["carrier"], 1, 1000),
        hashed(flown["origin"] + "-" + flown["dest"], 2, 1000),
        1 + hashed(flown["tailnum"].dropna(), 3, 10_000),
        np.digitize(flown["distance"], [250, 500, 1000, 2500], right=True),
    ]
    ids[2] = ids[2].reindex(flown.index).fillna(0)
    days = pd.to_datetime(flown[["year", "month", "day"]])
    # The first of January 1970 was a Thursday.
    angles = [flown["hour"] / 24, (days.dt.day_of_week - 3) % 7 / 7]
    weight = 0.5 ** ((pd.Timestamp("2013-12-31") - days).dt.days / 30)
    wanted = np.column_stack([*ids, weight.round(5), flown["arr_delay"] > 15])
    circles = [wave(2 * np.pi * angle) for angle in angles for wave in (np.sin, np.cos)]
    assert_same_rows(
        np.column_stack(
            [
                got["ids"],
                got["weight"].astype(float).round(5),
                got["label"],
                got["dense"].round(6) + 0.0,
            ]
        ),
        np.column_stack([wanted, np.column_stack(circles).round(6) + 0.0]),
    )


def assert_same_rows(got, wanted):
    """Assert that two tables of numbers have the same rows, in any order; NaN equals NaN."""
    tables = []
    for rows in (got, wanted):
        rows = np.asarray(rows, dtype=float)
        tables.append(rows[np.lexsort(rows.T)])
    np.testing.assert_array_equal(*tables)


def test_24_windows_have_the_hours_of_one_airport(runner, flights):
    got = runner.epoch("24_airport_hours")
    hours = pd.date_range(flights["time_hour"].min(), flights["time_hour"].max(), freq="h")
    groups = flights.groupby(["origin", "time_hour"])["dep_delay"]
    counts, delays = (
        found.unstack(0).reindex(hours).fillna(0) for found in (groups.size(), groups.mean())
    )
    starts = range(0, len(hours) - 60 + 1, 6)
    assert len(got["origin"]) == len(starts) * len(counts.columns)
    assert len({*zip(got["origin"], got["hour"].tolist(), strict=True)}) == len(got["origin"])
    stamps = hours.tz_convert("UTC").tz_localize(None).as_unit("ns").astype("int64")
    place = {stamp: row for row, stamp in enumerate(stamps.tolist())}
    for row in range(0, len(got["origin"]), 97):
        start = place[int(got["hour"][row])]
        origin = got["origin"][row]
        assert start % 6 == 0
        assert got["departures"][row].tolist() == counts[origin].iloc[start : start + 48].tolist()
        assert (
            got["departures_target"][row].tolist()
            == counts[origin].iloc[start + 48 : start + 60].tolist()
        )
        np.testing.assert_allclose(
            got["delay"][row], delays[origin].iloc[start : start + 48], rtol=1e-5
        )
