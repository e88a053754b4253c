"""Quantiles of a query's column: the boundaries of buckets that hold as many rows each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tensorquery import _core
from tensorquery._util.arrow_c import import_pyarrow
from tensorquery._util.options import check_choice, check_positive_int
from tensorquery.errors import ConfigError, DataError
from tensorquery.sql.query import Query, QuerySource, query_of

__all__ = ["quantile_boundaries"]

_MOST_BUCKETS = 65_536
"""Each boundary takes two numbers of a list in SQL."""

# Where numpy's methods find a quantile q of n sorted values: a place from 0, between two of them.
_Place = Callable[[int, float], float]


def _by(alpha: float, beta: float) -> _Place:
    """The methods of Hyndman and Fan (1996) with a slope."""
    return lambda n, q: n * q + (alpha + q * (1 - alpha - beta)) - 1


_METHODS: dict[str, _Place] = {
    "linear": lambda n, q: (n - 1) * q,
    "lower": lambda n, q: math.floor((n - 1) * q),
    "higher": lambda n, q: math.ceil((n - 1) * q),
    "nearest": lambda n, q: round((n - 1) * q),
    "midpoint": lambda n, q: 0.5 * (math.floor((n - 1) * q) + math.ceil((n - 1) * q)),
    "inverted_cdf": lambda n, q: math.ceil(n * q - 1),
    "hazen": _by(0.5, 0.5),
    "weibull": _by(0, 0),
    "median_unbiased": _by(1 / 3, 1 / 3),
    "normal_unbiased": _by(3 / 8, 3 / 8),
}


def quantile_boundaries(
    query: Query | str,
    column: str,
    *,
    buckets: int,
    method: str = "linear",
    session: QuerySource | None = None,
) -> list[float]:
    """Compute the boundaries that divide a column's values into buckets of as many rows each.

    They are exact: the values are sorted, on disk where a ``memory_limit`` asks for it, and nothing is sketched. NULLs
    are left out. Values that occur often may give several equal boundaries, which ``bucketize`` in SQL takes.

    Args:
        query: A `Query`, or SQL over the tables of `session`. It is read twice.
        column: An output column of numbers; each is taken as the nearest float64.
        buckets: How many buckets, from 1 to 65,536; there is a boundary less.
        method: How a boundary between two values is found, by the names of ``numpy.quantile``: "linear", "lower",
            "higher", "nearest", "midpoint", "inverted_cdf", "hazen", "weibull", "median_unbiased" or
            "normal_unbiased". The results are those of numpy.
        session: The session of a query that is text.

    Returns:
        ``buckets - 1`` floats in rising order: the quantiles i / buckets.

    Raises:
        ConfigError: An argument is malformed.
        QueryError: The query has no such column; names the nearest one.
        DataError: The column has no values, or NaN among them, which has no place in an order of numbers.

    Examples:
        >>> import pyarrow as pa
        >>> import tensorquery as tq
        >>> session = tq.Session()
        >>> session.register_table("sales", pa.table({"price": [4.0, 1.0, 3.0, 2.0, None]}))
        >>> bounds = tq.quantile_boundaries("SELECT price FROM sales", "price", buckets=4, session=session)
        >>> bounds
        [1.75, 2.5, 3.25]
        >>> session.sql(f"SELECT bucketize(price, {bounds}) AS b FROM sales").to_arrow()["b"].to_pylist()
        [3, 0, 2, 1, None]
    """
    place = _METHODS[check_choice("method", method, _METHODS)]
    buckets = check_positive_int("buckets", buckets, _MOST_BUCKETS)
    chosen = _numbers(query_of(query, session), column)
    pyarrow = import_pyarrow()
    counts = chosen._core.expressions("count(v) AS n, count(*) FILTER (WHERE isnan(v)) AS nans")
    ((n, nans),) = zip(*pyarrow.table(counts.collect()).to_pydict().values(), strict=True)
    if nans:
        raise DataError(
            f"column {column!r} has NaN in {nans} of {n} rows, which has no place among boundaries; leave them out: "
            f"WHERE NOT isnan({column})"
        )
    if not n:
        raise DataError(f"column {column!r} has no values, so there are no quantiles")
    places = [place(n, i / buckets) for i in range(1, buckets)]
    pairs = [_neighbours(found, n) for found in places]
    values = _values_at(chosen, sorted({rank for pair in pairs for rank in pair}))
    found = [
        _between(values[lower], values[upper], place - math.floor(place))
        for place, (lower, upper) in zip(places, pairs, strict=True)
    ]
    if any(map(math.isnan, found)):
        raise DataError(
            f"column {column!r} has infinities of both signs with a boundary between them, which is no number; use "
            'method="lower"'
        )
    return found


def _numbers(query: Query, column: Any) -> Query:
    """The values of a column as floats, named v."""
    if not isinstance(column, str):
        raise ConfigError(f"column must be the name of a column, not {column!r}")
    ((_, kind, _),) = query.select([column])._core.columns()
    encoded = re.fullmatch(r"Dictionary\(\w+, (.*)\)", kind)
    if not re.match(r"U?Int\d|Float|Decimal", encoded[1] if encoded else kind):
        raise ConfigError(
            f"column {column!r} is of the type {kind}, and quantiles are of numbers; cast it: CAST({column} AS DOUBLE)"
        )
    value = f"CAST({_core.quote_identifier(column)} AS DOUBLE) AS v"
    return Query(query.session, query._core.expressions(value), (query.sql, column))


def _neighbours(place: float, n: int) -> tuple[int, int]:
    """The two values, from 0, between which a place lies; one of them, where it is not between any."""
    lower = min(max(math.floor(place), 0), n - 1)
    upper = lower if place <= 0 or place >= n - 1 else lower + 1
    return lower, upper


def _values_at(query: Query, ranks: list[int]) -> dict[int, float]:
    """The values of these ranks from 0, in rising order."""
    if not ranks:
        return {}
    ranked = query._core.expressions("v, row_number() OVER (ORDER BY v) - 1 AS r")
    ordered = Query(query.session, ranked, (query.sql, "ranked"))
    chosen = ordered.select(None, f"r IN ({', '.join(map(str, ranks))})").to_arrow()
    found = dict(zip(chosen["r"].to_pylist(), chosen["v"].to_pylist(), strict=True))
    if len(found) < len(ranks):
        raise DataError(
            "the query has given other rows the second time it was read; materialise what random() or a volatile function gives"
        )
    return found


def _between(lower: float, upper: float, part: float) -> float:
    """The value at a part of the way between two, with numpy's rounding."""
    if lower == upper:
        return lower
    way = upper - lower
    return upper - way * (1 - part) if part >= 0.5 else lower + way * part
