"""Promise: loaders call a Python function in SQL in the process that reads the rows, resume with it, and stop while
it runs."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import support
import tensorquery as tq
import torchless
import udf_functions
from effort import METHODS
from tensorquery.sql import functions
from udf_tables import ROWS, TABLE, delivered, rows, session_over


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return support.write_parquet(tmp_path_factory.mktemp("udf"), TABLE, files=3, row_group=20)


@pytest.fixture
def session(folder):
    return session_over(folder)


def identity(array):
    return array


# ------------------------------------------------------------------------------------------------
# Loaders: in this process and in workers.

WORKERS = [{"num_workers": 0}] + [
    {"num_workers": 2, "multiprocessing_context": context} for context in METHODS
]


def name_of(options):
    return options.get("multiprocessing_context", "in process")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "table"),
    [(WORKERS[0], "t"), (WORKERS[0], "m"), (WORKERS[1], "m"), *((each, "v") for each in WORKERS)],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_each_row_once_over_ranks_and_workers(session, options, table):
    offset = 1000
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    # A closure, and one that names a function of this module.
    session.register_udf("shift", lambda x: identity(pc.add(x, offset)), ["int64"], "int64")
    session.register_view("v", "SELECT *, twice(id) AS unused FROM t")
    sql = f"SELECT shift(twice(id)) AS y FROM {table} WHERE twice(id) % 6 <> 0"
    expected = Counter(2 * i + offset for i in range(ROWS) if i % 3)
    for world_size in (1, 3) if options["num_workers"] else (1, 2, 3):
        found = Counter()
        for rank in range(world_size):
            found.update(
                delivered(session, sql, rank=rank, world_size=world_size, shuffle=True, **options)
            )
        assert found == expected, world_size


def test_rows_come_in_file_order(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    assert delivered(session, "SELECT twice(id) AS y FROM t") == [2 * i for i in range(ROWS)]


def test_a_function_in_a_join_condition_of_a_loader(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    sql = "SELECT a.id AS y FROM t a JOIN m b ON twice(a.small) = b.id"
    assert sorted(delivered(session, sql)) == list(range(ROWS))


def test_what_is_importable_needs_no_cloudpickle(session, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    again = pickle.loads(
        pickle.dumps(functions.Function("f", udf_functions.twice, ["int64"], "int64"))
    )
    assert again._fn is udf_functions.twice
    with pytest.raises(ImportError, match=r"the function f .*pip install 'tensorquery\[udf\]'"):
        pickle.dumps(functions.Function("f", lambda x: x, ["int64"], "int64"))


def test_what_no_pickle_takes_is_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    with pytest.raises(tq.ConfigError, match="the function f cannot be sent .*lock"):
        pickle.dumps(functions.Function("f", locked, ["int64"], "int64"))


_MAIN = """
import sys
sys.path[:0] = {path!r}
import pyarrow.compute as pc
import tensorquery as tq

OFFSET = 5

class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return pc.multiply(x, self.factor)

if __name__ == "__main__":
    def plus(x):
        return pc.add(x, OFFSET)

    session = tq.Session()
    session.register_parquet("t", {folder!r})
    session.register_udf("plus", plus, ["int64"], "int64")
    session.register_udf("scale", Scale(3), ["int64"], "int64")
    loader, _ = tq.create_dataloader(
        "SELECT plus(scale(id)) AS y FROM t", session=session, num_workers=2, batch_size=50,
        multiprocessing_context={context!r})
    print(sum(int(batch["y"].sum()) for batch in loader))
"""


def run(script, **options):
    return subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_functions_of_the_script_reach_its_workers(tmp_path, folder, context):
    script = tmp_path / "train.py"
    script.write_text(_MAIN.format(path=sys.path, folder=folder, context=context))
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(sum(3 * i + 5 for i in range(ROWS)))]


# ------------------------------------------------------------------------------------------------
# Checkpoints.


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_where_it_was(session, workers):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    options = {"rank": 0, "world_size": 1, "shuffle": True, "num_workers": workers}
    sql = "SELECT twice(id) AS y FROM t WHERE twice(id) > 20"
    whole = delivered(session, sql, **options)

    def loader_of():
        loader, _ = tq.create_dataloader(
            sql, session=session, batch_size=13, split_rows=20, output_format="dict", **options
        )
        return loader

    loader = loader_of()
    iterator = iter(loader)
    found = [value for _ in range(4) for value in next(iterator)["y"]]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    again = loader_of()
    again.load_state_dict(state)
    found += [value for batch in again for value in batch["y"]]
    assert found == whole


def test_a_state_of_another_function_is_refused_by_its_name(session):
    def state_of(fn, name="f"):
        session.register_udf(name, fn, ["int64"], "int64")
        loader, _ = tq.create_dataloader(f"SELECT {name}(id) AS y FROM t", session=session)
        return loader, loader.state_dict()

    _, state = state_of(lambda x: pc.add(x, 1))
    other, _ = state_of(lambda x: pc.add(x, 2))
    with pytest.raises(tq.CheckpointMismatchError, match="the Python function f"):
        other.load_state_dict(state)
    same, _ = state_of(lambda x: pc.add(x, 1))
    same.load_state_dict(state)
    # A state of a query without functions says nothing of them.
    plain, _ = tq.create_dataloader("SELECT id FROM t", session=session)
    assert "functions" not in plain.state_dict()["parts"]


def test_a_plan_cache_is_not_that_of_another_function(folder, tmp_path):
    def read(fn):
        session = tq.Session(plan_cache=tmp_path / "plans")
        session.register_parquet("t", folder)
        session.register_udf("f", fn, ["int64"], "int64")
        return sorted(delivered(session, "SELECT f(id) AS y FROM t WHERE f(id) > 10"))

    expected = list(range(11, ROWS))
    assert read(lambda x: x) == expected
    assert read(lambda x: x) == expected
    assert read(lambda x: pc.add(x, 1)) == [11, *[i + 1 for i in expected]]


# ------------------------------------------------------------------------------------------------
# Threads, the GIL, and the end.


def test_a_consumer_that_holds_the_gil_does_not_wait_for_itself(session):
    # `ctypes.PyDLL` calls keep the GIL, as some Arrow libraries do while they fetch.
    import ctypes

    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    capsule = session.sql("SELECT twice(id) AS y FROM t").__arrow_c_stream__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    class Stream(ctypes.Structure):
        _fields_ = [
            ("get_schema", ctypes.c_void_p),
            ("get_next", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ]

    class Array(ctypes.Structure):
        _fields_ = [("length", ctypes.c_int64), ("rest", ctypes.c_int64 * 9)]

    address = pointer(capsule, b"arrow_array_stream")
    array = Array()
    assert Stream.from_address(address).get_next(address, ctypes.addressof(array)) == 0
    assert array.length > 0


def test_threads_of_the_user_may_query_while_a_function_runs(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    found = []

    def work():
        found.extend(rows(session.sql("SELECT twice(id) AS y FROM t"))["y"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(found) == Counter({2 * i: 4 for i in range(ROWS)})


def test_a_function_may_query_itself(session):
    session.register_table("small", pa.table({"one": [1]}))

    def ask(x):
        one = tq.Session()
        one.register_table("small", pa.table({"one": [1]}))
        return pc.add(x, one.sql("SELECT one FROM small").to_arrow().column("one")[0].as_py())

    session.register_udf("ask", ask, ["int64"], "int64")
    assert sorted(delivered(session, "SELECT ask(id) AS y FROM t")) == list(range(1, ROWS + 1))


_SLEEPS = """
import signal, sys, time
sys.path[:0] = {path!r}
import tensorquery as tq

def slow(x):
    print("sleeping\\n", end="", flush=True)  # in one piece, whoever else sleeps
    time.sleep({seconds})
    return x

session = tq.Session()
session.register_parquet("t", {folder!r})
session.register_udf("slow", slow, ["int64"], "int64")
query = session.sql("SELECT slow(id) AS y FROM t WHERE slow(id) >= 0")
try:
    {act}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "act",
    [
        "query.to_arrow()",
        "query.count()",
        "next(iter(tq.create_dataloader(query, output_format='dict')[0]))",
        "list(tq.create_dataloader(query, output_format='dict')[0])",
    ],
)
def test_ctrl_c_while_a_function_sleeps(tmp_path, folder, act):
    script = tmp_path / "train.py"
    script.write_text(
        torchless.HIDDEN + _SLEEPS.format(path=sys.path, folder=folder, act=act, seconds=120)
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "sleeping\n"
    time.sleep(0.3)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=240)
    assert "interrupted" in text
    assert process.returncode == 0
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_the_interpreter_ends_while_functions_run(tmp_path, folder):
    script = tmp_path / "train.py"
    act = "loader = tq.create_dataloader(query, split_rows=5, output_format='dict')[0]; it = iter(loader); next(it)"
    script.write_text(
        torchless.HIDDEN + _SLEEPS.format(path=sys.path, folder=folder, act=act, seconds=0.01)
    )
    for _ in range(5):
        done = run(script)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_was_forked_while_functions_run_calls_them_too(session):
    session.register_udf("twice", udf_functions.twice, ["int64"], "int64")
    sql = "SELECT twice(id) AS y FROM t"
    loader, _ = tq.create_dataloader(sql, session=session, batch_size=5, split_rows=5)
    iterator = iter(loader)
    next(iterator)
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if len(rows(session.sql(sql))["y"]) == ROWS else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sum(len(batch["y"]) for batch in iterator) == ROWS - 5


@pytest.mark.slow
def test_the_docs_page_runs(tmp_path):
    import re

    page = (Path(__file__).parents[3] / "docs" / "functions.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(snippets) >= 3
    script = tmp_path / "page.py"
    head = f"import sys\nsys.path[:0] = {[str(Path(path).resolve()) for path in sys.path]!r}\n"
    script.write_text(head + textwrap.dedent("\n".join(snippets)))
    done = run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
