"""Scores of saved predictions: pure functions of references and predictions, one family a file.

Every metric is a `metric.Metric`: it turns each example into a row of numbers, and any set of rows
into scores, so that `resampling` computes intervals and paired tests for all metrics.

All shares, F1 scores and correlations are in percent (0 to 100, correlations -100 to 100), as
printed by leaderboards, papers and T5's `evaluation/metrics.py`. Libraries are imported where they
are used: each takes up to a second to load.
"""
