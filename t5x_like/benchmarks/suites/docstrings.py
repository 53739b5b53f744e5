"""A benchmark without a download, made from the corpus `docstrings`.

The source is `corpora/sources/docstring_tasks.py`.

The test split counts: its modules are in no other split, nor in the corpus's pretraining documents.
"""

import dataclasses

from t5x_like.benchmarks.suites import Benchmark, Suite, classification, generation, span_qa

_PACKAGES = ("jax", "keras", "matplotlib", "orbax", "scipy", "stdlib", "tensorflow")
_SPLITS = {"dev": {"split": "validation", "max_examples": 256}, "test": {"split": "test"}}
_COMMON_ARGUMENTS = {"evaluated": _SPLITS, "ids": ("id",)}


def _count_test_scores(benchmark: Benchmark) -> Benchmark:
  """Return the benchmark with only its scores on the test split counted."""
  forms = {"encoder": benchmark.encoder, "text": benchmark.text}
  for name, form in forms.items():
    if form:
      counted = tuple(score for score in form.counted if score.startswith("test/"))
      forms[name] = dataclasses.replace(form, counted=counted)
  return dataclasses.replace(benchmark, **forms)


_QUESTION = "parameter: {question} context: {context}"
_AS_SPANS = span_qa(
  "docstring_tasks:parameter", 8_000, evaluated=_SPLITS, counted=("test/f1", "test/exact_match")
)
_AS_TEXT = generation(
  "docstring_tasks:parameter",
  8_000,
  inputs=_QUESTION,
  targets="{answers.0.text}",
  metrics=["answers"],
  counted=("f1", "exact_match"),
  targets_length=32,
  **_COMMON_ARGUMENTS,
)

SUITE = Suite(
  {
    "package": _count_test_scores(
      classification(
        "docstring_tasks:package",
        8_000,
        text="{text}",
        labels=_PACKAGES,
        inputs="package: {text}",
        **_COMMON_ARGUMENTS,
      )
    ),
    "halves": _count_test_scores(
      classification(
        "docstring_tasks:halves",
        8_000,
        text="{first}",
        pair="{second}",
        labels=("apart", "together"),
        inputs="halves first: {first} second: {second}",
        **_COMMON_ARGUMENTS,
      )
    ),
    "name": _count_test_scores(
      generation(
        "docstring_tasks:name",
        8_000,
        inputs="name: {text}",
        targets="{name}",
        metrics=["answers"],
        counted=("f1", "exact_match"),
        targets_length=16,
        **_COMMON_ARGUMENTS,
      )
    ),
    "parameter": _count_test_scores(dataclasses.replace(_AS_SPANS, text=_AS_TEXT.text)),
  }
)
