"""Verify a certificate against the data, the checkpoints and the metrics of its run."""
