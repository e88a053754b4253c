"""`mix`: several queries interleaved by weight, as one training set."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from tensorquery import _core
from tensorquery._util.digests import digest
from tensorquery._util.options import check_choice
from tensorquery.errors import ConfigError
from tensorquery.sharding.deal import Sources
from tensorquery.sql.filters.filter_forms import column_list
from tensorquery.sql.query import Query

__all__ = ["Mixture", "mix"]

_SCALE = 2**32


class Mixture:
    """Several queries that share every batch by weight. Made by `mix`; takes the place of a query.

    Attributes:
        queries: The queries.
        weights: Their shares of a batch, which sum to 1.
        stop: "first" or "all".
    """

    def __init__(self, queries: Sequence[Query], weights: Sequence[float], stop: str) -> None:
        self.queries = list(queries)
        self.weights = list(weights)
        self.stop = stop
        union, self._scans = queries[0]._core.union_all(
            [query._core for query in queries[1:]], "auto"
        )
        self._core = union

    @property
    def session(self) -> Any:
        """The session of the first query."""
        return self.queries[0].session

    def select(self, columns: Iterable[str] | None = None, filters: Any | None = None) -> Mixture:
        """Narrow every query, as `Query.select` does.

        Args:
            columns: Output columns to keep, in this order (those of a set by name); None keeps all.
            filters: As for `Query.select`.

        Returns:
            A new mixture of the same weights.

        Raises:
            QueryError: A column is unknown, or a filter is malformed.
        """
        if columns is None and filters is None:
            return self
        names = column_list(columns)
        queries = [query.select(names, filters) for query in self.queries]
        return Mixture(queries, self.weights, self.stop)

    def _over(self, core: _core.Query) -> Mixture:
        """This mixture with its stages in place of the staged parts."""
        staged = copy.copy(self)
        staged._core = core
        return staged

    def _pins(self) -> dict[str, list[int]]:
        """Snapshot and schema by Iceberg table, of all queries; see `Query._pins`."""
        return {table: list(pin) for table, pin in self._core.snapshots().items()}

    def _at(self, pins: Mapping[str, Sequence[int]]) -> Mixture:
        """This mixture at other snapshots and schemas, by table."""
        # Of its queries, not of the union: a source may have another number of scans at another snapshot.
        moved = Mixture([query._at(pins) for query in self.queries], self.weights, self.stop)
        moment = self._core.moment()
        return moved if moment is None else moved._at_moment(moment)

    def _at_moment(self, moment: str) -> Mixture:
        """This mixture where its functions of the time stand for another moment."""
        return self._over(self._core.at_moment(moment))

    def _weights(self) -> Sources:
        """How the queries share batches, without a plan."""
        weights = [max(1, round(weight * _SCALE)) for weight in self.weights]
        return Sources([], weights, self.stop == "first")

    def _sources(self, plan: _core.Plan) -> Sources:
        """Which splits of the plan of all queries belong to which of them."""
        of_scan = [source for source, scans in enumerate(self._scans) for _ in range(scans)]
        scans = plan.scans()
        if scans and max(scans) >= len(of_scan):
            raise ConfigError(
                f"the mixture was planned with {max(scans) + 1} scans, its queries alone with {len(of_scan)}; "
                "please report it with the queries"
            )
        return replace(self._weights(), sources=[of_scan[scan] for scan in scans])

    def _parts(self) -> dict[str, Any]:
        parts = [query._parts() for query in self.queries]
        functions: dict[str, str] = {}
        for part in parts:
            functions.update(part.pop("functions", {}))
            # One for all of them.
            part.pop("moment", None)
            part.pop("snapshot", None)
        pins, moment = self._pins(), self._core.moment()
        keys = {key for part in parts for key in part}
        together = {key: digest([part.get(key) for part in parts]) for key in sorted(keys)}
        called = {"functions": functions} if functions else {}
        pinned = {**({"snapshot": pins} if pins else {}), **({"moment": moment} if moment else {})}
        return {**together, **called, **pinned, "mixture": digest([self.weights, self.stop])}

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{weight:.3g} of {query!r}"
            for query, weight in zip(self.queries, self.weights, strict=True)
        )
        return f"mix({shares}, stop={self.stop!r})"


def mix(queries: Iterable[tuple[Query, float]], *, stop: str = "first") -> Mixture:
    """Interleave several queries by weight: each batch has rows of all of them, in proportion.

    The result goes where a query does: ``create_dataloader(tq.mix([(a, 0.7), (b, 0.3)]))``. It is dealt to ranks and
    workers, shuffled and checkpointed like one query. The same rows come in the same order for the same seed,
    epoch and topology. A batch holds the rows of the first query first, then those of the second, and so on.

    Args:
        queries: Pairs of a `Query` and its weight, a number above 0. All queries have the same columns.
        stop: "first": the epoch ends when the first of them runs out; of the others, other rows are left out in
            every epoch where the order is shuffled. "all": it ends when all have run out, each row delivered
            once; the remaining ones share the batches by their weights.

    Returns:
        The mixture, for `create_dataloader` and `QueryDataset`.

    Raises:
        ConfigError: A weight or `stop` is malformed, or a name stands for different tables in two queries, or for one that
            has changed between them.
        QueryError: The queries' columns differ.
    """
    check_choice("stop", stop, ("first", "all"))
    try:
        pairs = [(query, weight) for query, weight in queries]
    except (TypeError, ValueError) as error:
        raise ConfigError("mix takes pairs of a query and its weight, [(query, 0.5), …]") from error
    if not pairs:
        raise ConfigError("mix([]) has no query; give pairs of a query and its weight")
    for query, _ in pairs:
        if not isinstance(query, Query):
            raise ConfigError(
                f"mix takes queries, got {type(query).__name__}; make one with session.sql(…)"
            )
    shares = _shares([_checked_weight(weight) for _, weight in pairs])
    return Mixture([query for query, _ in pairs], shares, stop)


def _checked_weight(weight: Any) -> float:
    try:
        is_number = isinstance(weight, Real) and not isinstance(weight, bool)
        checked = float(weight) if is_number else math.nan
    except OverflowError as error:
        raise ConfigError(
            "a weight of mix is more than a float holds; only their ratio counts, so give smaller ones"
        ) from error
    if not math.isfinite(checked) or checked <= 0:
        raise ConfigError(f"weight {weight!r} must be a number above 0, for example 0.5")
    return checked


def _shares(weights: list[float]) -> list[float]:
    """The weights divided by their sum."""
    # By a power of two first, which loses nothing: the sum of large ones is no float.
    _, exponent = math.frexp(max(weights))
    scaled = [math.ldexp(weight, -exponent) for weight in weights]
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]
