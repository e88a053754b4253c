"""Embeddings: a vector of 256 float32 and the text that it stands for, 200,000 rows in four files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.once import DATA, once

FILES, ROWS, LENGTH, ROW_GROUP = 4, 200_000, 256, 1 << 13


def embeddings() -> Path:
    """The table; vectors decode to 8 MiB a row group."""

    def write(target: Path) -> None:
        dice = np.random.default_rng(seed=256)
        count = ROWS // FILES
        for number in range(FILES):
            values = pa.array(dice.standard_normal(count * LENGTH, dtype=np.float32))
            vectors = pa.FixedSizeListArray.from_arrays(values, LENGTH)
            texts = pa.array(
                [f"passage {row} of document {number}" * 4 for row in range(count)], pa.string()
            )
            pq.write_table(
                pa.table({"embedding": vectors, "text": texts}),
                target / f"part-{number}.parquet",
                row_group_size=ROW_GROUP,
                use_dictionary=False,
            )

    return once(DATA / "embeddings", write)
