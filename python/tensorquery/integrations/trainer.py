"""`QueryTrainerMixin`: a Hugging Face `Trainer` that trains on a loader of `create_dataloader`.

The `Trainer` builds its own loader around a dataset, batches it again and deals it out again, and on resume
reads and drops the rows already trained on. With the mixin it iterates over the loader itself, and its checkpoints
hold the loader's state.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.dataloader import QueryDataLoader

__all__ = ["QueryTrainerMixin"]


class QueryTrainerMixin:
    """Put before `transformers.Trainer` (or a subclass of it) among the bases of a trainer.

    ```python
    class QueryTrainer(tq.QueryTrainerMixin, Trainer):
        pass

    loader, dataset = tq.create_dataloader("SELECT … FROM …", batch_size=64, shuffle=True)
    trainer = QueryTrainer(model, args, train_loader=loader)
    trainer.train()  # or train(resume_from_checkpoint=True)
    ```

    The loader says the batch size, the workers and the shuffling; ``per_device_train_batch_size`` (which the
    `Trainer` prints), ``dataloader_num_workers`` and the like have no effect on it. Each rank writes the
    loader's state into every checkpoint, and ``train(resume_from_checkpoint=…)`` continues with the first row
    that was not trained on, without reading the others. A checkpoint is resumed with the number of processes
    and the batch size that it was written with, since the `Trainer` counts in steps; a loader of its own is
    not bound to that, see `QueryDataLoader.load_state_dict`.

    Args:
        train_loader: Made by `create_dataloader` in every process.
        *args: For the `Trainer`.
        **kwargs: For the `Trainer`.

    Raises:
        ConfigError: `train_loader` is not such a loader, a ``train_dataset`` is given too, or options
            contradict it; names them.
    """

    args: Any
    accelerator: Any
    train_dataset: Any

    def __init__(self, *args: Any, train_loader: QueryDataLoader, **kwargs: Any) -> None:
        if not isinstance(train_loader, QueryDataLoader):
            raise ConfigError(
                "train_loader= takes the loader of create_dataloader(), got "
                f"{type(train_loader).__name__}"
            )
        self.train_loader = train_loader
        super().__init__(*args, **kwargs)
        if self.train_dataset is not None:
            raise ConfigError(
                "train_loader= and train_dataset= both say what to train on; give one"
            )
        if self.args.auto_find_batch_size:
            raise ConfigError(
                "auto_find_batch_size=True does not go with train_loader=, whose batch size is "
                f"{train_loader.dataset.batch_size}; leave it out"
            )
        topology = train_loader.dataset.topology
        if self.args.world_size > 1 and topology.source.startswith("default"):
            raise ConfigError(
                f"the Trainer has {self.args.world_size} processes, but the loader was made where nothing "
                "said so, and every process would train on all rows; make TrainingArguments before the "
                "loader, or give rank= and world_size= to create_dataloader()"
            )
        self.add_callback(_saver(train_loader))  # type: ignore[attr-defined]

    def get_train_dataloader(self) -> QueryDataLoader:
        """The loader, unchanged; batches move to the `Trainer`'s device.

        Returns:
            `train_loader`, prepared by the `Trainer`'s accelerator.
        """
        loader: QueryDataLoader = self.accelerator.prepare(self.train_loader)
        return loader

    def num_examples(self, dataloader: Any) -> int:
        """Rows of an epoch over all ranks, for the `Trainer`'s log and speed.

        Shares differ by at most one row, so this may be off by up to one row per rank.

        Args:
            dataloader: The loader of this trainer, or another one, which the `Trainer` counts itself.

        Returns:
            The number of rows.
        """
        if isinstance(dataloader, QueryDataLoader):
            return dataloader.dataset.num_rows * dataloader.dataset.world_size
        examples: int = super().num_examples(dataloader)  # type: ignore[misc]
        return examples

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as `Trainer.train` does.

        Args:
            resume_from_checkpoint: A checkpoint's directory, or True for the last one in ``output_dir``.
            *args: For `Trainer.train`.
            **kwargs: For `Trainer.train`.

        Returns:
            What `Trainer.train` returns.

        Raises:
            CheckpointMismatchError: The checkpoint has no state of the loader for this rank, or one of
                another query or another number of steps per epoch; names what differs.
            ConfigError: ``ignore_data_skip=True`` on resume.
        """
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            # Where there is none, the Trainer says so.
            utilities = importlib.import_module("transformers.trainer_utils")
            checkpoint = utilities.get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            self._load(Path(str(checkpoint)))
        with _never_skip():
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _load(self, checkpoint: Path) -> None:
        if self.args.ignore_data_skip:
            raise ConfigError(
                "ignore_data_skip=True: with train_loader= nothing is read to be skipped, and the Trainer "
                "would count the steps of the resumed epoch wrongly; leave it out"
            )
        state = _read_state(checkpoint, self.train_loader.dataset.rank)
        self._check_steps(checkpoint, state)
        self.train_loader.load_state_dict(state)

    def _check_steps(self, checkpoint: Path, state: dict[str, Any]) -> None:
        """The Trainer derives epoch and step from its count of updates: the loader must agree."""
        try:
            steps = len(self.train_loader)
        except TypeError:  # remainder="uneven": the Trainer goes by max_steps, and knows no epochs
            return
        accumulation = self.args.gradient_accumulation_steps
        updates = max(1, math.ceil(steps / accumulation))
        trained = json.loads((checkpoint / "trainer_state.json").read_text())["global_step"]
        expected = trained // updates, trained % updates * accumulation
        found = state["epoch"], state["step"]
        if found != expected:
            raise CheckpointMismatchError(
                f"{checkpoint}: the loader's state is at epoch {found[0]}, step {found[1]}, but with {steps} "
                f"steps per epoch and gradient_accumulation_steps={accumulation} the Trainer's "
                f"global_step {trained} is epoch {expected[0]}, step {expected[1]}; resume with the number "
                "of processes, the batch size and the accumulation of the run that wrote it"
            )


def _saver(loader: QueryDataLoader) -> Any:
    """A `TrainerCallback` that adds the loader's state to every checkpoint."""
    transformers = importlib.import_module("transformers")

    class SaveLoaderState(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        """Runs on every rank, after the `Trainer` has written its part.

        At that moment all batches that the loader has handed out are trained on, for any number of
        accumulation steps for which the `Trainer` collects them.
        """

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.is_hyper_param_search:
                return  # its trials have directories of their own, and are not resumed
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)  # rank 0's, maybe on another machine
            _write_state(folder, loader.dataset.rank, loader.state_dict())

    return SaveLoaderState()


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"tensorquery_rank_{rank}.json"


def _write_state(checkpoint: Path, rank: int, state: dict[str, Any]) -> None:
    path = _file(checkpoint, rank)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(path)


def _read_state(checkpoint: Path, rank: int) -> dict[str, Any]:
    path = _file(checkpoint, rank)
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointMismatchError(
            f"{path} does not exist: the checkpoint was written by a Trainer without QueryTrainerMixin, or "
            "by fewer processes than now"
        ) from error
    return state


@contextlib.contextmanager
def _never_skip() -> Iterator[None]:
    """The Trainer skips batches by reading and dropping them; a loader that resumes must not be read so.

    `Trainer` offers no method to override for it: it calls a function of its module.
    """
    module = importlib.import_module("transformers.trainer")
    original = module.skip_first_batches

    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, QueryDataLoader):
            return dataloader
        return original(dataloader, num_batches)

    module.skip_first_batches = skip_first_batches  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.skip_first_batches = original  # type: ignore[attr-defined]
