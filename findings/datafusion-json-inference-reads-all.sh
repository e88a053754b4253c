#!/usr/bin/env bash
# DataFusion 55.0.0: to infer the types of JSON lines in an object store from ten records, it reads all of the file, into memory.
#
# `register_json(…, schema_infer_max_records=10)` gets the whole object and looks at its first lines then. `register_csv` with the
# same option stops after some pieces. Of a local file both read a few lines: the JSON reader takes another way where the store
# gives it a file. So a file of a terabyte is downloaded before the first query is planned, and only where it is far away.
#
# Versions: datafusion 55.0.0, pyarrow 26.0.1; the store is an HTTP server that counts the bytes it sends. Seen on 2026-11-28: see
# `expected` below (21 MB of JSON; of 17 MB of CSV some 4 MB).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet datafusion==55.0.0 pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from datafusion import SessionContext
from datafusion.object_store import AmazonS3

ROWS = range(200_000)
FILES = {
    "json": b"".join(b'{"id": %d, "text": "%s"}\n' % (row, b"x" * 80) for row in ROWS),
    "csv": b"id,text\n" + b"".join(b"%d,%s\n" % (row, b"x" * 80) for row in ROWS),
}
sent = 0


class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, has_body):
        global sent
        text = FILES[self.path.rsplit(".", 1)[1]]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, end = (int(asked[1]), min(int(asked[2]) + 1, len(text))) if asked else (0, len(text))
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(text)}")
        self.send_header("Content-Length", str(end - first))
        self.send_header("Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT")
        self.end_headers()
        for at in range(first, end if has_body else first, 1 << 14):
            try:
                self.wfile.write(text[at : min(at + (1 << 14), end)])
            except OSError:  # The reader has enough.
                return
            sent += min(1 << 14, end - at)

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)


server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
endpoint = f"http://127.0.0.1:{server.server_port}"
for kind, text in FILES.items():
    context, sent = SessionContext(), 0
    store = AmazonS3(bucket_name="b", region="us-east-1", access_key_id="a", secret_access_key="b", endpoint=endpoint, allow_http=True)
    context.register_object_store("s3://", store, "b")
    getattr(context, f"register_{kind}")("t", f"s3://b/t.{kind}", schema_infer_max_records=10)
    print(kind, "all of it" if sent == len(text) else "less than half" if sent < len(text) / 2 else sent)
# The same of a local file.
Path("t.json").write_bytes(FILES["json"])
context = SessionContext()
context.register_json("warm", "t.json", schema_infer_max_records=10)
before = int(Path("/proc/self/io").read_text().split()[1])
context.register_json("t", "t.json", schema_infer_max_records=10)
read = int(Path("/proc/self/io").read_text().split()[1]) - before
print("local json", "less than half" if read < len(FILES["json"]) / 2 else read)
PYTHON
)
echo "$seen"
expected="json all of it
csv less than half
local json less than half"
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-28" >&2; exit 1; }
