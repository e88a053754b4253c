"""Class balancing: epochs whose rows are drawn by the weights in a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorquery import _core
from tensorquery._util.options import MOST_SAMPLES, check_bool, check_positive_int
from tensorquery.errors import ConfigError

__all__ = ["Weighing", "weighing_of"]


@dataclass(frozen=True)
class Weighing:
    """How the rows of an epoch are drawn.

    Attributes:
        column: The output column of the weights.
        replacement: Whether a row may be drawn again.
        num_samples: Rows of an epoch; None: as many as the query has.
    """

    column: str
    replacement: bool
    num_samples: int | None

    def apply(self, stage: _core.Stage) -> _core.Stage:
        """The stage, from which rows are drawn like this.

        Raises:
            ConfigError: More rows are wanted without replacement than have a weight above 0.
            DataError: A weight is null, negative or not finite, or all are 0; names the column and the value.
        """
        return stage.weighed(self.column, self.replacement, self.num_samples)

    def to_list(self) -> list[Any]:
        """Plain data, for a state."""
        return [self.column, self.replacement, self.num_samples]


def weighing_of(
    sample_weight: str | None, sample_replacement: bool, num_samples: int | None
) -> Weighing | None:
    """Check three options of a loader together.

    Raises:
        ConfigError: One of them is malformed, or stands there without `sample_weight`.
    """
    check_bool("sample_replacement", sample_replacement)
    if num_samples is not None:
        num_samples = check_positive_int("num_samples", num_samples, MOST_SAMPLES)
    if sample_weight is None:
        given = {
            "sample_replacement=False": not sample_replacement,
            f"num_samples={num_samples}": num_samples is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"{name} goes with sample_weight=, the column by which rows are drawn; for a share of all rows write "
                    "FROM t TABLESAMPLE BERNOULLI (10) REPEATABLE (7)"
                )
        return None
    if not isinstance(sample_weight, str):
        raise ConfigError(
            f"sample_weight={sample_weight!r} must be the name of an output column of the query; compute weights in SQL: "
            "SELECT *, 1.0 / n AS w FROM …"
        )
    return Weighing(sample_weight, sample_replacement, num_samples)
