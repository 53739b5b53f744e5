"""Score saved predictions of a benchmark in its official format (`python -m tools.score`)."""
