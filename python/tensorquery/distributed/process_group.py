"""`ProcessGroup`: the ranks of a job that has no process group of torch, and the store through which they talk."""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tensorquery._util.options import check_seconds
from tensorquery.distributed.file_store import FileStore, meet
from tensorquery.distributed.tcp_store import TcpStore, serve
from tensorquery.distributed.topology import RankGroup, detect
from tensorquery.errors import ConfigError, StorageError

__all__ = ["ProcessGroup"]

_LOOK = 0.02


class ProcessGroup(RankGroup):
    """The ranks of a job without `torch.distributed`, for ``process_group=`` of loaders and sessions.

    Ranks that share a group plan once, count rows together, agree on snapshots and on ``now()``, and compare their epochs. Without
    one each rank does all of that by itself. Make it in every rank, once, before sessions and loaders: it waits until all have come.

    Args:
        address: Where the ranks meet. A folder that all of them reach, as a path or a ``file://`` URL: of this job alone, used again
            only by its next run. Or ``tcp://host:port``: an address of rank 0's machine, which then serves the others as long as it
            runs. Both carry paths, schemas and counts, and neither rows nor credentials; whoever reaches them can change what
            ranks read, so keep them in your own network.
        rank: This rank; with `world_size`, or both None to take them from JAX, torchrun, Horovod, MPI or SLURM.
        world_size: Number of ranks.
        timeout: Seconds to wait for the other ranks.

    Attributes:
        rank: This rank.
        world_size: Number of ranks.

    Raises:
        ConfigError: The address is no folder and no such URL, or the ranks are not known.
        StorageError: Not all ranks came; names those that are missing.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        timeout = check_seconds("timeout", timeout)
        place = _place_of(address)
        topology = detect(rank, world_size)
        self.rank, self.world_size = topology.rank, topology.world_size
        self._process = os.getpid()
        self._store: FileStore | TcpStore | None = None
        if self.world_size == 1:
            return
        if isinstance(place, Path):
            self._store = meet(place, self.rank, self.world_size, timeout)
        else:
            self._store = _connected(place, self.rank, self.world_size, timeout)
        atexit.register(self.close)

    @property
    def store(self) -> Any | None:
        """The key-value store of the ranks; None for a single one, and after `close`."""
        return self._store

    def close(self) -> None:
        """Leave the group, as every rank does when its program ends; the last one removes the files of this run."""
        store, self._store = self._store, None
        if store is None or self._process != os.getpid():
            return
        atexit.unregister(self.close)
        if isinstance(store, FileStore):
            store.close(self.world_size)
        else:
            store.close()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ProcessGroup(rank {self.rank} of {self.world_size})"


def _place_of(address: Any) -> Path | tuple[str, int]:
    """The folder, or host and port, that an address names."""
    if isinstance(address, os.PathLike):
        return Path(address).expanduser()
    if not isinstance(address, str) or not address:
        raise ConfigError(
            f"address={address!r} must be a folder that all ranks reach, or tcp://host:port"
        )
    if "://" not in address:
        return Path(address).expanduser()
    url = urlsplit(address)
    if url.scheme == "file" and url.netloc in ("", "localhost") and url.path:
        return Path(unquote(url.path))
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if url.scheme != "tcp" or not host or not port or url.path or url.query or "@" in url.netloc:
        # What stands before an @ may be a password.
        shown = address.rpartition("@")[2]
        raise ConfigError(
            f"address={shown!r} must be a folder, a file:// URL of one, or tcp://host:port, such as tcp://10.0.0.1:29400"
        )
    return host, port


def _connected(address: tuple[str, int], rank: int, world_size: int, timeout: float) -> TcpStore:
    """The store of rank 0, once all ranks have come."""
    until = time.monotonic() + timeout
    if rank == 0:
        store = serve(address, world_size, timeout)
    else:
        store = TcpStore(address, rank, world_size, timeout)
    store.set(f"came/{rank}", b"1")
    missing = [*range(world_size)]
    while missing := [other for other in missing if not store.check([f"came/{other}"])]:
        if time.monotonic() > until:
            store.close()
            raise StorageError(
                f"of {world_size} ranks, {missing} did not come to tcp://{address[0]}:{address[1]} within {timeout:g} seconds; see "
                "whether they run, and whether they have the same address and world_size"
            )
        time.sleep(_LOOK)
    return store
