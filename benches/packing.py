"""Measures packed sequences against their targets: ``make bench-packing``.

One list column of token ids: packs of `create_dataloader(pack=…)` beside the same loader's unpacked rows, TRL's packing over
`datasets` with its padding-free collator, and torchtune's `PackedDataset`, which keeps all packs in memory. **first** is all from
opening the file to the last batch of the first epoch, with nothing on disk yet; **epoch** is one more epoch. What is compared takes
turns, and all must deliver the same number of tokens; the figures are medians over the rounds and their spread,
(max - min) / median. A peer that is not installed is a line of the table. Ends with the targets met and missed, and a status other
than zero when one is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
LENGTH = 4096
BATCH = 8

Epoch = Callable[[], int]
"""One epoch; returns the tokens that it delivered."""


def write(path: Path, documents: int) -> None:
    """Documents of about 600 tokens, some of them longer than a pack."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(37)
    sizes = np.minimum(rng.lognormal(6, 0.9, documents).astype(np.int64) + 1, 20_000)
    values = pa.array(rng.integers(1, 50_000, int(sizes.sum()), np.int32))
    ends = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
    table = pa.table({"input_ids": pa.ListArray.from_arrays(ends, values)})
    pq.write_table(table, path, row_group_size=4096)


def unpacked(path: Path) -> Epoch:
    """The rows as they are."""
    import tensorquery as tq

    loader, _ = tq.create_dataloader(path=path, batch_size=64, output_format="numpy")
    return lambda: sum(len(batch["input_ids"].values) for batch in loader)


def packed(path: Path) -> Epoch:
    """Packs, with all their outputs. Tokens are positions without those of padding, of which an epoch has as many as the next."""
    import tensorquery as tq

    pack = tq.Pack(columns=["input_ids"], length=LENGTH)
    loader, dataset = tq.create_dataloader(path=path, pack=pack, batch_size=BATCH)
    padding = dataset.packing.packs * LENGTH - dataset.packing.tokens
    return lambda: sum(batch["input_ids"].numel() for batch in loader) - padding


def _checked(path: Path) -> None:
    """Count the tokens of an epoch of packs one by one, which takes as long as to make them."""
    import tensorquery as tq

    pack = tq.Pack(columns=["input_ids"], length=LENGTH)
    loader, dataset = tq.create_dataloader(path=path, pack=pack, batch_size=BATCH)
    tokens = sum(int((batch["document_ids"] >= 0).sum()) for batch in loader)
    if tokens != dataset.packing.tokens:
        raise SystemExit(
            f"packs have {tokens} tokens, and say that they have {dataset.packing.tokens}"
        )


def trl(path: Path) -> Epoch:
    """TRL's best-fit packing without truncation, and its collator."""
    import datasets
    from torch.utils.data import DataLoader
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_parquet(str(path), keep_in_memory=True)
    found = pack_dataset(rows, LENGTH, "bfd_split", {"keep_in_memory": True})
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    loader = DataLoader(found, batch_size=BATCH, collate_fn=collate)
    return lambda: sum(int(batch["input_ids"].numel()) for batch in loader)


class Samples:
    """Documents as torchtune takes them."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        """The number of documents."""
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        """Yield tokens and labels."""
        for row in self.rows:
            yield {"tokens": row["input_ids"], "labels": row["input_ids"]}


def torchtune(path: Path) -> Epoch:
    """torchtune's packing in the order of the documents. Without its mask, which has 16 million places a pack."""
    import datasets
    import torch
    from torch.utils.data import DataLoader
    from torchtune.datasets import PackedDataset

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_parquet(str(path), keep_in_memory=True)
    found = PackedDataset(Samples(rows), max_seq_len=LENGTH, split_across_pack=True)
    padding = LENGTH * len(found) - len(rows.data.column("input_ids").combine_chunks().values)

    def stacked(packs: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            name: torch.stack([pack[name] for pack in packs])
            for name in ("tokens", "labels", "input_pos")
        }

    loader = DataLoader(found, batch_size=BATCH, collate_fn=stacked)
    return lambda: sum(int(batch["tokens"].numel()) for batch in loader) - padding


LIBRARIES: dict[str, Callable[[Path], Epoch]] = {
    "unpacked": unpacked,
    "packed": packed,
    "trl": trl,
    "torchtune": torchtune,
}


def measure(path: Path, rounds: int) -> list[tuple[str, float, str, bool]]:
    """All of them in turns."""
    _checked(path)
    rates: dict[str, dict[str, list[float]]] = {}
    missing: set[str] = set()
    for number in range(rounds + 1):
        tokens = set()
        for name, prepare in LIBRARIES.items():
            if name in missing:
                continue
            with tempfile.TemporaryDirectory(dir=path.parent) as stages:
                os.environ["TENSORQUERY_STAGES"] = stages
                start = time.perf_counter()
                try:
                    epoch = prepare(path)
                except ImportError as error:
                    missing.add(name)
                    print(f"| {name} | not installed: {error} | | |", flush=True)
                    continue
                count = epoch()
                first = time.perf_counter() - start
                start = time.perf_counter()
                tokens |= {count, epoch()}
                again = time.perf_counter() - start
                del epoch
            # The first round warms caches.
            if number:
                own = rates.setdefault(name, {"first": [], "epoch": []})
                own["first"].append(count / first)
                own["epoch"].append(count / again)
        if len(tokens) != 1:
            raise SystemExit(f"they deliver different numbers of tokens: {sorted(tokens)}")
    for name, kinds in rates.items():
        for kind, each in kinds.items():
            median = statistics.median(each)
            spread = (max(each) - min(each)) / median
            print(f"| {name} | {kind} | {median / 1e6:.2f} million tokens/s | {spread:.0%} |")
    wanted = [("unpacked", "epoch", 0.8)]
    wanted += [(peer, kind, 20.0) for peer in ("trl", "torchtune") for kind in ("first", "epoch")]
    found = []
    for name, kind, least in wanted:
        if name in rates:
            pairs = zip(rates["packed"][kind], rates[name][kind], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            found.append((f"{kind}: packed / {name}", ratio, f">= {least}", ratio >= least))
    return found


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--documents", type=int, default=50_000, help="documents (default 50,000)")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from compare.machine import machine
    from compare.report import end_with
    from data.once import DATA, once

    DATA.mkdir(exist_ok=True)
    name = f"packing-{options.documents}"
    folder = once(DATA / name, lambda folder: write(folder / "tokens.parquet", options.documents))
    print(f"{machine()}, load average {os.getloadavg()[0]:.1f}\n")
    print("| loader | what | throughput | spread |\n|---|---|---:|---:|")
    found = measure(folder / "tokens.parquet", options.rounds)
    end_with(found)


if __name__ == "__main__":
    main()
