"""How the differential tests ask a query: as one table, with `head`, or through loaders of all ranks; and what each owes."""

import decimal
import math
from collections import Counter

import numpy as np
import pyarrow as pa

import tensorquery as tq
from answers import assert_same_answer


def ask(session, statement, expected, topology, stages, rng):
    """Ask a statement, and compare.

    Args:
        session: What has the tables.
        statement: A `Statement`.
        expected: The judge's answer; of `some_of`, what it is part of.
        topology: How it is loaded; None asks for a table.
        stages: A folder for stages.
        rng: What further choices follow from.

    Raises:
        AssertionError: What came is not what was expected.
    """
    query = session.sql(statement.sql)
    if statement.head is not None:
        assert_some_of(query.head(statement.head), expected, statement)
        return
    if topology is None:
        chosen = query.select(filters=statement.filters) if statement.filters else query
        delivered = chosen.to_arrow()
        if statement.some_of:
            assert_some_of(delivered, expected, statement)
        else:
            assert_same_answer(delivered, expected)
        return
    load_and_judge(query, statement, expected, topology, stages, rng)


def assert_some_of(delivered, expected, statement):
    """Assert as many rows as LIMIT and OFFSET leave, each of them a row of the whole, and none more often than there."""
    wanted = max(0, min(statement.most, expected.num_rows - statement.skipped))
    assert delivered.num_rows == wanted, (
        f"{delivered.num_rows} rows, where {wanted} of {expected.num_rows} are asked for"
    )
    surplus = multiset(delivered) - multiset(expected)
    assert not surplus, f"rows that are not the query's: {list(surplus)[:3]}"


def load_and_judge(query, statement, expected, topology, stages, rng):
    """Load a query at a topology, and compare."""
    if not all(has_tensor(kind) for kind in query.schema.types):
        topology.output = "arrow"
    rows, world = expected.num_rows, topology.world_size
    if statement.some_of:
        rows = max(0, min(statement.most, rows - statement.skipped))
        topology.remainder = "uneven"
    steps = math.ceil(math.ceil(rows / world) / topology.options["batch_size"])
    if rows == 0 or (topology.remainder == "even" and rows // world < steps):
        # No rank may be without a row at a step.
        topology.remainder = "uneven"
    may_be_parted = topology.remainder != "uneven" and "split_strategy" in topology.options
    if may_be_parted and rng.random() < 0.15:
        topology.options |= {"partitions": world, "split_strategy": "lpt"}
    ranks = [load(query, rank, topology, statement.filters, stages) for rank in range(world)]
    schema = query.schema
    # Of an aggregate the schema may say that a column has no nulls, and its batches not.
    tables = [pa.Table.from_batches(rank) if rank else schema.empty_table() for rank in ranks]
    delivered = pa.concat_tables(tables, promote_options="default")
    if statement.some_of:
        assert_some_of(delivered, expected, statement)
    else:
        judge(delivered, ranks, expected, topology)


def has_tensor(kind):
    """Whether a type survives the way to a tensor and back."""
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.tz is None)
        or (types.is_decimal(kind) and kind.precision <= 18)
    )


def load(query, rank, topology, filters, stages):
    """The batches of one rank, as Arrow."""
    options = {} if topology.output == "arrow" else {"nulls": "mask", "decimal": "int64"}
    loader, _ = tq.create_dataloader(
        query,
        filters=filters,
        rank=rank,
        world_size=topology.world_size,
        remainder=topology.remainder,
        output_format=topology.output,
        stage_dir=stages,
        **topology.options,
        **options,
    )
    if topology.output == "arrow":
        return list(loader)
    return [from_tensors(batch, query.schema) for batch in loader]


def judge(delivered, ranks, expected, topology):
    """Assert the promises of each way to end an epoch."""
    size, world = topology.options["batch_size"], topology.world_size
    if topology.remainder in ("even", "uneven"):
        assert_same_answer(delivered, expected)
    if topology.remainder != "uneven":
        steps = {len(rank) for rank in ranks}
        assert len(steps) == 1, f"ranks take {steps} steps"
    if topology.remainder in ("drop", "pad"):
        full = {batch.num_rows for rank in ranks for batch in rank}
        assert full <= {size}, f"batches of {full} rows"
        rows = expected.num_rows
        wanted = rows // (size * world) * size * world
        if topology.remainder == "pad":
            wanted = -(-rows // (size * world)) * size * world
        assert delivered.num_rows == wanted, f"{delivered.num_rows} rows, expected {wanted}"
        more, less = (delivered, expected) if topology.remainder == "pad" else (expected, delivered)
        assert differs_only_by_repeats(more, less, of=expected), (
            f"{topology.remainder}: rows that are not the query's, or too few of them"
        )


def differs_only_by_repeats(more, less, of):
    """Whether `more` holds each row of `less` as often, and no row that is not one of `of`."""
    more, less, of = (multiset(table) for table in (more, less, of))
    return not less - more and set(more) <= set(of)


def multiset(table):
    """Rows by their text, which ignores widths of integers and units of time."""
    return Counter(repr([plain(value) for value in row.values()]) for row in table.to_pylist())


def plain(value):
    """A value as all engines write it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, decimal.Decimal | int | float):
        # Averages of two engines differ in the last digits.
        return float(f"{float(value):.12g}")
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if hasattr(value, "astimezone") and value.tzinfo is not None:
        return value.timestamp()
    if hasattr(value, "isoformat"):
        return value.isoformat().removesuffix("T00:00:00")
    return value


def from_tensors(batch, schema):
    """Tensors and masks as Arrow, without rounding."""
    arrays = []
    for column in schema:
        values, mask = batch[column.name], batch.get(f"{column.name}_mask")
        missing = None if mask is None else ~np.asarray(mask)
        if isinstance(values, list):
            array = pa.array(values, column.type, mask=missing)
        elif pa.types.is_decimal(column.type):
            unscaled = np.asarray(values).tolist()
            exact = [decimal.Decimal(value).scaleb(-column.type.scale) for value in unscaled]
            array = pa.array(exact, column.type, mask=missing)
        else:
            array = pa.array(np.asarray(values), mask=missing)
            if pa.types.is_date32(column.type):
                array = array.cast(pa.int32())
            array = array.cast(column.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
