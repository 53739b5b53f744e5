"""Report a run: its summary, metrics, trackers, pictures and page."""
