"""Filters in every form that users write, as SQL predicates."""
