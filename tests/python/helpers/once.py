"""Work that several tests of a module look at, done once in a run of several processes."""

import fcntl
import json
import os

__all__ = ["once_a_run"]


def once_a_run(tmp_path_factory, name, work):
    """What `work` returned, as JSON holds it. The first of the processes that ask does it, and the others wait for that.

    A fixture of a module is made again in every process that runs one of its tests, and again where that process has run tests of other
    modules meanwhile.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return json.loads(json.dumps(work()))
    # The folder of a process is below that of the run.
    place = tmp_path_factory.getbasetemp().parent / f"{name}.json"
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.write_text(json.dumps(work()))
        return json.loads(place.read_text())
