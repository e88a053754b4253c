"""Counts, time series, progress bars and the report of an epoch."""
