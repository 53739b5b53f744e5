"""Benchmarks: from a checkpoint to a table of scores.

Read from the top down:

suite          fine-tunes on every task of a suite, at every rate, from every seed
suites/        the tasks, one table a file: data, forms for each architecture, scores
custom_suites  suites from modules and TOML files of the user
steps          a suite from several checkpoints of one run
data           finds the records of a task: official files, or TensorFlow datasets
submission     writes predictions for test sets, as leaderboards take them
tables         writes the results as JSON, Markdown and a page
charts         draws the charts of the page
comparison     compares two results, with intervals
facts          collects the facts about a run besides its score
predictions    reads the saved predictions of a run, and the metrics that score them again
"""
