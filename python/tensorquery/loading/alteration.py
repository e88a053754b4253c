"""What an alteration changes, and what it says of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorquery._util.digests import digest
from tensorquery._util.options import nearest_name
from tensorquery.errors import ConfigError
from tensorquery.sql.mixture import Mixture, mix
from tensorquery.sql.query import Query
from tensorquery.sql.schedule import Schedule, shares

__all__ = ["Alteration", "Request", "Source", "SourceRows", "key_columns", "sources_of"]


class SourceRows(NamedTuple):
    """The rows of one query of the altered result, in the epoch that is under way."""

    name: str
    """The query's name in the mixture; "0" of a single query."""
    delivered: int
    """Rows of the altered result that were delivered in this epoch; they do not come again."""
    left: int
    """Rows of the altered result that were not: they come in this epoch, each once."""
    new: int
    """Of the rows that are left, those of files (or of a query) that the result did not have before."""


@dataclass(frozen=True, repr=False)
class Alteration:
    """What an alteration did. Printing shows a line for each query.

    Attributes:
        epoch: The epoch in which it took effect.
        step: Batches of each rank in that epoch before it.
        change: What changed, in words.
        sources: The rows of each query.
    """

    epoch: int
    step: int
    change: str
    sources: tuple[SourceRows, ...]

    @property
    def delivered(self) -> int:
        """Rows of the altered result that were delivered in this epoch."""
        return sum(source.delivered for source in self.sources)

    @property
    def left(self) -> int:
        """Rows that come in this epoch, each once; with ``stop="first"`` it may end before."""
        return sum(source.left for source in self.sources)

    @property
    def new(self) -> int:
        """Of the rows that are left, those of files or queries that the result did not have before."""
        return sum(source.new for source in self.sources)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain data, ready for JSON.

        Returns:
            The attributes by name.
        """
        sources = [source._asdict() for source in self.sources]
        return {"epoch": self.epoch, "step": self.step, "change": self.change, "sources": sources}

    def __repr__(self) -> str:
        lines = [
            f"  {source.name}: {source.delivered:,} rows delivered, {source.left:,} left, {source.new:,} of them new"
            for source in self.sources
        ]
        return "\n".join(
            [f"Alteration: {self.change} from step {self.step} of epoch {self.epoch}", *lines]
        )


class Source(NamedTuple):
    """A query of a mixture, or the only one."""

    name: str
    query: Query
    origin: int | None
    """Its place before the alteration; None where it is new."""


def sources_of(query: Query | Mixture, names: Sequence[str] | None = None) -> list[Source]:
    """The queries of a result, by their names in it, or by others."""
    if isinstance(query, Query):
        return [Source(names[0] if names else "0", query, 0)]
    known = query.names if names is None else names
    return [
        Source(name, each, place)
        for place, (name, each) in enumerate(zip(known, query.queries, strict=True))
    ]


@dataclass(frozen=True)
class Request:
    """What the user asks for: see `QueryDataLoader.alter`."""

    query: Query | Mixture | None = None
    weights: Any = None
    add: Any = None
    drop: Any = None
    filters: Any = None
    refresh: bool = False
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what says nothing, or two things."""
        asked = {
            "query": self.query is not None,
            "weights": self.weights is not None,
            "add": self.add is not None,
            "drop": self.drop is not None,
            "filters": self.filters is not None,
            "refresh": self.refresh,
        }
        given = [name for name, is_given in asked.items() if is_given]
        if not given:
            raise ConfigError(
                "alter() changes nothing: give query=, weights=, add=, drop=, filters= or refresh=True"
            )
        if self.query is not None and len(given) > 1:
            raise ConfigError(
                f"query= is the whole altered query, so that {', '.join(given[1:])} does not go with it; make that part of it"
            )
        if self.query is not None and not isinstance(self.query, Query | Mixture):
            raise ConfigError(
                f"query={type(self.query).__name__} must be a Query (session.sql(…)) or a mixture (tq.mix(…))"
            )
        if isinstance(self.add, Query | str) or not isinstance(self.add, Iterable | None):
            raise ConfigError(
                "add= takes pairs of a query and its weight, [(query, 0.5), …], or such pairs by name; with weights= the queries "
                "alone"
            )
        if type(self.refresh) is not bool:
            raise ConfigError(f"refresh={self.refresh!r} must be True or False")

    def agreed(self) -> dict[str, Any]:
        """What is equal on all ranks that ask for the same: queries by digest, without the snapshots that each has found."""
        weights = (
            self.weights.to_dict() if isinstance(self.weights, Schedule) else repr(self.weights)
        )
        added = self.add.values() if isinstance(self.add, Mapping) else self.add
        return {
            "query": None if self.query is None else _digest(self.query),
            "weights": weights,
            "add": None if added is None else [_digest(each) for each in added],
            "drop": repr(self.drop),
            "filters": repr(self.filters),
            "refresh": self.refresh,
            "key": list(self.key),
        }

    def applied(
        self, old: Query | Mixture, names: Sequence[str]
    ) -> tuple[Query | Mixture, list[Source], str]:
        """The altered query, its sources, and what changed in words.

        Args:
            old: The query that is delivered.
            names: The names of its sources.
        """
        if self.query is not None:
            return self.query, _matched(self.query, old, names), "query"
        words = []
        sources = sources_of(old, names)
        if self.drop is not None:
            gone = _places(self.drop, names)
            words.append(f"drop={[names[place] for place in gone]}")
            sources = [source for source in sources if source.origin not in gone]
        if self.filters is not None:
            words.append("filters")
            sources = _filtered(sources, self.filters)
        if self.refresh:
            words.append("refresh")
            sources = [source._replace(query=_refreshed(source.query)) for source in sources]
        added, given = _added(self.add, names, self.weights is None)
        if added:
            words.append(f"add={[source.name for source in added]}")
        if self.weights is not None:
            words.append(f"weights={self.weights!r}"[:200])
        if not sources and not added:
            raise ConfigError(f"drop={self.drop!r} leaves no query; keep one, or make a new loader")
        said = ", ".join(words)
        if isinstance(old, Query) and not added and self.weights is None:
            return sources[0].query, sources, said
        return self._mixed(old, sources, added, given), [*sources, *added], said

    def _mixed(
        self,
        old: Query | Mixture,
        sources: Sequence[Source],
        added: Sequence[Source],
        given: Sequence[Any],
    ) -> Mixture:
        """The mixture of the sources that stay and of those that are added, with their weights."""
        every = [*sources, *added]
        queries, names = [source.query for source in every], [source.name for source in every]
        stop = old.stop if isinstance(old, Mixture) else "first"
        if self.weights is not None:
            mixture = Mixture(queries, [1 / len(every)] * len(every), stop, names)._weighted(
                self.weights
            )
        elif added or self.drop is not None:
            mixture = Mixture(queries, shares([*_weights_of(old, sources), *given]), stop, names)
        else:
            assert isinstance(old, Mixture)
            mixture = Mixture(queries, old.schedule or old.weights, stop, names)
        moment = old._core.moment()
        return mixture if moment is None else mixture._at_moment(moment)


def _digest(given: Any) -> Any:
    """A query, or a pair of one and its weight, as plain data without pins."""
    if isinstance(given, Query):
        return digest(given._parts_without_pins())
    if isinstance(given, Mixture):
        return [given._parts()["mixture"], [_digest(query) for query in given.queries]]
    return [_digest(each) for each in given] if isinstance(given, tuple | list) else repr(given)


def _matched(query: Query | Mixture, old: Query | Mixture, names: Sequence[str]) -> list[Source]:
    """The sources of an altered query: the same query is the same source, else the name says which it was."""
    before = sources_of(old, names)
    digests = [source.query._parts() for source in before]
    open_ = set(range(len(before)))
    found: list[Source] = []
    for source in sources_of(query):
        parts = source.query._parts()
        same = next((place for place in sorted(open_) if digests[place] == parts), None)
        if same is not None:
            open_.discard(same)
            source = source._replace(name=before[same].name, origin=same)
        else:
            source = source._replace(origin=None)
        found.append(source)
    _check_places(query, before, open_, found)
    for at, source in enumerate(found):
        named = next((place for place in open_ if before[place].name == source.name), None)
        if source.origin is None and named is not None:
            open_.discard(named)
            found[at] = source._replace(origin=named)
    if isinstance(query, Query) and found[0].origin is None and len(before) == 1:
        found[0] = found[0]._replace(name=before[0].name, origin=0)
    kept = {source.name for source in found if source.origin is not None}
    for at, source in enumerate(found):
        if source.origin is None:
            name = _free_name(source.name, {*kept, *names})
            kept.add(name)
            found[at] = source._replace(name=name)
    return found


def _check_places(
    query: Query | Mixture, before: Sequence[Source], open_: set[int], found: Sequence[Source]
) -> None:
    """Refuse queries that only their places could tell apart, where several of before read the same files."""
    if isinstance(query, Query) or query.names != [str(place) for place in range(len(query.names))]:
        return
    if not open_ or all(source.origin is not None for source in found):
        return
    of_file: dict[str, int] = {}
    for place, source in enumerate(before):
        for path, _ in source.query._core.table_files():
            if of_file.setdefault(path, place) != place and len(before) > 1:
                raise ConfigError(
                    f"several queries of the mixture read {path}, and by their places alone nothing tells which of the altered ones "
                    "is which; give names: tq.mix({'web': (query, 0.5), …}), in the loader's mixture and in the altered one"
                )


def _free_name(name: str, taken: set[str]) -> str:
    """The name, or the next number that no other source has."""
    if name not in taken:
        return name
    return next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)


def _added(given: Any, names: Sequence[str], weighed: bool) -> tuple[list[Source], list[float]]:
    """Added queries, and their weights where `weighed`."""
    if given is None:
        return [], []
    pairs = given.values() if isinstance(given, Mapping) else given
    pairs = list(pairs)
    named = dict(zip(given, pairs, strict=True)) if isinstance(given, Mapping) else pairs
    more = mix(named) if weighed else mix(named, weights=[1] * len(pairs))
    taken, found = set(names), []
    for name, query in zip(more.names, more.queries, strict=True):
        if isinstance(given, Mapping) and name in taken:
            raise ConfigError(
                f"add= has a query named {name!r}, and the mixture has one; give it another name"
            )
        free = _free_name(name, taken)
        taken.add(free)
        found.append(Source(free, query, None))
    return found, [weight for _, weight in pairs] if weighed else []


def _weights_of(old: Query | Mixture, sources: Iterable[Source]) -> list[float]:
    """The weights of sources that stay."""
    if isinstance(old, Query):
        raise ConfigError(
            "the loader delivers one query, which has no weight yet; give weights= of all queries with add="
        )
    if old.schedule is not None:
        raise ConfigError(
            "the weights of the mixture follow a Schedule, which has one for each query of before; give weights= of the "
            "altered mixture, too"
        )
    return [old.weights[source.origin] for source in sources if source.origin is not None]


def _places(given: Any, names: Sequence[str]) -> list[int]:
    """Places of sources by name or number."""
    each = [given] if isinstance(given, str | int) else given
    if not isinstance(each, Iterable):
        raise ConfigError(f"drop={given!r} must be names or numbers of queries")
    found = []
    for one in each:
        name = str(one) if isinstance(one, int) and not isinstance(one, bool) else one
        if name not in names:
            near = nearest_name(str(name), names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(
                f"there is no query {one!r} in the mixture; it has {', '.join(map(repr, names))}{hint}"
            )
        found.append(names.index(name))
    return found


def _filtered(sources: Sequence[Source], filters: Any) -> list[Source]:
    """Narrow all sources, or those that are named."""
    if not isinstance(filters, Mapping):
        return [source._replace(query=source.query.select(filters=filters)) for source in sources]
    names = [source.name for source in sources]
    _places(list(filters), names)
    return [
        source._replace(query=source.query.select(filters=filters[source.name]))
        if source.name in filters
        else source
        for source in sources
    ]


def _refreshed(query: Query) -> Query:
    """The query at the current snapshots; the user's own stays where it is."""
    moved = Query(query.session, query._core, query._narrowed)
    moved.refresh()
    return moved


def key_columns(key: Any) -> tuple[str, ...]:
    """The columns of ``key=``.

    Raises:
        ConfigError: They are no names.
    """
    given = [key] if isinstance(key, str) else [] if key is None else key
    names = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"key={key!r} must be the name of a column, or names")
    return tuple(names)
