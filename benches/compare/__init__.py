"""Loaders compared on the same files, each in a process of its own; see ``benches/README.md``."""
