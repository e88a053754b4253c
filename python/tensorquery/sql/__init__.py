"""Sessions, their tables, and queries over them."""
