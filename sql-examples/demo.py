"""Trains a small network on 336,776 real flights: as one leaves the gate, will it arrive over 15 minutes late?

The training set is one SQL query over Parquet files (`01_flights_delay.sql`). Run it with ``make demo``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import tensorquery as tq

HERE = Path(__file__).parent
DATA = Path(".demo")
EPOCHS = 2
FEATURES = [
    "time_sin", "time_cos", "season_sin", "season_cos", "weekend", "hours_behind", "distance",
    "from_newark", "from_kennedy", "temp", "humid", "wind_speed", "wind_gust", "precip", "pressure",
    "visib", "plane_age", "seats", "plane_unknown", "regional",
]  # fmt: skip


class DelayModel(nn.Module):
    """A carrier embedding beside the weather, the plane and the time, and two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.carrier = nn.Embedding(16, 4)
        self.layers = nn.Sequential(
            # Batch norm brings degrees, miles and years to one scale, so the query need not.
            nn.BatchNorm1d(len(FEATURES) + 4),
            nn.Linear(len(FEATURES) + 4, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, x: Tensor, carrier: Tensor) -> Tensor:
        """Return the logit of being late: (N, F) features and (N,) carrier codes give (N,)."""
        return self.layers(torch.cat([x, self.carrier(carrier)], dim=1)).squeeze(1)


class Timed:
    """Iterates over a loader and counts rows and the seconds spent waiting for them."""

    def __init__(self, loader: Iterable[dict[str, Tensor]]) -> None:
        self.loader = loader
        self.waited = 0.0
        self.rows = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield the loader's batches."""
        asked = time.perf_counter()
        for batch in self.loader:
            self.waited += time.perf_counter() - asked
            self.rows += len(batch["label"])
            yield batch
            asked = time.perf_counter()


def open_session() -> tq.Session:
    """Register the Parquet files, and the training set as a view over them."""
    session = tq.Session()
    for table in ("flights", "weather", "planes", "airlines"):
        session.register_parquet(table, str(DATA / table))
    session.register_view("flights_delay", (HERE / "01_flights_delay.sql").read_text())
    return session


def train_epoch(model: DelayModel, optimizer: torch.optim.Optimizer, batches: Timed) -> list[float]:
    """Train on every batch once; return each batch's loss."""
    model.train()
    losses = []
    for batch in batches:
        logits = model(batch["x"], batch["carrier"])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def predict(model: DelayModel, batches: Iterable[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the logits and labels of all batches."""
    model.eval()
    pairs = [(model(batch["x"], batch["carrier"]), batch["label"]) for batch in batches]
    logits, labels = zip(*pairs, strict=True)
    return torch.cat(logits), torch.cat(labels)


def area_under_curve(logits: Tensor, labels: Tensor) -> float:
    """How often a late flight scores above a punctual one, from the ranks of the scores."""
    ranks = torch.empty(len(logits), dtype=torch.float64)
    ranks[logits.argsort()] = torch.arange(1, len(logits) + 1, dtype=torch.float64)
    late, punctual = labels.sum().item(), (1 - labels).sum().item()
    return (ranks[labels == 1].sum().item() - late * (late + 1) / 2) / (late * punctual)


def main() -> None:
    """Train two epochs and test on days that the model has not seen."""
    torch.manual_seed(0)
    # A network this small gains nothing from more threads; the other cores decode.
    torch.set_num_threads(1)
    session = open_session()
    # Every fifth day of a month is kept back for the test.
    train = session.sql("SELECT * FROM flights_delay WHERE day % 5 <> 0")
    test = session.sql("SELECT * FROM flights_delay WHERE day % 5 = 0")

    print("How two ranks with two workers each would share the work:")
    print(train.plan_shards(world_size=2, num_workers=2, batch_size=1024))

    loader, dataset = tq.create_dataloader(
        train,
        batch_size=1024,
        shuffle=True,
        shuffle_buffer_size=50_000,
        columns=[*FEATURES, "carrier", "label"],
        stack={"x": FEATURES},
    )
    model = DelayModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        batches, started = Timed(loader), time.perf_counter()
        losses = train_epoch(model, optimizer, batches)
        seconds = time.perf_counter() - started
        print(
            f"epoch {epoch}: {batches.rows / seconds:,.0f} rows/s, {batches.waited / seconds:.0%} of the "
            f"time waiting for data, loss {sum(losses) / len(losses):.4f}"
        )

    loader, _ = tq.create_dataloader(
        test, batch_size=8192, columns=[*FEATURES, "carrier", "label"], stack={"x": FEATURES}
    )
    logits, labels = predict(model, loader)
    accuracy = ((logits > 0) == (labels == 1)).float().mean().item()
    print(
        f"test on {len(labels):,} flights: accuracy {accuracy:.1%} (always 'punctual': "
        f"{1 - labels.mean().item():.1%}), AUC {area_under_curve(logits, labels):.3f} (by chance: 0.5)"
    )
    print(
        f"The training set is one query: {HERE.name}/01_flights_delay.sql. Change it, and run this again: make demo"
    )


if __name__ == "__main__":
    main()
