"""Checkpoints of a run: names and bits, on a disk or in an object store."""
