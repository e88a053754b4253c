"""A loader that answers wrongly on purpose where a query says so: the runner has to find each."""

import os
import time

from .product import Product


class Planted(Product):
    """Wrong where a query names `lost`, `twice`, `backwards`, `raises`, `dies` or `hangs`."""

    def ask(self, sql):
        """Loses the last row, gives the rows from the last to the first, fails, ends its process, or does not end."""
        if "dies" in sql:
            os.abort()
        if "hangs" in sql:
            time.sleep(1000)
        if "raises" in sql:
            raise RuntimeError("planted")
        names, rows = super().ask(sql)
        if "lost" in sql:
            rows = rows[:-1]
        return names, rows[::-1] if "backwards" in sql else rows

    def load(self, sql):
        """Delivers a row on both ranks."""
        rows = super().load(sql)
        return rows + rows[:1] if "twice" in sql else rows
