"""Benchmarks: from a checkpoint to a table of scores. Read from the top down:

suite        the runs to make: every task of a suite, at every rate, from every seed; a run and a result each
suites/      the tasks, one table a file: their data, their forms for each architecture, their scores
data         where the records of a task are: official files, or TensorFlow datasets
submission   the predictions for test sets, as leaderboards take them
tables       the results as JSON, Markdown and a page
charts       of the page
comparison   two results side by side, with intervals
facts        a table's facts about a run besides its score
predictions  the saved predictions of a run, and the metrics that score them again
"""
