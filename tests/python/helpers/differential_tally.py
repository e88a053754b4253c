"""The counts of the differential tests: statements answered alike, refused, left unjudged, and answered differently."""

import re
from collections import Counter
from dataclasses import dataclass, field

import tensorquery as tq

REFUSALS = (
    tq.QueryError,
    tq.NotShardableError,
    tq.UnsupportedTypeError,
    tq.ConfigError,
    tq.DataError,
)

NO_REFUSAL = re.compile(
    r"internal|panic|damaged|corrupt|\bbug\b|unreachable|Ident \{|Span|the engine cannot answer",
    re.IGNORECASE,
)
"""Words of an error that blames no query: it counts as a difference, whatever its class."""

OF_VALUES = re.compile(
    r"overflow|divi|out of range|beyond|does not fit|range of|memory|more than one row",
    re.IGNORECASE,
)
"""Words that an error about data may have though the data are sound."""


def reason_of(error):
    """The first sentence of an error, without the names and numbers in it."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "…", str(error))
    text = re.sub(r"-?\b\d[\d.]*\b|\b[a-z0-9]+_\d+\b", "…", text)
    text = re.split(r"(?<=[a-z…)])[.;:](?:\s|$)", text.replace("\n", " "))[0]
    return f"{type(error).__name__}: {text[:140]}"


@dataclass
class Tally:
    """Counters that can be added.

    Attributes:
        asked: Queries that were compared, by kind: one statement over one source.
        sources: Of these, by source.
        refused: Queries that were refused by name, by kind and reason.
        judges: Statements that each judge answered.
        unjudged: Statements that the judge had no word for, by reason; nobody was asked.
        differences: What differed, as text.
    """

    asked: Counter = field(default_factory=Counter)
    sources: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    judges: Counter = field(default_factory=Counter)
    unjudged: Counter = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def compared(self):
        """All queries that were compared."""
        return sum(self.asked.values())

    def __iadd__(self, other):
        for name, value in vars(other).items():
            if name == "differences":
                self.differences.extend(value)
            else:
                getattr(self, name).update(value)
        return self

    def same(self, kind, source):
        """Count a query that was compared."""
        self.asked[kind] += 1
        self.sources[source] += 1

    def is_refusal(self, error, kind, source):
        """Whether an error refuses a query by name; then it is counted."""
        if not isinstance(error, REFUSALS) or NO_REFUSAL.search(str(error)):
            return False
        if isinstance(error, tq.DataError) and not OF_VALUES.search(str(error)):
            return False
        self.refused[f"{kind}: {reason_of(error)}"] += 1
        return True

    def plain(self):
        """The tally as plain data for JSON."""
        return dict(vars(self))

    @classmethod
    def of(cls, plain):
        """The tally that `plain` gave."""
        made = cls()
        made += cls(**{k: v if k == "differences" else Counter(v) for k, v in plain.items()})
        return made

    def report(self):
        """All counters as lines: a kind that is refused as a whole is seen here."""
        by_kind = Counter()
        for text, count in self.refused.items():
            by_kind[text.split(":")[0]] += count
        lines = ["", f"{'kind':16}{'compared':>10}{'refused':>10}"]
        for kind in sorted({*self.asked, *by_kind}):
            lines.append(f"{kind:16}{self.asked[kind]:>10}{by_kind[kind]:>10}")
        lines += ["", "sources:"]
        lines += [f"{count:>8} {name}" for name, count in sorted(self.sources.items())]
        lines += ["", "judges: " + ", ".join(f"{n} {c}" for n, c in self.judges.most_common())]
        lines += ["", "refused, most often:"]
        lines += [f"{count:>8} {text}" for text, count in self.refused.most_common(40)]
        if self.unjudged:
            lines += ["", "not asked, since the judge has no word:"]
            lines += [f"{count:>8} {text}" for text, count in self.unjudged.most_common(20)]
        for difference in self.differences:
            lines += ["", difference]
        total = sum(by_kind.values())
        lines += [
            "",
            f"{self.compared} queries compared, {total} refused by name, {len(self.differences)} differences",
        ]
        return "\n".join(lines)
