#!/usr/bin/env bash
# DataFusion 55 turns a 32-bit or 64-bit decimal into an integer beside an integer: 2.50 + 0 is 2.
#
# Arrow has decimals of 32, 64, 128 and 256 bits since format version 1.5, and the width says nothing about the value. One would
# expect `d + 0` and `coalesce(d, 0)` to be decimals at every width, as they are at 128 and 256 bits. DataFusion casts narrower
# decimals to BIGINT. It cuts off the digits after the point without a word, in a sum, in coalesce and in UNION. pyarrow adds all
# widths rightly.
# Arrow format: https://arrow.apache.org/docs/format/Columnar.html
#
# Versions: datafusion 55.0.0 (Python package), pyarrow 26.0.1. Seen on 2026-11-27: see `expected` below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet datafusion==55.0.0 pyarrow==26.0.1
seen=$(venv/bin/python - <<'PYTHON'
from decimal import Decimal

import datafusion
import pyarrow as pa
import pyarrow.compute as pc

for width in (32, 64, 128, 256):
    kind = getattr(pa, f"decimal{width}")(5, 2)
    column = pa.array([Decimal("2.50"), Decimal("-1.25")], kind)
    context = datafusion.SessionContext()
    context.register_record_batches("t", [[pa.record_batch({"d": column})]])
    found = [
        [str(row["v"]) for row in context.sql(sql).to_pylist()]
        for sql in (
            "SELECT d + 0 AS v FROM t ORDER BY d",
            "SELECT coalesce(d, 0) AS v FROM t ORDER BY d",
            "SELECT sum(v) AS v FROM (SELECT d AS v FROM t UNION ALL SELECT 0 AS v)",
        )
    ]
    told = " ".join(",".join(values) for values in found)
    zero = pa.scalar(Decimal(0), kind)
    print(width, "bits:", told, "pyarrow", ",".join(map(str, sorted(pc.add(column, zero).to_pylist()))))
PYTHON
)
echo "$seen"
expected='32 bits: -1,2 -1,2 1 pyarrow -1.25,2.50
64 bits: -1,2 -1,2 1 pyarrow -1.25,2.50
128 bits: -1.25,2.50 -1.25,2.50 1.25 pyarrow -1.25,2.50
256 bits: -1.25,2.50 -1.25,2.50 1.25 pyarrow -1.25,2.50'
[ "$seen" = "$expected" ] || { echo "another behaviour than that of 2026-11-27" >&2; exit 1; }
