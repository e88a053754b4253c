"""The loader and the run of docs/integrations/lightning.md. Importing Lightning takes ten seconds, so tests import this when they run."""

import pytorch_lightning as pl
import torch

import tensorquery as tq

ROWS, BATCH, EPOCHS = 130, 8, 2


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
