"""Benchmarks: one table of published tasks a file in `suites/`, and the road from a checkpoint to a score."""
