"""A Hugging Face `Trainer` over our loader: every row of an epoch once over all processes, and a run that
resumes from any of its checkpoints trains on exactly the batches that the first run trained on after it."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import Trainer, TrainingArguments

import ranks
import support
import tensorquery as tq
from effort import LONG

pytestmark = pytest.mark.slow

ROWS, BATCH, EPOCHS, ACCUMULATION = 130, 8, 2, 2


class QueryTrainer(tq.QueryTrainerMixin, Trainer):
    """As a user writes it."""


class Model(torch.nn.Module):
    """y = ax + b, and a list of the rows of every batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, id, x):  # noqa: A002  # the names of the columns
        self.seen.append(id.tolist())
        return {"loss": self.linear(x[:, None]).pow(2).mean()}


def make(folder, output, **options):
    """A trainer over the loader of this rank; `options` are TrainingArguments."""
    arguments = {
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "num_train_epochs": EPOCHS,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    arguments = TrainingArguments(output_dir=str(output), **arguments)
    session = tq.Session()
    session.register_parquet("t", folder)
    loader, _ = tq.create_dataloader(
        "SELECT id, CAST(x AS FLOAT) AS x FROM t WHERE k <> 2",
        session=session,
        batch_size=BATCH,
        shuffle=True,
        shuffle_buffer_size=32,
    )
    return QueryTrainer(Model(), arguments, train_loader=loader)


@pytest.fixture
def folder(tmp_path):
    table = pa.table({"id": np.arange(ROWS), "k": np.arange(ROWS) % 5, "x": np.arange(ROWS) / ROWS})
    return support.write_parquet(tmp_path / "t", table, files=3, row_group=19)


def wanted():
    return [row for row in range(ROWS) if row % 5 != 2]


def train(rank, world_size, folder, output):
    """Train all epochs, with a checkpoint after every update."""
    trainer = make(folder, output)
    assert trainer.args.world_size == world_size
    result = trainer.train()
    loader = trainer.get_train_dataloader()
    assert loader is trainer.train_loader
    return {
        "batches": trainer.model.seen,
        "steps": len(loader),
        "updates": result.global_step,
        "examples": trainer.num_examples(loader),
    }


def resume(rank, world_size, folder, output, steps):
    """Resume from the checkpoints of some updates, each with a new loader and a new model."""
    found = {}
    for step in steps:
        trainer = make(folder, output, save_strategy="no")
        result = trainer.train(resume_from_checkpoint=f"{output}/checkpoint-{step}")
        found[step] = (trainer.model.seen, result.global_step)
    return found


def stops_of(updates):
    """In the first epoch, at its end, in the second one, and before its last update."""
    return sorted({1, updates - 1, updates, updates + 1, EPOCHS * updates - 1})


def train_and_resume(rank, world_size, folder, output):
    """Both in the same processes, since starting them takes longest; then the refusals, alone."""
    first = train(rank, world_size, folder, output)
    if world_size > 1:
        torch.distributed.barrier()  # the checkpoints are rank 0's
    steps = first["steps"]
    updates = -(-steps // ACCUMULATION)
    second = resume(rank, world_size, folder, output, stops_of(updates))
    return first, second, errors(folder, f"{output}-errors") if world_size == 1 else None


@pytest.mark.parametrize("world_size", [1, 2, *[4] * LONG])
def test_each_row_once_before_and_after_a_resume(folder, tmp_path, world_size):
    answers = ranks.run(train_and_resume, world_size, folder, str(tmp_path / "run"))
    first = [answer[0] for answer in answers]
    steps = first[0]["steps"]
    updates = -(-steps // ACCUMULATION)
    for found in first:
        assert found["steps"] == steps
        assert found["updates"] == EPOCHS * updates
        assert len(found["batches"]) == EPOCHS * steps
        assert abs(found["examples"] - len(wanted())) < world_size
    for epoch in range(EPOCHS):
        of_epoch = slice(epoch * steps, (epoch + 1) * steps)
        rows = [row for found in first for batch in found["batches"][of_epoch] for row in batch]
        assert sorted(rows) == wanted()
    assert first[0]["batches"][:steps] != first[0]["batches"][steps:]  # reshuffled
    for rank, (whole, resumed, _) in enumerate(answers):
        assert list(resumed) == stops_of(updates)
        assert len(resumed) >= 3
        for stop, (batches, last) in resumed.items():
            epoch, update = divmod(stop, updates)
            trained = epoch * steps + update * ACCUMULATION
            assert batches == whole["batches"][trained:], (rank, stop)
            assert last == EPOCHS * updates
    if world_size == 1:
        assert_refused(answers[0][2])


def errors(folder, output):
    """Everything that is refused, by name."""
    trainer = make(folder, output, save_steps=2)
    trainer.train()
    found = {}

    def attempt(name, function):
        try:
            function()
            found[name] = "no error"
        except tq.TensorQueryError as error:
            found[name] = f"{type(error).__name__}: {error}"

    checkpoint = f"{output}/checkpoint-2"
    attempt("skip", lambda: make(folder, output, ignore_data_skip=True).train(checkpoint))
    attempt(
        "accumulation",
        lambda: make(folder, output, gradient_accumulation_steps=1).train(checkpoint),
    )
    attempt("find", lambda: make(folder, output, auto_find_batch_size=True))
    attempt("type", lambda: QueryTrainer(Model(), trainer.args, train_loader=[1]))
    attempt(
        "both",
        lambda: QueryTrainer(
            Model(), trainer.args, train_loader=trainer.train_loader, train_dataset=[{"id": 1}]
        ),
    )
    state = Path(checkpoint, "tensorquery_rank_0.json")
    assert json.loads(state.read_text())["step"] == 2 * ACCUMULATION
    # The last checkpoint, by `True`.
    last = make(folder, output, save_strategy="no")
    assert last.train(resume_from_checkpoint=True).global_step == trainer.state.global_step
    state.unlink()
    attempt("gone", lambda: make(folder, output).train(resume_from_checkpoint=checkpoint))
    import transformers.trainer

    found["restored"] = transformers.trainer.skip_first_batches.__module__
    return found


def assert_refused(found):
    """Every error of `errors` is of its kind, and names what is wrong."""
    assert found.pop("restored") == "accelerate.data_loader"
    expected = {
        "skip": ("ConfigError", "ignore_data_skip=True"),
        "accumulation": ("CheckpointMismatchError", "gradient_accumulation_steps=1"),
        "find": ("ConfigError", "auto_find_batch_size=True"),
        "type": ("ConfigError", "got list"),
        "both": ("ConfigError", "train_dataset="),
        "gone": ("CheckpointMismatchError", "tensorquery_rank_0.json"),
    }
    assert sorted(found) == sorted(expected)
    for name, (kind, text) in expected.items():
        assert found[name].startswith(kind), found[name]
        assert text in found[name]
