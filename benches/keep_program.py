"""Copies the program that cargo has built to where it is asked for: ``cargo build --message-format=json | keep_program.py PLACE``.

The name of a bench's program has a hash in it, which only cargo's messages say.
"""

import json
import shutil
import sys

programs = [message["executable"] for message in map(json.loads, sys.stdin) if message.get("executable")]  # fmt: skip
if len(programs) != 1:
    raise SystemExit(f"cargo has built {len(programs)} programs, not one: {programs}")
shutil.copy2(programs[0], sys.argv[1])
