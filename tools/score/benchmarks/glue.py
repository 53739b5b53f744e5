"""GLUE (Wang et al. 2018): dev files as in its archive, predictions as in its submissions."""

import math
from typing import Any

from t5x_like.metrics.correlation import Correlation
from tools.score.benchmark import Benchmark, Example
from tools.score.labels import labelled, task

_NLI = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")


def _similarity(value: Any, example: Example | None = None) -> float:
  try:
    number = float(value)
  except (TypeError, ValueError):
    number = math.nan
  if not math.isfinite(number):
    raise ValueError(f"found {str(value)[:40]!r}, expected a number (0 to 5)")
  return number


def _stsb() -> Benchmark:
  return Benchmark(Correlation(), lambda paths: labelled(paths, _similarity), _similarity)


def _mnli_part(path: str) -> str:
  name = path.rsplit("/", 1)[-1].lower()
  return "mismatched" if "mismatched" in name or "-mm" in name else "matched"


_MNLI = task(*_NLI, headerless=("label", "premise", "hypothesis"), part=_mnli_part)

BENCHMARKS = {
  "glue/cola": task(
    "0|unacceptable",
    "1|acceptable",
    scores=("matthews_correlation", "accuracy"),
    headerless=("source", "label", "mark", "sentence"),
  ),
  "glue/sst2": task("0|negative", "1|positive"),
  "glue/mrpc": task("0|not_equivalent", "1|equivalent", scores=("f1", "accuracy")),
  "glue/qqp": task("0|not_duplicate", "1|duplicate", scores=("f1", "accuracy")),
  "glue/stsb": _stsb,
  "glue/mnli": _MNLI,
  "glue/mnli_matched": _MNLI,
  "glue/mnli_mismatched": _MNLI,
  "glue/qnli": task(*_TWO),
  "glue/rte": task(*_TWO),
  "glue/wnli": task("0|not_entailment", "1|entailment"),
  "glue/ax": task(*_NLI, scores=("matthews_correlation", "accuracy")),
}
