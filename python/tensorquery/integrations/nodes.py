"""`QueryNode`: a query as a source of `torchdata.nodes` pipelines. Needs torchdata.

>>> import pyarrow as pa, tensorquery as tq
>>> from torchdata.nodes import Loader, Mapper
>>> session = tq.Session()
>>> session.register_table("t", pa.table({"x": [1, 2, 3]}))
>>> loader, _ = tq.create_dataloader(table="t", session=session, batch_size=2)
>>> doubled = Loader(Mapper(tq.QueryNode(loader), lambda batch: (2 * batch["x"]).tolist()))
>>> list(doubled)
[[2, 4], [6]]
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from tensorquery import _core
from tensorquery.errors import CheckpointMismatchError, ConfigError
from tensorquery.loading.dataloader import QueryDataLoader
from tensorquery.loading.iterator import Made
from tensorquery.loading.loader_iterator import LoaderIterator

try:
    from torchdata.nodes import BaseNode
except ImportError as error:
    raise ImportError(
        f"tensorquery.integrations.nodes needs torchdata 0.11 or later, which cannot be imported ({error}): "
        "pip install torchdata"
    ) from error

__all__ = ["QueryNode"]

_LOADER = "loader"
_OVER = "over"


class QueryNode(_core.Delivery, BaseNode):  # type: ignore[misc]  # torchdata has no types
    """The batches of a loader, as the source of a pipeline of `torchdata.nodes`.

    It composes with torchdata's `Loader`, `Prefetcher`, `ParallelMapper`, `MultiNodeWeightedSampler` and
    so on. Each pass over the pipeline is one epoch of the query: ``reset()`` after the last batch begins the
    next epoch, and ``reset()`` before it begins the same epoch anew.

    A node's state says what this node has handed on. Nodes that read ahead keep the state that belongs to
    each batch, so that the pipeline's state counts what the training loop has received. A batch counts in the moment in
    which the node returns it.

    Args:
        loader: Made by `create_dataloader`. It serves this node alone from now on.

    Raises:
        ConfigError: It is not such a loader.
    """

    def __init__(self, loader: QueryDataLoader) -> None:
        if not isinstance(loader, QueryDataLoader):
            raise ConfigError(
                f"QueryNode takes the loader of create_dataloader(), got {type(loader).__name__}"
            )
        BaseNode.__init__(self)
        self._loader = loader
        self._batches: LoaderIterator | None = None
        self._epoch = -1
        # A node that reads ahead may still be in `made` on its thread when it is reset.
        self._lock = threading.Lock()

    takes_turns = True
    """Whether a second thread waits: torchdata's nodes let go of their threads without waiting for them."""

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin a pass, or continue the one that `initial_state` belongs to.

        Args:
            initial_state: What `get_state` returned, in this process or in another.

        Raises:
            CheckpointMismatchError: The state is not a node's, or belongs to another query; names what
                differs.
        """
        with self._lock:
            BaseNode.reset(self, initial_state)
            self.begin_anew()
            over = False
            if initial_state is not None:
                if not initial_state.keys() >= {_LOADER, _OVER}:
                    raise CheckpointMismatchError(
                        f"a QueryNode's state has the keys {_LOADER!r} and {_OVER!r}, but this one has "
                        f"{sorted(initial_state)}; was the pipeline built differently when it was saved?"
                    )
                self._loader.load_state_dict(initial_state[_LOADER])
                over = initial_state[_OVER]
            if over:
                # All batches of the pass were handed on, but not yet its end, on which a sampler over
                # several nodes counts. The loaded state begins the next epoch, at the next reset.
                self._batches = LoaderIterator(_nothing())
                self._epoch = -1
            else:
                self._batches = iter(self._loader)
                self._epoch = self._loader.state_dict()["epoch"]

    def next(self) -> Any:
        """The next batch.

        Returns:
            A batch of the loader.

        Raises:
            StopIteration: At the end of the epoch.
        """
        return self.__next__()

    def made(self) -> Made:
        """Make the next batch, without counting it; `next` calls this.

        Returns:
            The batch, whether it is the last, and what changes when it is handed on.

        Raises:
            StopIteration: At the end of the epoch.
        """
        if self._batches is None:
            self.reset()
        with self._lock:
            assert self._batches is not None
            made: Made = self._batches.made()
            return made

    def failed(self, error: BaseException) -> None:
        """Nothing is left to do after an error.

        Args:
            error: How `made` ended.
        """

    def begin_anew(self) -> None:
        """Forget how the pass before ended; `reset` calls this."""
        super().begin_anew()

    def get_state(self) -> dict[str, Any]:
        """The position after the last batch that `next` returned.

        Returns:
            A state for `reset`, as plain data.
        """
        with self._lock:
            state = self._loader.state_dict()
            # A state after an epoch's last batch belongs to the next epoch.
            return {_LOADER: state, _OVER: state["epoch"] != self._epoch}


def _nothing() -> Generator[Made, None, None]:
    yield from ()
