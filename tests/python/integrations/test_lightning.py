"""A Lightning run that resumes from any of its checkpoints trains on exactly the batches that the first run
trained on after it, in the middle of an epoch and at its end."""

import re

import numpy as np
import pyarrow as pa
import pytest

import support

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    numbers = np.arange(130)
    table = pa.table({"id": numbers, "k": numbers % 5, "x": numbers / 130})
    return support.write_parquet(tmp_path / "t", table, files=3, row_group=19)


@pytest.mark.parametrize("workers", [0, 1])
def test_every_checkpoint_goes_on_with_the_same_batches(folder, tmp_path, workers):
    from lightning_run import EPOCHS, ROWS, train

    first = train(folder, tmp_path / "first", workers=workers)
    steps = len(first) // EPOCHS
    assert len(first) == EPOCHS * steps == 26
    wanted = [row for row in range(ROWS) if row % 5 != 2]
    for epoch in range(EPOCHS):
        assert sorted(support.flat(first[epoch * steps : (epoch + 1) * steps])) == wanted
    assert first[:steps] != first[steps:]
    checkpoints = {
        int(re.search(r"step=(\d+)", path.name)[1]): path
        for path in (tmp_path / "first").glob("*.ckpt")
    }
    assert sorted(checkpoints) == list(range(1, len(first) + 1))
    for step in (4, steps - 1, steps, steps + 1) if workers == 0 else (4, steps):
        rest = train(folder, tmp_path / f"from-{step}", checkpoints[step], workers)
        assert rest == first[step:], step
