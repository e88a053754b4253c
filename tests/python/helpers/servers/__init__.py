"""Servers of the Iceberg tests: what runs in processes of its own. The fixtures are in `iceberg_servers`."""
