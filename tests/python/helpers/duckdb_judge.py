"""Small tables in a session, and the sorted rows of one statement over them, here and in DuckDB."""

import duckdb
import pyarrow.parquet as pq

import tensorquery as tq


def rows(session, sql):
    return sorted((tuple(row.values()) for row in session.sql(sql).to_arrow().to_pylist()), key=str)


def by_duckdb(sql, **tables):
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return sorted(connection.sql(sql).fetchall(), key=str)


def session_of(folder, tables, in_memory=False, **options):
    """The tables in memory, or as Parquet with row groups of three rows."""
    session = tq.Session(**options)
    for name, table in tables.items():
        if in_memory:
            session.register_table(name, table)
        else:
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
            session.register_parquet(name, folder / f"{name}.parquet")
    return session
