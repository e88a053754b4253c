"""Where faults are safe: namespaces of Linux in which small disks can be mounted, and a clock that can be moved.

Neither needs root. What a machine does not have is said by name, and the kinds of faults that need it are not tried.
"""

import contextlib
import ctypes
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

_INSIDE = "TENSORQUERY_FAULTS_INSIDE"
_OWN = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_ROOT = Path(__file__).resolve().parents[2]
_SHIM = "TENSORQUERY_FAULTS_CLOCK"


def enter(folder, words):
    """Run this program again inside, and end with its status; returns where this is inside already.

    Args:
        folder: For what is compiled.
        words: The arguments of the program.
    """
    if os.environ.get(_INSIDE):
        return
    # Nothing of whoever runs it: neither an account of a store, nor a proxy, nor a place in another job.
    environment = {name: value for name, value in os.environ.items() if not _is_foreign(name)}
    environment |= {_INSIDE: "yes", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    shim = _compiled(folder)
    if shim is not None:
        environment |= {_SHIM: str(shim), "LD_PRELOAD": str(shim)}
    command = [sys.executable, "-m", "tests.faults", *words]
    if _has_namespaces():
        command = ["unshare", *_OWN, "--", *command]
        environment[_INSIDE] = "namespaces"
    with subprocess.Popen(command, env=environment, cwd=_ROOT) as program:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
        try:
            status = program.wait()
        except BaseException:
            # unshare ignores gentler signals; what runs inside is killed with it.
            program.kill()
            raise
        sys.exit(status)


def _is_foreign(name):
    accounts = ("AWS_", "AZURE_", "GOOGLE_", "SLURM_", "OMPI_", "HOROVOD_", "LOCAL_", "MASTER_")
    return (
        name.startswith(accounts)
        or name in ("RANK", "WORLD_SIZE")
        or name.lower().endswith("_proxy")
    )


def _has_namespaces():
    """Whether this user may mount a disk that others do not see."""
    probe = ["unshare", *_OWN, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _compiled(folder):
    """The library with the clock; None where there is no compiler."""
    shim = Path(folder) / "clock.so"
    source = Path(__file__).with_name("clock.c")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"]
    done = subprocess.run(command, capture_output=True, check=False)
    return shim if done.returncode == 0 else None


def lacking(has_store):
    """Kinds of faults that cannot be made on this machine, and why."""
    from .schedule import OF_CLOCKS, ON_DISKS, REMOTE

    found = {}
    if os.environ.get(_INSIDE) != "namespaces":
        reason = "no user namespace with mounts, so no small disk (unshare --user --mount)"
        found |= dict.fromkeys(ON_DISKS, reason)
    if _SHIM not in os.environ:
        found |= dict.fromkeys(OF_CLOCKS, "no C compiler for the clock (cc)")
    if not has_store:
        found |= dict.fromkeys(REMOTE, "no object store; run `make test-servers`")
    return found


class Clock:
    """The time of day of the processes that this one forks from now on; each rank has its own."""

    def __init__(self):
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._slots = len(self._memory) // 8
        self.of(0)

    def of(self, rank):
        """Look at the clock of a rank, in this process and those that it forks."""
        if _SHIM in os.environ:
            # The copy that was preloaded: what it is told here, forks know.
            library = ctypes.CDLL(os.environ[_SHIM])
            library.clock_offset_at(ctypes.c_void_p(ctypes.addressof(ctypes.c_int64.from_buffer(self._memory, 8 * rank))))  # fmt: skip

    def jump(self, seconds):
        """Set the clock, for all of them."""
        self.differ([seconds] * self._slots)

    def differ(self, seconds):
        """Set the clock of each rank, from the first one on."""
        struct.pack_into(f"<{len(seconds)}q", self._memory, 0, *seconds)


class Disk:
    """A small disk of its own, which can be full."""

    def __init__(self, folder, size="256m"):
        self.folder = Path(folder)
        self.folder.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True
        )

    def fill(self, room):
        """Leave `room` bytes."""
        with open(self.folder / "filler", "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(1 << 20)):
                    pass
            file.truncate(max(0, file.tell() - room))

    @property
    def free(self):
        """Bytes that are free."""
        return os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize

    def make_room(self):
        """Remove what fills it."""
        (self.folder / "filler").unlink(missing_ok=True)

    def remove(self):
        """Unmount it, however it is used."""
        unmount(self.folder)


def make_read_only(folder):
    """Let nobody write below a folder of a `Disk`, as root neither; files that are open may still be written."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)


def unmount(folder):
    """Undo the last mount on a folder, however it is used."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def end_with_parent():
    """Be killed when the parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans():
    """Be the parent of what a child leaves behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid):
    """The processes that `pid` has started and that live, in their order."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(one) for one in listed if _state(one) not in "ZX"]
    except FileNotFoundError:
        return []


def _state(pid):
    """The letter of a process's state; "Z" is a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def data_bytes(pid):
    """Bytes of private memory that a process may write, as RLIMIT_DATA counts them."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)
