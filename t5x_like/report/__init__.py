"""Metrics, pictures and the page of a run. `results` finds the modules that draw by name."""
