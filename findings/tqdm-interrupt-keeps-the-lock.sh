#!/usr/bin/env bash
# tqdm 4.70: an exception while a bar is drawn, as of Ctrl-C, leaves the lock of all bars held for the rest of the process.
#
# A training loop under a bar that is interrupted (KeyboardInterrupt, a signal handler that raises, a file that refuses the text) is caught
# by notebooks, and the next cell goes on. `refresh` takes the lock, draws, and releases the lock with no `finally`. Bars of the same thread
# work on, since the lock may be taken twice by its thread; a bar of another thread, or of a forked worker process, waits without end.
# Clearing bars has the same form, while `close` uses `with`.
#
# Versions: tqdm 4.70.1. Seen on 2026-11-28: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet tqdm==4.70.1
seen=$(venv/bin/python - <<'PYTHON'
import io
import threading

from tqdm import tqdm

class Interrupted(io.StringIO):
    strikes = False
    def write(self, text):
        if self.strikes:
            self.strikes = False
            raise KeyboardInterrupt
        return super().write(text)

def is_free():
    seen = []
    def look():
        lock = tqdm.get_lock().th_lock
        if lock.acquire(blocking=False):
            lock.release()
            seen.append(True)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return bool(seen)

file = Interrupted()
bar = tqdm(total=3, file=file, mininterval=0)
bar.update()
print("after a bar was drawn, the lock is free for other threads:", is_free())
file.strikes = True
try:
    bar.update()
except KeyboardInterrupt:
    print("interrupted while it is drawn")
print("the lock is free for other threads:", is_free())
bar.close()
del bar
print("and once the bar is closed:", is_free())
PYTHON
)
echo "$seen"
expected='after a bar was drawn, the lock is free for other threads: True
interrupted while it is drawn
the lock is free for other threads: False
and once the bar is closed: False'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-28" >&2; exit 1; }
