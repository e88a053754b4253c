"""Planning runs on another thread: it measures the free stack, which takes a millisecond on the process's first
thread."""

import os
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest

import torchless
from support import write_parquet

pytestmark = pytest.mark.slow

WATCH = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes) {
    int (*asked)(pthread_t, pthread_attr_t *) = dlsym(RTLD_NEXT, "pthread_getattr_np");
    const char *who = syscall(SYS_gettid) == getpid() ? "first\n" : "other\n";
    if (write(2, who, 6) != 6) _exit(1);
    return asked(thread, attributes);
}
"""
"""Prints the thread of each look at a stack, by which the core finds out where the stack ends."""

PROGRAM = """
import os, sys
import tensorquery as tq
os.write(2, b"begin\\n")
session = tq.Session()
session.register_parquet("t", sys.argv[1])
{work}
os.write(2, b"ended\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc reads a list of mappings for it")
@pytest.mark.parametrize(
    "work",
    [
        "tq.create_dataloader(path=sys.argv[1], filters='id > 7', columns=['id'], output_format='dict')",
        "tq.create_dataloader('SELECT id FROM t WHERE id > 7', session=session, output_format='dict')",
        "tq.create_dataloader(table='t', filters='id > 7', session=session, output_format='dict')",
        "session.register_view('v', 'SELECT id FROM t WHERE id > 7'); session.table('v').select(['id'])",
    ],
)
def test_the_first_thread_does_not_plan(tmp_path, work):
    compiler = shutil.which("cc") or shutil.which("gcc")
    (tmp_path / "watch.c").write_text(WATCH)
    watch = tmp_path / "watch.so"
    command = [compiler, "-shared", "-fPIC", "-o", watch, tmp_path / "watch.c", "-ldl"]
    subprocess.run(command, check=True)
    folder = write_parquet(tmp_path / "t", pa.table({"id": range(100)}))
    done = subprocess.run(
        [sys.executable, "-c", torchless.HIDDEN + PROGRAM.format(work=work), folder],
        env={**os.environ, "LD_PRELOAD": str(watch)},
        capture_output=True,
        text=True,
        check=True,
    )
    looks = done.stderr.partition("begin\n")[2].partition("ended\n")[0].split()
    assert set(looks) == {"other"}, done.stderr
