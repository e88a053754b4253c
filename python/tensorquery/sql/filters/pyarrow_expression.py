"""Reads a `pyarrow.compute.Expression` through its own serialisation and writes it as SQL.

The serialisation is an Arrow file of one row. Its schema metadata are the tree in prefix order::

    call: or_kleene                    (a > 1) or starts_with(b, "x")
      call: greater
        field_ref: a
        literal: 0                     <- the constant is in column 0
      end: greater
      call: starts_with
        field_ref: b
        options: 1                     <- a struct in column 1
      end: starts_with
    end: or_kleene

Only functions whose SQL form is known to keep the same rows are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorquery._util.arrow_c import Field, read_schema
from tensorquery.errors import QueryError
from tensorquery.sql.filters import predicate
from tensorquery.sql.filters.predicate import Term

__all__ = ["expression_to_term", "scalar_to_term"]

_COMPARISONS = {
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
# The unchecked kinds wrap around silently on overflow, which SQL does on other widths.
_ARITHMETIC = {
    "add_checked": "+",
    "subtract_checked": "-",
    "multiply_checked": "*",
    "divide_checked": "/",
}
_TEXT_MATCHES = {
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "match_substring": "contains",
    "match_like": "LIKE",
}
_LOGIC = {"and_kleene": "AND", "or_kleene": "OR"}
_ACCEPTED = (
    "comparisons, &, |, ~, + - * /, isin, is_null, is_valid, is_nan, safe casts, starts_with, ends_with, "
    "match_substring and match_like"
)
# pyarrow's numbers for SetLookupOptions: match a null in the set, or never match a null.
_NULLS_MATCH, _NULLS_SKIP = 0, 1


@dataclass
class _Call:
    """A function whose arguments are being read."""

    name: str
    arguments: list[Term] = field(default_factory=list)
    options: int | None = None


def expression_to_term(expression: Any, columns: Mapping[str, Field] | None) -> Term:
    """Write `expression` as SQL.

    Args:
        expression: A `pyarrow.compute.Expression`.
        columns: The table's columns by name; None where they are not known.

    Raises:
        QueryError: A function, option or type has no exact SQL form, or a column is unknown.
    """
    import pyarrow as pa

    try:
        _, (buffer, *_) = expression.__reduce__()
    except pa.ArrowException as error:
        # Fields by position are the one thing that pyarrow itself does not serialise.
        raise QueryError(
            f"filters={str(expression)[:200]!r} cannot be read ({error}); name columns by pyarrow.compute.field(name)"
        ) from error
    with pa.ipc.open_file(buffer) as reader:
        constants, schema = reader.get_batch(0), reader.schema
    term = _Reader(constants, read_schema(schema), columns).read()
    if term.kind not in ("bool", "null", "unknown"):
        raise QueryError(f"filters= is {term.sql}, which is {term.kind} and not a condition")
    return predicate.combine("AND", [term])


class _Reader:
    """Walks the metadata with a stack of its own, so that a long chain of conditions cannot overflow Python's."""

    def __init__(self, constants: Any, schema: Field, columns: Mapping[str, Field] | None) -> None:
        self._constants = constants
        self._schema = schema
        self._columns = columns

    def read(self) -> Term:
        root = _Call("")
        stack = [root]
        tokens = iter(self._schema.metadata)
        for key, raw in tokens:
            value = raw.decode()
            if key == b"call":
                stack.append(_Call(value))
            elif key == b"end" and len(stack) > 1 and stack[-1].name == value:
                call = stack.pop()
                stack[-1].arguments.append(self._call(call))
            elif key == b"literal":
                stack[-1].arguments.append(scalar_to_term(self._constants.column(int(value))[0]))
            elif key == b"options":
                stack[-1].options = int(value)
            elif key == b"field_ref":
                stack[-1].arguments.append(predicate.column([value], self._columns))
            elif key == b"nested_field_ref":
                stack[-1].arguments.append(
                    predicate.column(_path(tokens, int(value)), self._columns)
                )
            else:
                raise QueryError(f"filters= has the unknown part {key!r}: {value!r}; {_hint()}")
        if len(stack) != 1 or len(root.arguments) != 1:
            raise QueryError(f"filters= is an incomplete pyarrow expression; {_hint()}")
        return root.arguments[0]

    def _call(self, call: _Call) -> Term:
        name, arguments = call.name, call.arguments
        options = self._options(call)
        if len(arguments) == 2 and not options:
            if name in _LOGIC:
                return predicate.combine(_LOGIC[name], arguments)
            if name in _COMPARISONS:
                return predicate.compare(_COMPARISONS[name], *arguments)
            if name in _ARITHMETIC:
                return predicate.arithmetic(_ARITHMETIC[name], *arguments)
        if len(arguments) == 1:
            term = self._unary(name, arguments[0], options, call)
            if term is not None:
                return term
        shown = f" with {options}" if options else ""
        raise QueryError(
            f"filters= uses the pyarrow function {name!r}{shown}, which has no exact SQL form here; {_hint()}"
        )

    def _unary(self, name: str, term: Term, options: dict[str, Any], call: _Call) -> Term | None:
        """A function of one argument, or None where it is not known with these options."""
        names = set(options)
        if not options:
            known = {
                "invert": predicate.negation,
                "is_nan": predicate.is_nan,
                "is_valid": predicate.is_valid,
            }
            return known[name](term) if name in known else None
        if name == "is_null" and names == {"nan_is_null"}:
            return predicate.is_null(term, nan_is_null=options["nan_is_null"].as_py())
        elif name == "is_in" and names == {"value_set", "null_matching_behavior"}:
            nulls = options["null_matching_behavior"].as_py()
            if nulls in (_NULLS_MATCH, _NULLS_SKIP):
                values = [scalar_to_term(value) for value in options["value_set"].values]
                return predicate.is_in(term, values, skip_nulls=nulls == _NULLS_SKIP)
        elif name in _TEXT_MATCHES and names == {"pattern", "ignore_case"}:
            pattern = options["pattern"].as_py()
            if not options["ignore_case"].as_py() and isinstance(pattern, str):
                return predicate.text_match(_TEXT_MATCHES[name], term, pattern)
        elif name == "cast" and "to_type" in names:
            return self._cast(term, options, call)
        return None

    def _cast(self, term: Term, options: dict[str, Any], call: _Call) -> Term | None:
        allowances = {name: value for name, value in options.items() if name != "to_type"}
        # A cast that may truncate does so by pyarrow's rules, which are not SQL's.
        if not all(name.startswith("allow_") and not v.as_py() for name, v in allowances.items()):
            return None
        struct = self._schema.children[call.options] if call.options is not None else None
        target = struct.child("to_type") if struct is not None else None
        return predicate.cast(term, target.format) if target is not None else None

    def _options(self, call: _Call) -> dict[str, Any]:
        """The call's options by name, without the name of their class."""
        if call.options is None:
            return {}
        struct = self._constants.column(call.options)[0]
        return {name: value for name, value in struct.items() if name != "_type_name"}


def scalar_to_term(scalar: Any) -> Term:
    """A literal of a `pyarrow.Scalar`, of its exact type."""
    import pyarrow as pa

    if isinstance(scalar, pa.ExtensionScalar):
        scalar = scalar.value
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if not scalar.is_valid:
        return predicate.literal("n", None)
    # Dates and times as Arrow stores them: Python's own have no nanoseconds.
    stored = getattr(scalar, "value", None)
    value = stored if isinstance(stored, int) else scalar.as_py()
    format = read_schema(scalar.type).format
    if predicate.kind_of(format) == "date" and not isinstance(stored, int):
        raise QueryError(f"filters= holds the constant {scalar!r}, which cannot be read; {_hint()}")
    return predicate.literal(format, value)


def _path(tokens: Iterator[tuple[bytes, bytes]], length: int) -> list[str]:
    """The names of a nested field, one token each."""
    names = []
    for _ in range(length):
        key, value = next(tokens, (b"", b""))
        if key != b"field_ref":
            raise QueryError(f"filters= names a nested field by {key!r}, not by name; {_hint()}")
        names.append(value.decode())
    return names


def _hint() -> str:
    return f'accepted are {_ACCEPTED}; for anything else give SQL, for example filters="abs(a) > 1"'
