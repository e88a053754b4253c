"""A Lightning run that resumes from any of its checkpoints trains on exactly the batches that the first run
trained on after it, in the middle of an epoch and at its end."""

import re

import numpy as np
import pyarrow as pa
import pytest
import pytorch_lightning as pl
import torch

import support
import tensorquery as tq

pytestmark = pytest.mark.slow

ROWS, BATCH, EPOCHS = 130, 8, 2


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 5, "x": np.arange(ROWS) / ROWS})
    return support.write_parquet(tmp_path / "t", table, files=3, row_group=19)


class Rows(pl.LightningDataModule):
    """As docs/integrations/lightning.md writes it."""

    def __init__(self, folder, workers=0):
        super().__init__()
        self.folder, self.workers = folder, workers

    def train_dataloader(self):
        session = tq.Session()
        session.register_parquet("t", self.folder)
        loader, _ = tq.create_dataloader(
            "SELECT id, CAST(x AS FLOAT) AS x FROM t WHERE k <> 2",
            session=session,
            batch_size=BATCH,
            num_workers=self.workers,
            shuffle=True,
            shuffle_buffer_size=32,
        )
        loader.set_epoch(self.trainer.current_epoch)
        return loader


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, batch_index):
        self.seen.append(batch["id"].tolist())
        return self.linear(batch["x"][:, None]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder, output, checkpoint=None, workers=0):
    model = Line()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        callbacks=[pl.callbacks.ModelCheckpoint(output, every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, Rows(folder, workers), ckpt_path=checkpoint)
    return model.seen


@pytest.mark.parametrize("workers", [0, 1])
def test_every_checkpoint_goes_on_with_the_same_batches(folder, tmp_path, workers):
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
