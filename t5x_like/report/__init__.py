"""Metrics, pictures and the page of a run."""
