"""One measurement in a process of its own: ``python child.py '{"loader": …, "measure": …, "request": …}'``.

Prints one line of JSON: what was measured, or ``missing`` where the library is not installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from compare import measures, own
from compare.loaders import LOADERS
from compare.request import Request
from compare.warm import read_libraries


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Import, prepare, and measure."""
    import torch

    torch.zeros(1)
    try:
        prepare, open_batches = LOADERS[spec["loader"]].load()
    except ImportError as error:
        return {"missing": str(error)}
    request = Request.from_json(spec["request"])
    prepare(request)
    read_libraries()
    name = spec["measure"]
    measure = getattr(measures, name, None) or getattr(own, name)
    return dict(measure(open_batches, request, **spec["options"]))


def leave() -> None:
    """End at once, and the processes below: a loader that was broken off need not wind down between two measurements."""
    import psutil

    sys.stdout.flush()
    tops = [psutil.Process()]
    if "ray" in sys.modules:
        # Its servers, right below, end with this process. If they ended first, or were told to, threads that still fetch what was
        # asked for would abort it.
        tops = tops[0].children()
    for top in tops:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in top.children(recursive=True):
                process.kill()
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
    leave()
