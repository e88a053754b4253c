"""`tensorquery.compat` reads the rows that torch-dataloader-utils reads: the examples of its README, which differ in one
import, each format, and each option."""

import datetime
import decimal
import itertools
import json
import math
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import torch
import torch_dataloader_utils as peer
from accelerate import Accelerator
from torch.utils.data import DataLoader

import ranks
from compat_rows import (
    SNIPPETS,
    assert_same_rows,
    pass_on,
    rows_of,
    snippet,
    substituted,
    table,
    write_files,
)
from tensorquery import DataError, compat


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files") / "train")


def structured(path, library, **options):
    options = {"format": "parquet", "num_workers": 0, "batch_size": 100, **options}
    loader, _ = library.StructuredDataset.create_dataloader(path=str(path), **options)
    return loader


# --- the examples of the peer's README ---


def run(text, library, **names):
    """An example as a user has it, with another library in its import line."""
    names = {"pc": pc, "StructuredDataset": library.StructuredDataset, **names}
    text = text.replace("torch_dataloader_utils", library.__name__)
    exec(compile(text, "README", "exec"), names)
    return names


def test_the_readme_has_the_examples_that_are_known_here():
    # Two of them are options and an outline of a strategy.
    assert len(SNIPPETS) == 10


@pytest.mark.slow
def test_the_example_of_all_parameters(files):
    text = snippet("shuffle_buffer_size=50_000", "StructuredDataset")
    text = substituted(text, {"s3://my-bucket/data/train/": f"{files}/"})
    with pytest.warns(UserWarning, match=r"\(key, secret\) have no effect on the local path"):
        found = assert_same_rows(lambda library: run(text, library)["loader"])
    assert sum(found.values()) == 3199


@pytest.mark.slow
def test_the_example_of_a_collate_function(files):
    text = snippet("collate_fn=my_collate")
    text = substituted(text, {"s3://my-bucket/data/train/": str(files)})

    def collate(batch):
        return {"x": torch.stack([batch["feature_b"], batch["label"].double()], dim=1)}

    found = assert_same_rows(lambda library: run(text, library, my_collate=collate)["loader"])
    assert sum(found.values()) == 4800


@pytest.mark.slow
def test_the_example_of_epochs(files):
    text = substituted(snippet("dataset.set_epoch(epoch)"), {"s3://bucket/data/": str(files)})

    def train(library):
        """The example's loop, and all that the model saw."""
        seen = []

        class Optimizer:
            zero_grad = step = staticmethod(lambda: None)

        def model(batch):
            seen.append(batch)
            return torch.zeros((), requires_grad=True)

        run(text, library, num_epochs=2, optimizer=Optimizer, model=model)
        return seen

    found = assert_same_rows(train)
    assert set(found.values()) == {2}


@pytest.mark.slow
def test_the_example_of_a_dataloader_of_ones_own(files):
    """The README gives path=, which the peer's constructor refuses: it takes files=."""
    lines = snippet("StructuredDataset(path=").replace('path="..."', f'path="{files}"')
    text = substituted(lines, {", ...)": ", batch_size=500)"})

    names = {"DataLoader": DataLoader, "accelerator": Accelerator()}
    with pytest.raises(TypeError, match="path"):
        run(text, peer, **names)
    files_of_peer = sys.modules["torch_dataloader_utils.filesystem.discovery"].discover_files
    theirs = peer.StructuredDataset(files_of_peer(str(files)), "parquet")
    ours = run(text, compat, **names)["loader"]
    assert rows_of(ours) == rows_of(DataLoader(theirs, batch_size=None))
    # The peer's way goes too.
    listed = compat.StructuredDataset(compat.discover_files(str(files)), "parquet")
    assert rows_of(DataLoader(listed, batch_size=None, num_workers=2)) == rows_of(ours)


@pytest.mark.slow
def test_the_example_of_accelerate(files):
    text = substituted(snippet("num_ranks=accelerator"), {"s3://bucket/data/": str(files)})
    found = assert_same_rows(lambda library: run(text, library)["loader"])
    assert sum(found.values()) == 4800


def train_as_the_readme(rank, world_size, path):
    text = snippet("dist.init_process_group").replace('"nccl"', '"gloo"')
    text = substituted(text, {"s3://bucket/data/": path, "num_workers=4": "num_workers=1"})
    loader = run(text, compat)["loader"]
    batches = [batch["id"].tolist() for batch in loader]
    return batches, len(loader)


@pytest.mark.slow
def test_the_example_of_ddp(files):
    found = ranks.run(train_as_the_readme, 2, str(files))
    ids = [number for batches, _ in found for batch in batches for number in batch]
    assert sorted(ids) == sorted(pq.read_table(files)["id"].to_pylist())
    # Unlike the peer's ranks, these take the same number of steps.
    assert len({len(batches) for batches, _ in found} | {steps for _, steps in found}) == 1


# --- formats ---


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_output_formats(files, output_format, num_workers):
    options = {"output_format": output_format, "num_workers": num_workers, "collate_fn": pass_on}
    found = assert_same_rows(lambda library: structured(files, library, **options))
    assert sum(found.values()) == 4800


def test_orc(tmp_path):
    for number in range(2):
        pyarrow.orc.write_table(
            table(number * 1000, 900), tmp_path / f"{number}.orc", stripe_size=4096
        )
    assert_same_rows(lambda library: structured(tmp_path, library, format="orc"), least=1800)


def test_csv(tmp_path):
    for number in range(2):
        # An empty text is a null here, and an empty text there.
        whole = table(number * 1000, 900).drop_columns(["name", "feature_a", "flag", "date"])
        pyarrow.csv.write_csv(whole, tmp_path / f"{number}.csv")
    assert_same_rows(lambda library: structured(tmp_path, library, format="csv"), least=1800)


@pytest.mark.parametrize("name", ["json", "jsonl"])
def test_json(tmp_path, name):
    for number in range(2):
        rows = table(number * 1000, 900).drop_columns(["date"]).to_pylist()
        (tmp_path / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    assert_same_rows(lambda library: structured(tmp_path, library, format=name), least=1800)


def test_hive_directories(tmp_path):
    for year in ("2023", "2024"):
        for month in ("01", "12"):
            write_files(tmp_path / f"year={year}" / f"month={month}", sizes=(150,))
    options = {"partitioning": "hive", "columns": ["id", "label"]}
    path = f"{tmp_path}/*/*/*.parquet"
    found = assert_same_rows(lambda library: structured(path, library, **options), least=600)
    assert any("'month', 'list None', '01'" in row for row in found)
    # The peer finds nothing in the directory itself.
    assert not rows_of(structured(tmp_path, peer, **options))
    assert rows_of(structured(tmp_path, compat, **options)) == found


def test_directories_without_keys_are_not_read_into(files, tmp_path):
    write_files(tmp_path / "top")
    write_files(tmp_path / "top" / "old", sizes=(50,))
    assert_same_rows(lambda library: structured(tmp_path / "top", library), least=4800)
    assert not rows_of(structured(tmp_path, peer))
    with pytest.raises(FileNotFoundError, match="partitioning"):
        structured(tmp_path, compat)


def test_files_of_a_directory_by_their_endings(tmp_path):
    write_files(tmp_path / "mixed", sizes=(50, 60))
    (tmp_path / "mixed" / "README.md").write_text("What these are.")
    (tmp_path / "mixed" / "labels.csv").write_text("x\n1\n")
    discover = sys.modules["torch_dataloader_utils.filesystem.discovery"].discover_files
    for path, endings in [
        ("mixed", [".parquet"]),
        ("mixed", [".csv", ".parquet"]),
        ("mixed", [".orc"]),
        ("mixed/*", [".parquet"]),
        ("**", [".parquet"]),
        ("mixed/part-0.parquet", [".parquet"]),
    ]:
        wanted = discover(f"{tmp_path}/{path}", extensions=endings)
        found = compat.discover_files(f"{tmp_path}/{path}", extensions=endings)
        # Theirs come as the system lists them.
        wanted = sorted(wanted, key=lambda file: file.path)
        assert [vars(file) for file in found] == [vars(file) for file in wanted]
    with pytest.raises(FileNotFoundError, match="nothing"):
        compat.discover_files(f"{tmp_path}/nothing", extensions=[".parquet"])


def test_the_name_of_a_file_is_no_directory(tmp_path):
    (tmp_path / "y=1").mkdir()
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "y=1" / "x=2.parquet")
    (batch,) = structured(tmp_path, compat, partitioning="hive")
    assert (batch["x"].tolist(), batch["y"]) == ([1.5], ["1"])


def test_patterns_and_single_files(files):
    for path in (files / "part-1.parquet", f"{files}/part-?.parquet", f"{files}/*.parquet"):
        assert_same_rows(lambda library, path=path: structured(path, library), least=1500)


# --- values ---


def test_nulls_among_whole_numbers_and_booleans(tmp_path):
    values = {
        "whole": pa.array([1, None, 3, 4], pa.int32()),
        "text": pa.array(["a", None, "", "d"]),
        "raw": pa.array([b"\0", None, b"", b"x"]),
        "half": pa.array([1.5, None, 2, 3], pa.float16()),
    }
    pq.write_table(pa.table(values), tmp_path / "nulls.parquet")
    for output_format in ("torch", "numpy"):
        assert_same_rows(
            lambda library, f=output_format: structured(tmp_path, library, output_format=f)
        )
    # The dtype of a batch with a null is another one, as it is there.
    kinds = {str(batch["whole"].dtype) for batch in structured(tmp_path, compat, batch_size=2)}
    assert kinds == {"torch.float64", "torch.int32"}
    flags = pa.table({"flag": pa.array([True, None])})
    pq.write_table(flags, tmp_path / "nulls.parquet")
    assert_same_rows(lambda library: structured(tmp_path, library, output_format="numpy"))
    with pytest.raises(TypeError):
        rows_of(structured(tmp_path, peer))
    with pytest.raises(DataError, match="'flag' is boolean and holds a null"):
        rows_of(structured(tmp_path, compat))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_types_without_a_tensor_are_lists(tmp_path, output_format, num_workers):
    day = datetime.date(2024, 2, 29)
    values = {
        "id": pa.array(range(10), pa.uint16()),
        "day": pa.array([day + datetime.timedelta(n) for n in range(10)]),
        "moment": pa.array([datetime.datetime(2024, 1, 1, n) for n in range(10)], pa.timestamp("us")),
        "price": pa.array([decimal.Decimal(n).scaleb(-2) for n in range(10)], pa.decimal128(9, 2)),
        "tags": pa.array([[n] * (n % 3) for n in range(10)], pa.list_(pa.int64())),
        "pair": pa.array([{"x": n, "y": None} for n in range(10)], pa.struct({"x": "int32", "y": "string"})),
        "maybe": pa.array([None if n == 4 else n for n in range(10)]),
        "maybe_mask": pa.array([n % 2 == 0 for n in range(10)]),
        "kind": pa.array(["a", "b"] * 5).dictionary_encode(),
    }  # fmt: skip
    pq.write_table(pa.table(values), tmp_path / "types.parquet")
    options = {"output_format": output_format, "num_workers": num_workers, "batch_size": 10}
    assert_same_rows(lambda library: structured(tmp_path, library, **options), least=10)


def test_a_column_called_like_a_mask(tmp_path):
    values = {"x": pa.array([1, None, 3]), "x_mask": pa.array([1, 2, 3])}
    pq.write_table(pa.table(values), tmp_path / "mask.parquet")
    assert_same_rows(lambda library: structured(tmp_path, library), least=3)


def test_tensors_may_be_written_to(files):
    for batch in structured(files, compat):
        for values in batch.values():
            if isinstance(values, torch.Tensor):
                values.zero_()


# --- options ---


OPTIONS = {
    "columns": {"columns": ["label", "id"]},
    "filters": {"filters": (pc.field("region_id") > 3) & (pc.field("date") != "2024-06-01")},
    "filters of another column": {"columns": ["id"], "filters": pc.field("name").is_valid()},
    "shuffle": {"shuffle": True, "shuffle_seed": 7},
    "shuffle with a buffer": {"shuffle": True, "shuffle_buffer_size": 500},
    "a buffer alone": {"shuffle_buffer_size": 500},
    "no buffer": {"shuffle_buffer_size": 0},
    "split_bytes": {"split_bytes": "10KiB", "num_workers": 2},
    "split_rows": {"split_rows": 600, "num_workers": 3},
    "one batch": {"batch_size": 10_000},
    "workers": {"num_workers": 2, "output_format": "dict", "collate_fn": pass_on},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the data is sorted")
@pytest.mark.parametrize("option", OPTIONS)
def test_options(files, option):
    assert_same_rows(lambda library: structured(files, library, **OPTIONS[option]), least=1000)


@pytest.mark.filterwarnings("ignore:the data is sorted")
def test_shuffling_permutes_parts_and_mixes_rows_only_where_that_is_asked_for(files):
    def order(**options):
        loader = structured(
            files, compat, columns=["id"], split_rows=300, batch_size=300, **options
        )
        return np.concatenate([batch["id"].numpy() for batch in loader])

    straight, permuted = order(), order(shuffle=True)
    mixed = order(shuffle=True, shuffle_buffer_size=1000)
    assert (straight != permuted).any()
    # Within a row group nothing has moved.
    assert (np.diff(straight) == 1).sum() == 4797
    assert (np.diff(permuted) == 1).sum() >= 4800 - 17
    assert (np.diff(mixed) == 1).sum() < 500
    assert (order(shuffle=True, shuffle_seed=1) != permuted).any()
    assert (order(shuffle=True) == permuted).all()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_share_the_rows(files, num_ranks):
    def numbers(library):
        found = []
        for rank in range(num_ranks):
            loader = structured(files, library, num_ranks=num_ranks, rank=rank)
            found.append([number for batch in loader for number in batch["id"].tolist()])
        return found

    theirs, ours = numbers(peer), numbers(compat)
    assert sorted(itertools.chain(*ours)) == sorted(itertools.chain(*theirs))
    # Ranks of the peer take different numbers of steps, and wait for one another at the end.
    lengths = [len(found) for found in ours]
    assert max(lengths) - min(lengths) <= 1
    assert len({math.ceil(length / 100) for length in lengths}) == 1
    assert max(map(len, theirs)) - min(map(len, theirs)) > 100


def test_names_with_the_characters_of_patterns(tmp_path):
    folder = write_files(tmp_path / "run[1]")
    for path in (folder, folder / "part-0.parquet"):
        assert_same_rows(lambda library, path=path: structured(path, library), least=700)
    listed = compat.discover_files(str(folder))
    assert [file.path for file in listed] == [str(folder / f"part-{n}.parquet") for n in range(3)]
    loader = DataLoader(compat.StructuredDataset(listed, "parquet"), batch_size=None)
    assert sum(rows_of(loader).values()) == 4800
