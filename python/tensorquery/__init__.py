"""Placeholder for imports in this branch; the main branch has the real one."""
