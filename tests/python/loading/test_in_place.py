"""A loop may work on a batch in place: the batch changes, and neither a file nor another batch does, nor does the process end."""

import hashlib
import os
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, sys
import numpy as np, pyarrow as pa, torch
import tensorquery as tq

kind, place = sys.argv[1:]
ROWS = 20_000
table = pa.table({"id": np.arange(ROWS), "x": np.arange(ROWS, dtype=np.float64)})
session, sql, options = tq.Session(), "SELECT id, x FROM t", {}
if kind == "file":
    with pa.ipc.new_file(f"{place}/t.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    session.register_arrow("t", f"{place}/t.arrow")
else:
    session.register_table("t", table)
if kind == "stage":
    sql += " ORDER BY id"
if kind == "rows":
    options["shuffle"] = "global"


def array(values, number, way):
    # Memory that another library takes for its own, however it came by it.
    if way == "dlpack":
        return torch.from_dlpack(values)
    if way == "c_array":
        schema, data = values.__arrow_c_array__()
        values = pa.Array._import_from_c_capsule(schema, data)
    memory = (number * len(values)).from_address(values.buffers()[1].address + values.offset * 8)
    return np.ctypeslib.as_array(memory)


# Starting a process takes longer than all of this.
for form, way in [("arrow", "dlpack"), ("arrow", "c_array"), ("torch", ""), ("numpy", "")]:
    loader, _ = tq.create_dataloader(sql, session=session, batch_size=1000, output_format=form, **options)
    for epoch in range(3):
        seen = []
        for batch in loader:
            ids, x = batch["id"], batch["x"]
            seen += ids.to_pylist() if form == "arrow" else ids.tolist()
            if form == "arrow":
                theirs = array(ids, ctypes.c_int64, way)
                theirs += 1_000_000
                array(x, ctypes.c_double, way)[:] = 0
                assert ids[0].as_py() >= 1_000_000
            else:
                ids += 1_000_000
                x[:] = 0
        assert sorted(seen) == list(range(ROWS)), (form, way, epoch, seen[:5])
        print(form, way, epoch, flush=True)
        sys.stdin.readline()
    assert table["id"].to_pylist() == list(range(ROWS)), (form, way)
"""
STEPS = 4 * 3


def digests(place):
    files = sorted(place.rglob("*.arrow"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "stage", "rows", "memory"])
def test_only_the_batch_changes(tmp_path, kind):
    environment = {**os.environ, "TENSORQUERY_STAGES": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", _PROGRAM, kind, str(tmp_path)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        told, found = [], []
        for _ in range(STEPS):
            told.append(process.stdout.readline())
            assert told[-1], (told, process.stderr.read()[-2000:])
            found.append(digests(tmp_path))
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(timeout=60) == 0, (told, process.stderr.read()[-2000:])
    assert len(set(told)) == STEPS
    assert all(one == found[0] for one in found)
    assert found[0] or kind == "memory"
