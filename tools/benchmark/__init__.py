"""Benchmarks that print their method and, as their last line, one JSON object."""
