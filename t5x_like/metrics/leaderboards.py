"""The averages of the GLUE and SuperGLUE leaderboards: a task with several scores counts once, with their mean."""

from collections.abc import Mapping, Sequence

GLUE = {
  "cola": ("matthews_correlation",),
  "sst2": ("accuracy",),
  "mrpc": ("f1", "accuracy"),
  "stsb": ("pearson", "spearman"),
  "qqp": ("f1", "accuracy"),
  "mnli": ("matched", "mismatched"),
  "qnli": ("accuracy",),
  "rte": ("accuracy",),
  "wnli": ("accuracy",),
}
SUPERGLUE = {
  "boolq": ("accuracy",),
  "cb": ("macro_f1", "accuracy"),
  "copa": ("accuracy",),
  "multirc": ("f1a", "exact_match"),
  "record": ("f1", "exact_match"),
  "rte": ("accuracy",),
  "wic": ("accuracy",),
  "wsc": ("accuracy",),
}


def average(results: Mapping[str, Mapping[str, float]], tasks: Mapping[str, Sequence[str]] = GLUE) -> float:
  """Return the mean over all tasks of the mean of each task's scores, in the scores' unit.

  Args:
    results: the scores of each task by name; MNLI's are the accuracies `matched` and `mismatched`.
    tasks: `GLUE` or `SUPERGLUE`.
  Raises:
    KeyError: a task or a score is missing.
  """
  means = [sum(results[task][name] for name in names) / len(names) for task, names in tasks.items()]
  return sum(means) / len(means)
