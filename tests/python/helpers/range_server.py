"""A counting HTTP file server in a process of its own: what a client reads is known without asking it.

Usage: range_server.py ROOT LOG [BRAKE]: serves the files below ROOT with ranges and entity tags, and appends a
line "METHOD PATH START STOP AGENT" to LOG for each answer, where AGENT is the User-Agent. Prints its port. A request that
comes while a file BRAKE exists is noted in a file BRAKE.met, and never answered.
"""

import os
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root = log = ""
    brake = None

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        if self.brake is not None and os.path.exists(self.brake):
            with open(f"{self.brake}.met", "w"):
                pass
            while os.path.exists(self.brake):
                time.sleep(0.05)
            # Nobody waits any more for what was held, and it counts for nobody.
            self.close_connection = True
            return
        name = unquote(self.path).lstrip("/")
        try:
            with open(os.path.join(self.root, name), "rb") as file:
                data = file.read()
        except OSError:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, stop = 0, len(data)
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted and wanted[1]:
            start, stop = int(wanted[1]), min(int(wanted[2] or len(data) - 1) + 1, len(data))
        elif wanted:
            start = max(0, len(data) - int(wanted[2]))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{len(data):x}-{os.stat(file.name).st_mtime_ns:x}"')
        self.send_header("Last-Modified", self.date_time_string(os.stat(file.name).st_mtime))
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        # One write per line: lines of threads do not mix.
        with open(self.log, "a", encoding="utf-8") as log:
            agent = self.headers.get("User-Agent", "-").replace(" ", "_")
            log.write(f"{self.command} {name} {start} {stop if body else start} {agent}\n")
        if body:
            self.wfile.write(data[start:stop])

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    Handler.root, Handler.log, *brake = sys.argv[1:]
    Handler.brake = brake[0] if brake else None
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
