"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""

from t5x_like.benchmarks.suites import Files, Suite, span_qa

FILES = Files("squad", "squad", {"train": ["train-v1.1.json"], "validation": ["dev-v1.1.json"]})
_FILES_V2 = Files(
  "squad_v2", "squad", {"train": ["train-v2.0.json"], "validation": ["dev-v2.0.json"]}
)

SUITE = Suite(
  {
    "squad": span_qa("tfds:squad/v1.1", 87_599, files=FILES),
    "squad_v2": span_qa("tfds:squad/v2.0", 130_319, files=_FILES_V2, unanswerable=True),
  }
)
