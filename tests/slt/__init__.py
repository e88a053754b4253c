"""Runs suites of sqllogictest files through the loader, and compares each answer with a judge's; see README.md in this folder."""
