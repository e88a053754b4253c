"""Counts the outcomes of queries, and writes them down."""

from collections import Counter, defaultdict

OUTCOMES = ("same", "refused", "dialect", "wrong", "crash")
_EXAMPLES = 3


class Report:
    """The outcomes of all queries of a run."""

    def __init__(self):
        self.counts = Counter()
        self.by_suite = defaultdict(Counter)
        self.reasons = {"refused": Counter(), "dialect": Counter()}
        self.examples = defaultdict(list)
        self.bad, self.notes = [], []
        self.files = 0

    def add(self, path, suite, outcomes, notes):
        """Take in the outcomes of one file."""
        self.files += 1
        self.notes += [f"{path}: {note}" for note in notes]
        for one in outcomes:
            self.counts[one.outcome] += 1
            self.by_suite[suite][one.outcome] += 1
            if one.outcome in self.reasons:
                self.reasons[one.outcome][one.reason] += 1
                examples = self.examples[one.outcome, one.reason]
                if len(examples) < _EXAMPLES:
                    examples.append(one)
            elif one.outcome != "same":
                self.bad.append(one)

    @property
    def failed(self):
        """True where a row is wrong, or where something crashed or was not answered in time."""
        return bool(self.counts["wrong"] or self.counts["crash"])

    def summary(self):
        """One line."""
        answered = sum(self.counts[one] for one in OUTCOMES if one != "dialect")
        refused = self.counts["refused"] / answered if answered else 0
        counts = ", ".join(f"{self.counts[one]} {one}" for one in OUTCOMES)
        return f"{self.files} files, {sum(self.counts.values())} queries: {counts}; {refused:.2%} refused of {answered} that both engines have"

    def text(self, head):
        """All of it as Markdown."""
        lines = ["# sqllogictest", "", *head, "", self.summary(), ""]
        lines += ["| suite | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (len(OUTCOMES) + 1)]
        for suite, counts in sorted(self.by_suite.items()):
            lines.append(f"| {suite} | " + " | ".join(str(counts[one]) for one in OUTCOMES) + " |")
        lines += ["", "## Wrong, or crashed", ""]
        for one in sorted(self.bad, key=lambda one: (one.outcome != "wrong", one.file, one.line)):
            lines += [f"### {one.file}:{one.line}: {one.outcome}", "", one.reason, ""]
            lines += ["```sql", one.sql, "```", ""]
            if one.outcome == "wrong":
                lines += ["got", "```text", one.got, "```", "want", "```text", one.want, "```", ""]
        if not self.bad:
            lines += ["Nothing.", ""]
        for kind, title in (("refused", "Refused"), ("dialect", "Dialect")):
            lines += [f"## {title}, by reason", ""]
            for reason, count in self.reasons[kind].most_common():
                lines.append(f"- {count}: {reason}")
                for one in self.examples[kind, reason]:
                    sql = " ".join(one.sql.split())[:300]
                    lines.append(f"  - {one.file}:{one.line}" + (f": `{sql}`" if sql else ""))
            lines.append("")
        if self.notes:
            lines += ["## Not run", "", *(f"- {note}" for note in self.notes), ""]
        return "\n".join(lines)
