"""A Ballista cluster on 127.0.0.1: the stock scheduler and executors, as docs/ballista.md starts them."""

import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from iceberg_servers import REGION
from servers.process import running, until
from stores import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".cache" / "ballista" / "bin"


@dataclass(frozen=True)
class Cluster:
    """A scheduler, and the logs of it and its executors.

    Attributes:
        url: What `stage_engine=` takes.
        folder: Where logs are, and the executors' folders.
        executors: How many there are.
    """

    url: str
    folder: Path
    executors: int

    def tasks(self):
        """Tasks that each executor has finished, by its log."""
        logs = [self.folder / f"executor-{number}" / "log" for number in range(self.executors)]
        return [log.read_text().count("Done with task") for log in logs]


@contextlib.contextmanager
def start_cluster(store, folder, *, executors=2):
    """Run a scheduler and executors until the block ends."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        scheduler = ["--bind-host=127.0.0.1", f"--bind-port={port}"]
        stack.enter_context(_program("scheduler", folder / "scheduler", scheduler, store))
        url = f"ballista://127.0.0.1:{port}"
        for number in range(executors):
            own = folder / f"executor-{number}"
            words = [
                "--bind-host=127.0.0.1",
                f"--bind-port={free_port()}",
                f"--bind-grpc-port={free_port()}",
                "--external-host=127.0.0.1",
                "--scheduler-host=127.0.0.1",
                f"--scheduler-port={port}",
                "--scheduler-connect-timeout-seconds=30",
                "--concurrent-tasks=2",
                f"--work-dir={own / 'work'}",
            ]
            (own / "work").mkdir(parents=True)
            stack.enter_context(_program("executor", own, words, store))
        log = folder / "scheduler" / "log"

        def registered():
            count = log.read_text().count("Received register executor request")
            assert count >= executors, f"{count} executors came; the log: {log.read_text()[-3000:]}"

        until(registered, AssertionError, seconds=60)
        yield Cluster(url, folder, executors)


@contextlib.contextmanager
def _program(name, folder, words, store):
    """A program that finds the store by its environment, as `docs/ballista.md` says."""
    program = PROGRAMS / f"ballista-{name}"
    if not program.exists():
        raise RuntimeError(f"{program} is not there; run `make test-ballista`")
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "AWS_ENDPOINT": store.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": store.key,
        "AWS_SECRET_ACCESS_KEY": store.secret,
        "RUST_LOG": "info",
    }
    wrapper = [sys.executable, "-m", "servers.process", folder / "nothing", "{}"]
    here = ROOT / "tests" / "python" / "helpers"
    with running([*wrapper, program, *words], folder / "log", cwd=here, env=environment) as pid:
        try:
            yield
        finally:
            # Nothing of it is wanted any more, and an orderly end takes half a minute.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
