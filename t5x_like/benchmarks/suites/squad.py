"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""

from t5x_like.benchmarks.suites import Suite, spans

SUITE = Suite(
  {"squad": spans("tfds:squad/v1.1", 87_599), "squad_v2": spans("tfds:squad/v2.0", 130_319, unanswerable=True)}
)
