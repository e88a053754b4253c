"""Checks and helpers that every other package uses; they import none of them."""
