"""Promise 4 (docs/promises.md): splits that take turns are read page by page, their batches are as long as a turn, and numbers are mixed where they are handed out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import tensorquery as tq

FILES = 3
ROWS = 40_000
GROUP = 9000
BUFFER = 5000

LAYOUTS = {
    "dictionaries": {},
    "small pages": {"data_page_size": 1500, "write_batch_size": 64},
    "pages so small that all of a chunk is read": {"data_page_size": 300, "write_batch_size": 16},
    "dictionaries that end within a column": {
        "dictionary_pagesize_limit": 4000,
        "data_page_size": 1500,
        "write_batch_size": 256,
    },
    "plain": {"use_dictionary": False, "data_page_size": 20_000, "write_batch_size": 500},
    "second version, zstd": {
        "data_page_version": "2.0",
        "compression": "zstd",
        "data_page_size": 4000,
        "write_batch_size": 100,
    },
    "nothing compressed": {"compression": "none", "data_page_size": 1500, "write_batch_size": 100},
}


def table(first: int, rows: int, *, wide: bool = False) -> pa.Table:
    ids = np.arange(first, first + rows)
    columns = {
        "id": ids,
        "few": (ids % 37).astype(np.float64),
        "many": ids.astype(np.float32) * 3,
        "small": (ids % 90).astype(np.int32),
        "hole": pa.array((ids // 7).astype(np.int64), mask=ids % 11 == 3),
    }
    if wide:
        columns["text"] = [f"{number:x}" * 3 for number in ids]
        columns["flag"] = ids % 3 == 0
    return pa.table(columns)


def write(folder: Path, *, wide: bool = False, **layout: object) -> Path:
    folder.mkdir()
    for number in range(FILES):
        rows = ROWS + 500 * number
        path = folder / f"{number}.parquet"
        first = sum(ROWS + 500 * before for before in range(number))
        pq.write_table(table(first, rows, wide=wide), path, row_group_size=GROUP, **layout)
    return folder


TOTAL = sum(ROWS + 500 * number for number in range(FILES))


def loader(folder: Path, **options: object) -> tq.DataLoader:
    options = {
        "shuffle": True,
        "shuffle_seed": 7,
        "shuffle_buffer_size": BUFFER,
        "batch_size": 1000,
        **options,
    }
    return tq.create_dataloader(path=folder, nulls={"hole": -1}, **options)[0]


def check(batches: list[dict[str, torch.Tensor]]) -> None:
    """Every row once, and all its values with it."""
    rows = {
        name: torch.cat([batch[name] for batch in batches])
        for name in ("id", "few", "many", "small", "hole")
    }
    ids = rows["id"]
    assert torch.equal(ids.sort().values, torch.arange(TOTAL))
    assert torch.equal(rows["few"], (ids % 37).double())
    assert torch.equal(rows["many"], ids.float() * 3)
    assert torch.equal(rows["small"], (ids % 90).int())
    assert torch.equal(rows["hole"], torch.where(ids % 11 == 3, -1, ids // 7))


def drop_from_memory(folder: Path) -> None:
    """Where its file system keeps files on a disk; others keep them in memory."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def chunk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            total += sum(group.column(at).total_compressed_size for at in range(group.num_columns))
    return total


@pytest.fixture(params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / "files", **LAYOUTS[request.param])


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1000, 333, 6000])
def test_every_row_is_delivered_once_with_its_values(folder: Path, batch_size: int) -> None:
    check(list(loader(folder, batch_size=batch_size)))


@pytest.mark.slow
def test_pages_are_read_once(folder: Path) -> None:
    """Beyond the chunks, only footers are read, and the headers of pages to find where the pages are."""
    read, dataset = tq.create_dataloader(
        path=folder, batch_size=1000, shuffle=True, shuffle_buffer_size=BUFFER, nulls={"hole": -1}
    )
    check(list(read))
    found, chunks = dataset.metrics()["bytes_read"], chunk_bytes(folder)
    # A page of the smallest has some hundred bytes, so that its header, with what is read beyond it, is as long again.
    assert chunks * 0.95 < found < 2.2 * chunks
    in_order, dataset = tq.create_dataloader(path=folder, batch_size=1000, nulls={"hole": -1})
    assert sum(len(batch["id"]) for batch in in_order) == TOTAL
    assert dataset.metrics()["bytes_read"] == chunks


@pytest.mark.slow
def test_what_the_system_dropped_from_memory_is_read_again(folder: Path) -> None:
    """Between the headers of a chunk and its pages, or between two turns."""
    read, batches = loader(folder), []
    for number, batch in enumerate(read):
        batches.append(batch)
        if number % 10 == 0:
            drop_from_memory(folder)
    check(batches)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True, "shuffle_buffer_size": BUFFER}, {"filters": "a >= 0 AND b >= 0"}],
)
def test_what_the_system_does_not_have_in_memory_is_read_once(
    tmp_path: Path, options: dict[str, object]
) -> None:
    """Each column is more than what is read and decoded at a time."""
    rows = pa.table({name: np.arange(100_000.0) + at for at, name in enumerate("abcdefgh")})
    pq.write_table(rows, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    drop_from_memory(tmp_path)
    read, dataset = tq.create_dataloader(path=tmp_path, batch_size=1000, **options)
    assert sum(len(batch["h"]) for batch in read) == 100_000
    chunks = chunk_bytes(tmp_path)
    assert chunks <= dataset.metrics()["bytes_read"] < 1.1 * chunks


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 4, 17, 60])
def test_a_resumed_epoch_goes_on_bit_for_bit(folder: Path, stop: int) -> None:
    whole = list(loader(folder))
    read = loader(folder)
    batches = iter(read)
    for _ in range(stop):
        next(batches)
    state = read.state_dict()
    again = loader(folder)
    again.load_state_dict(state)
    rest = list(again)
    assert len(rest) == len(whole) - stop
    for found, wanted in zip(rest, whole[stop:], strict=True):
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_batches_of_a_window_are_parts_of_its_memory(tmp_path: Path) -> None:
    """Numbers are not copied once more where a batch is finished; those with nulls are."""
    folder = write(tmp_path / "files")
    before, followed = None, 0
    for number, batch in enumerate(loader(folder)):
        names = ("id", "few")
        # The last one is so short that it is copied.
        if before is not None and number % (BUFFER // 1000) and len(batch["id"]) == 1000:
            ends = [before[name].data_ptr() + before[name].nbytes for name in names]
            assert ends == [batch[name].data_ptr() for name in names], number
            followed += 1
        before = batch
    assert followed > 50


def test_a_batch_may_be_written_to(tmp_path: Path) -> None:
    """Its neighbours in the memory of a window are not touched."""
    folder, batches = write(tmp_path / "files"), []
    for batch in loader(folder):
        batches.append({name: tensor.clone() for name, tensor in batch.items()})
        for tensor in batch.values():
            tensor.fill_(-5)
    check(batches)


@pytest.mark.slow
def test_an_arrow_batch_that_is_kept_holds_little_of_its_window(tmp_path: Path) -> None:
    read, _ = tq.create_dataloader(
        path=write(tmp_path / "files", wide=True),
        output_format="arrow",
        batch_size=100,
        shuffle=True,
        shuffle_buffer_size=100_000,
    )
    batches = list(read)
    assert sum(batch.num_rows for batch in batches) == TOTAL
    assert max(batch.get_total_buffer_size() / batch.nbytes for batch in batches) < 32
    ids = np.sort(np.concatenate([batch["id"].to_numpy() for batch in batches]))
    assert (ids == np.arange(TOTAL)).all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shuffle_buffer_size": 50_000}, {"num_workers": 2}])
def test_other_columns_go_along(tmp_path: Path, options: dict[str, object]) -> None:
    """Texts and truths, whose columns are gathered when a batch is finished."""
    batches = list(loader(write(tmp_path / "files", wide=True), **options))
    check(batches)
    for batch in batches:
        assert torch.equal(batch["flag"], batch["id"] % 3 == 0)
        assert list(batch["text"]) == [f"{number:x}" * 3 for number in batch["id"].tolist()]


@pytest.mark.parametrize("constant", ["1", "'x'"])
def test_a_query_of_no_column_of_a_file_has_all_its_rows(tmp_path: Path, constant: str) -> None:
    session = tq.Session()
    session.register_parquet("t", write(tmp_path / "files"))
    read, _ = tq.create_dataloader(
        f"SELECT {constant} AS same FROM t",
        session=session,
        batch_size=1000,
        shuffle=True,
        shuffle_buffer_size=BUFFER,
    )
    found = np.concatenate([np.asarray(batch["same"]) for batch in read])
    assert len(found) == TOTAL
    assert (found == found[0]).all()


def test_a_file_that_changed_between_two_turns_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "files", data_page_size=1500, write_batch_size=64)
    batches = iter(loader(folder))
    next(batches)
    for path in folder.iterdir():
        content = bytearray(path.read_bytes())
        path.write_bytes(content)
    with pytest.raises(tq.DataError, match="changed"):
        list(batches)
