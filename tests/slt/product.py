"""The loader under test: a session over Parquet files, asked through `to_arrow()` and through the loaders of two ranks."""

import shutil
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import tensorquery as tq

from .values import rows_of

RANKS = 2


class Product:
    """Sessions over the tables of one file of a suite.

    Args:
        folder: For the Parquet files and the stages; emptied by `close`.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.number = 0
        self.paths, self.problems = {}, {}
        self.views = {}
        self.session = None

    def put(self, name, table):
        """Replace the table of this name. Old files stay: a plan may still name them."""
        self.number += 1
        place = self.folder / f"{self.number}-{zlib.crc32(name.encode())}"
        write(table, place)
        self.paths[name] = str(place)
        self.session = None

    def drop(self, name):
        """Drop a table."""
        if self.paths.pop(name, None):
            self.session = None

    def set_views(self, views):
        """Replace all views."""
        if views != self.views:
            self.views = dict(views)
            self.session = None

    def _open(self):
        if self.session is None:
            self.session = tq.Session()
            self.problems = {}
            for name, path in self.paths.items():
                self.session.register_parquet(name, path)
            waiting = dict(self.views)
            # A view may read another one: those that fail are tried again while any succeeds.
            while waiting:
                done = [name for name in waiting if self._view(name, waiting[name])]
                if not done:
                    break
                waiting = {name: sql for name, sql in waiting.items() if name not in done}
        return self.session

    def _view(self, name, sql):
        try:
            self.session.register_view(name, sql)
        except tq.TensorQueryError as error:
            self.problems[name] = error
            return False
        self.problems.pop(name, None)
        return True

    def problem(self, names):
        """The error of a view that the judge has and the loader refused, if it is among these names, or None."""
        self._open()
        return next((error for name, error in self.problems.items() if name.lower() in names), None)

    def ask(self, sql):
        """The names and rows of `to_arrow()`."""
        table = self._open().sql(sql).to_arrow()
        return table.column_names, rows_of(table)

    def load(self, sql):
        """The rows that the loaders of all ranks deliver together."""
        query = self._open().sql(sql)
        stages = self.folder / "stages"
        rows = []
        for rank in range(RANKS):
            loader, _ = tq.create_dataloader(
                query,
                rank=rank,
                world_size=RANKS,
                batch_size=7,
                remainder="uneven",
                output_format="arrow",
                stage_dir=stages,
            )
            batches = list(loader)
            if batches:
                rows += rows_of(pa.Table.from_batches(batches))
        shutil.rmtree(stages, ignore_errors=True)
        return rows

    def close(self):
        """Remove the files."""
        self.session = None
        shutil.rmtree(self.folder, ignore_errors=True)


def write(table, folder):
    """Write a table as Parquet: one or two files of row groups of a few rows, so that filters and limits have something to prune."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table.num_rows
    # A table of thousands of rows gets larger groups: a file of 30,000 of them is another test.
    group = max(2, rows // 40)
    cut = rows * 2 // 3 if rows > 3 else rows
    for number, part in enumerate([table.slice(0, cut), table.slice(cut)]):
        if part.num_rows or number == 0:
            pq.write_table(
                part,
                folder / f"{number}.parquet",
                row_group_size=group,
                write_page_index=True,
                data_page_version="2.0" if number else "1.0",
            )
