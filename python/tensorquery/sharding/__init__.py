"""Splits, how epochs deal them to ranks and workers, and how far each shard was consumed."""
