"""`mix`: several queries interleaved by weight, as one training set."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorquery import _core
from tensorquery._util.digests import digest
from tensorquery._util.options import check_choice
from tensorquery.errors import ConfigError
from tensorquery.sharding.deal import Sources
from tensorquery.sql.filters.filter_forms import column_list
from tensorquery.sql.query import Query
from tensorquery.sql.schedule import Schedule, scaled, shares

__all__ = ["Mixture", "mix"]

_MOST_LETTERS = 200


class Mixture:
    """Several queries that share every batch by weight. Made by `mix`; takes the place of a query.

    Attributes:
        queries: The queries.
        weights: Their shares of a batch, which sum to 1; with a schedule those at the start.
        schedule: How the weights change; None where they stay.
        stop: "first" or "all".
        names: A name for each query, by which `QueryDataLoader.alter` knows it.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        weights: Sequence[float] | Schedule,
        stop: str,
        names: Sequence[str] | None = None,
    ) -> None:
        self.queries = list(queries)
        self.schedule = weights if isinstance(weights, Schedule) else None
        self.weights = list(weights.points[0][1] if isinstance(weights, Schedule) else weights)
        if len(self.weights) != len(self.queries):
            raise ConfigError(
                f"there are {len(self.weights)} weights for {len(self.queries)} queries; give one for each"
            )
        self.stop = stop
        self.names = (
            [str(number) for number in range(len(self.queries))] if names is None else list(names)
        )
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
        return self._of(queries)

    def _of(self, queries: Sequence[Query]) -> Mixture:
        """Other queries in the places of these."""
        return Mixture(queries, self.schedule or self.weights, self.stop, self.names)

    def _weighted(self, weights: Any) -> Mixture:
        """This mixture with other weights."""
        given = weights if isinstance(weights, Schedule) else shares(_by_name(weights, self.names))
        weighted = Mixture(self.queries, given, self.stop, self.names)
        moment = self._core.moment()
        return weighted if moment is None else weighted._at_moment(moment)

    def _with_exactly(self, weights: Any) -> Mixture:
        """This mixture with the weights of another, as plain data."""
        if isinstance(weights, Mapping):
            weights = Schedule._of(dict(weights))
        elif not isinstance(weights, list):
            raise ConfigError(f"{str(weights)[:60]} are no weights of a mixture")
        else:
            shares(weights)
        exact = Mixture(self.queries, weights, self.stop, self.names)
        moment = self._core.moment()
        return exact if moment is None else exact._at_moment(moment)

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
        moved = self._of([query._at(pins) for query in self.queries])
        moment = self._core.moment()
        return moved if moment is None else moved._at_moment(moment)

    def _at_moment(self, moment: str) -> Mixture:
        """This mixture where its functions of the time stand for another moment."""
        return self._over(self._core.at_moment(moment))

    def _weights(self) -> Sources:
        """How the queries share batches, without a plan."""
        ramp = None if self.schedule is None else self.schedule._ramp()
        weights = [max(1, weight) for weight in scaled(self.weights)]
        return Sources([], weights, self.stop == "first", ramp)

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
        weights = self.weights if self.schedule is None else self.schedule.to_dict()
        return {**together, **called, **pinned, "mixture": digest([weights, self.stop])}

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{weight:.3g} of {query!r}"
            for query, weight in zip(self.queries, self.weights, strict=True)
        )
        changing = "" if self.schedule is None else f", weights={self.schedule!r}"
        return f"mix({parts}{changing}, stop={self.stop!r})"


def mix(
    queries: Iterable[tuple[Query, float]] | Iterable[Query] | Mapping[str, Any],
    *,
    weights: Sequence[float] | Mapping[str, float] | Schedule | None = None,
    stop: str = "first",
) -> Mixture:
    """Interleave several queries by weight: each batch has rows of all of them, in proportion.

    The result goes where a query does: ``create_dataloader(tq.mix([(a, 0.7), (b, 0.3)]))``. It is dealt to ranks and
    workers, shuffled and checkpointed like one query. The same rows come in the same order for the same seed,
    epoch and topology. A batch holds the rows of the first query first, then those of the second, and so on.

    Args:
        queries: Pairs of a `Query` and its weight, a number above 0; with `weights` the queries alone. Or such values by
            name: ``{"web": (web, 0.7), "code": (code, 0.3)}``, so that `QueryDataLoader.alter` knows queries by name, and
            not by number. All queries have the same columns.
        weights: The weights of all queries, by place or by name, or a `Schedule` of weights that change.
        stop: "first": the epoch ends when the first of them runs out; of the others, other rows are left out in
            every epoch where the order is shuffled. Of a `Schedule`, the first of those that have a weight then. "all": it
            ends when all have run out, each row delivered once; the remaining ones share the batches by their weights.

    Returns:
        The mixture, for `create_dataloader` and `QueryDataset`.

    Raises:
        ConfigError: A weight or `stop` is malformed, or a name stands for different tables in two queries, or for one that
            has changed between them.
        QueryError: The queries' columns differ.
    """
    check_choice("stop", stop, ("first", "all"))
    names = None
    if isinstance(queries, Mapping):
        names = list(queries)
        for name in names:
            if not isinstance(name, str) or not 0 < len(name) <= _MOST_LETTERS:
                raise ConfigError(
                    f"mix takes pairs of a query and its weight by name, and {str(name)[:60]!r} is no name of 1 to "
                    f"{_MOST_LETTERS} letters"
                )
        queries = queries.values()
    found, own = _queries(queries, weights is None)
    if not found:
        raise ConfigError("mix([]) has no query; give pairs of a query and its weight")
    for query in found:
        if not isinstance(query, Query):
            raise ConfigError(
                f"mix takes queries, got {type(query).__name__}; make one with session.sql(…)"
            )
    if isinstance(weights, Schedule):
        return Mixture(found, weights, stop, names)
    given = own if weights is None else _by_name(weights, names or [])
    if weights is not None and len(given) != len(found):
        raise ConfigError(
            f"there are {len(given)} weights for {len(found)} queries; give one for each"
        )
    return Mixture(found, shares(given), stop, names)


def _queries(queries: Any, pairs: bool) -> tuple[list[Any], list[Any]]:
    """The queries, and the weights where they are given in pairs."""
    if isinstance(queries, Query):
        raise ConfigError("mix takes pairs of a query and its weight, [(query, 0.5), …]")
    try:
        given = list(queries)
        if not pairs:
            return given, []
        both = [(query, weight) for query, weight in given]
    except (TypeError, ValueError) as error:
        raise ConfigError("mix takes pairs of a query and its weight, [(query, 0.5), …]") from error
    return [query for query, _ in both], [weight for _, weight in both]


def _by_name(weights: Any, names: Sequence[str]) -> list[Any]:
    """Weights in the order of the queries."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ConfigError(
                f"weights= names {sorted(map(str, weights))}, and the queries are {sorted(names)}; give one for each"
            )
        return [weights[name] for name in names]
    if isinstance(weights, str) or not isinstance(weights, Iterable):
        raise ConfigError(
            f"weights={weights!r} must be a list of numbers, one for each query, numbers by name, or a Schedule"
        )
    return list(weights)
