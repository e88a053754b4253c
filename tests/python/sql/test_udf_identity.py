"""Promise: the identity of a Python function in SQL is its code: equal in every process and place, and another one
if anything that it uses changes."""

import functools
import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import support
from tensorquery.sql import functions

_DIGEST = """
import sys
sys.path[:0] = {path!r}
import functools
import numpy as np
import pyarrow as pa, pyarrow.compute as pc
import tensorquery as tq

LIMIT = {limit}
WORDS = frozenset({{"a", "b", "c", "d"}})

def helper(x):
    return pc.add(x, {helper})

def make(offset, table):
    def f(x, k={default}):
        inner = lambda y: pc.multiply(y, {inner})
        words = {{"x", "y", "z"}} | WORDS
        return helper(pc.add(inner(x), offset + k + LIMIT + len(words) + len(table)))
    return f

class Model:
    def __init__(self):
        self.weights = np.arange(4) * {weight}

    def __call__(self, x):
        return pc.multiply(x, int(self.weights[1]))

f = {wrap}
session = tq.Session()
session.register_parquet("t", {folder!r})
session.register_udf("f", f, ["int64"], "{output}")
session.register_udf("g", Model(), ["int64"], "int64")
query = session.sql("SELECT f(g(id)) AS y FROM t")
_, dataset = tq.create_dataloader(query, rank=0, world_size=1)
state = dataset.state_dict()
print(state["fingerprint"], state["parts"]["functions"]["f"], state["parts"]["functions"]["g"])
"""
_PLAIN = {
    "limit": 3,
    "helper": 1,
    "default": 2,
    "inner": 5,
    "weight": 1,
    "output": "int64",
    "wrap": 'make(7, {"a": [1, 2], "b": (3.5, None)})',
}
_CHANGES = {
    "constant of the module": {"limit": 4},
    "helper": {"helper": 2},
    "default": {"default": 3},
    "lambda inside": {"inner": 6},
    "closure": {"wrap": 'make(8, {"a": [1, 2], "b": (3.5, None)})'},
    "closed over table": {"wrap": 'make(7, {"a": [1, 3], "b": (3.5, None)})'},
    "partial": {"wrap": "functools.partial(make(7, {}), k=4)"},
    "type": {"output": "int32"},
    "weights": {"weight": 2},
}


def identities_of(folder, tmp_path, seed, *changes):
    """The outputs of the script, once per change, all run in one fresh process."""
    scripts = []
    for number, change in enumerate(changes):
        scripts.append(str(tmp_path / f"{seed}-{number}.py"))
        text = _DIGEST.format(path=sys.path, folder=folder, **{**_PLAIN, **change})
        (tmp_path / scripts[-1]).write_text(text)
    run_all = (
        "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"
    )
    done = subprocess.run(
        [sys.executable, "-c", run_all, *scripts],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_fresh_processes_and_changes_with_the_function(tmp_path):
    table = pa.table({"id": pa.array(range(240), pa.int64())})
    folder = support.write_parquet(tmp_path / "t", table)
    plain, *changed = identities_of(folder, tmp_path, "1", {}, *_CHANGES.values())
    assert identities_of(folder, tmp_path, "2", {}) == [plain]
    for name, (_, f, g) in zip(_CHANGES, changed, strict=True):
        assert (f == plain[1]) is (name == "weights"), name
        assert (g == plain[2]) is (name != "weights"), name
    assert len({fingerprint for fingerprint, *_ in [plain, *changed]}) == 1 + len(_CHANGES)


def test_a_digest_follows_the_meaning_and_not_the_place():
    def digest(fn, **options):
        return functions.Function("f", fn, ["int64"], "int64", **options).digest

    def one(x):
        return pc.add(x, 1)

    first = digest(one)

    def one(x):
        # An equal function with another text.
        return pc.add(x, 1)

    assert digest(one) == first
    assert digest(one, volatility="stable") != first
    assert digest(lambda x: pc.subtract(x, 1)) != first
    assert functions.Function("g", one, ["int64"], "int64").digest != first
    again = pickle.loads(pickle.dumps(functions.Function("f", one, ["int64"], "int64")))
    assert again.digest == first
    # State that a function gains while it runs is no part of the identity it was registered with.
    assert digest(pc.add) == digest(pc.add) != digest(pc.subtract)


_WRITTEN = {
    "a method": "class Fn:\n  def __call__(self, x): return pc.add(x, {n})\nfn = Fn()",
    "a method of the base class": "class Base:\n  def __call__(self, x): return pc.add(x, {n})\nclass Fn(Base): pass\nfn = Fn()",
    "a static method": "class Fn:\n  @staticmethod\n  def of(x): return pc.add(x, {n})\n  def __call__(self, x): return self.of(x)\nfn = Fn()",
    "a class method": "class Fn:\n  @classmethod\n  def of(cls, x): return pc.add(x, {n})\nfn = Fn.of",
    "a property": "class Fn:\n  @property\n  def n(self): return {n}\n  def __call__(self, x): return pc.add(x, self.n)\nfn = Fn()",
    "an attribute of the class": "class Fn:\n  n = {n}\n  def __call__(self, x): return pc.add(x, self.n)\nfn = Fn()",
    "a class that is named": "class Of:\n  n = {n}\ndef fn(x): return pc.add(x, Of.n)",
    "a helper": "def of(x): return pc.add(x, {n})\ndef fn(x): return of(x)",
    "a helper with a cache": "@functools.lru_cache\ndef of(): return {n}\ndef fn(x): return pc.add(x, of())",
    "a helper made of another": "of = functools.partial(pc.add, {n})\ndef fn(x): return of(x)",
}  # fmt: skip


@pytest.mark.parametrize("what", _WRITTEN)
def test_a_digest_sees_what_a_function_uses_of_its_own_module(what):
    def digest(number):
        module = {"__name__": "written", "pc": pc, "functools": functools}
        exec(_WRITTEN[what].format(n=number), module)
        return functions.Function("f", module["fn"], ["int64"], "int64").digest

    assert digest(1) == digest(1) != digest(2)


def test_functions_that_close_over_data_differ_by_it():
    def closing_over(value):
        return functions.Function("f", lambda x: (x, value)[0], ["int64"], "int64").digest

    pairs = [
        (pa.array([1, 2]), pa.array([1, 3])),
        (np.arange(3), np.arange(3) + 1),
        ({"a", "b"}, {"a", "c"}),
        ([1, [2]], [1, [3]]),
        (b"a", b"b"),
        (1, True),
        (1.0, 1),
        (pa.scalar(3), pa.scalar(4)),
        (np.float32(1), np.float32(2)),
    ]
    import datetime
    import decimal
    import re

    pairs += [
        (re.compile("a"), re.compile("b")),
        (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
        (decimal.Decimal("1.0"), decimal.Decimal("1.1")),
    ]
    for one, other in pairs:
        assert closing_over(one) == closing_over(one), one
        assert closing_over(one) != closing_over(other), (one, other)
    endless = []
    endless.append(endless)
    assert closing_over(endless) == closing_over(endless)
