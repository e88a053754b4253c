"""Bugs to be found: each changes tensorquery in the ranks of one run of the harness, and nowhere else.

A harness that finds nothing proves something only if it would have found these.
"""

from collections import deque
from collections.abc import Callable

from tensorquery.loading import epoch_state
from tensorquery.loading.dataloader import QueryDataLoader


def _count_prefetched_rows():
    """A state counts batches as received that the loader has fetched ahead of the training loop."""
    deliver = QueryDataLoader._deliver

    def ahead(batches):
        fetched = deque()
        for batch, last, changes, stream in batches:
            for target, key, value in changes:
                if isinstance(target, list):
                    target[key] = value
                else:
                    setattr(target, key, value)
            if stream is not None:
                stream.advance()
            fetched.append((batch, last, (), None))
            if len(fetched) > 2:
                yield fetched.popleft()
        yield from fetched

    def planted(self, batches, *others):
        return deliver(self, ahead(batches), *others)

    QueryDataLoader._deliver = planted


def _drop_a_remainder():
    """The short batch at a rank's end is not delivered."""
    deliver = QueryDataLoader._deliver

    def full_only(batches, size):
        for made in batches:
            if len(made[0]["id"]) == size:
                yield made

    def planted(self, batches, *others):
        return deliver(self, full_only(batches, self.dataset.batch_size), *others)

    QueryDataLoader._deliver = planted


def _reuse_a_stale_file():
    """A resume does not look whether files are still those of the state, and reads another version of one."""

    def planted(state, constant, files):
        pass

    epoch_state.check_same = planted


BUGS: dict[str, Callable[[], None]] = {
    "count prefetched rows as consumed": _count_prefetched_rows,
    "drop a remainder": _drop_a_remainder,
    "reuse a stale file": _reuse_a_stale_file,
}


def plant(name):
    """Plant a bug into this process and those that it starts."""
    BUGS[name]()
