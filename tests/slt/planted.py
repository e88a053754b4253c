"""Loaders that answer wrongly on purpose: the runner has to find each."""

import os
import time

from .product import Product


class LosesARow(Product):
    """Leaves out a row of `to_arrow()` where a query names `lost`."""

    def ask(self, sql):
        names, rows = super().ask(sql)
        return names, rows[:-1] if "lost" in sql else rows


class LosesARank(Product):
    """Delivers a row twice through loaders where a query names `twice`."""

    def load(self, sql):
        rows = super().load(sql)
        return rows + rows[:1] if "twice" in sql else rows


class Reverses(Product):
    """Gives the rows of `to_arrow()` from the last to the first."""

    def ask(self, sql):
        names, rows = super().ask(sql)
        return names, rows[::-1]


class Dies(Product):
    """Ends its process where a query names `dies`, and does not end where it names `hangs`."""

    def ask(self, sql):
        if "dies" in sql:
            os.abort()
        if "hangs" in sql:
            time.sleep(1000)
        return super().ask(sql)
