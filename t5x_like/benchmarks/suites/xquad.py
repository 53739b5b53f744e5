"""XQuAD (Artetxe et al. 2020): trained on SQuAD 1.1 in English, evaluated in eleven languages.

Like XTREME's tables (`evaluate.py`), it is scored by SQuAD's script in every language.
"""

from t5x_like.benchmarks.suites import Files, Suite, span_qa
from t5x_like.benchmarks.suites.squad import FILES

LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ru", "th", "tr", "vi", "zh")

SUITE = Suite(
  {
    "xquad": span_qa(
      "tfds:squad/v1.1",
      87_599,
      files=FILES,
      evaluated={"dev": "validation"}
      | {
        language: {"task": {"source": f"tfds:xquad/{language}"}, "split": "test"}
        for language in LANGUAGES
      },
      own_files={
        language: Files(f"xquad_{language}", "squad", {"test": [f"xquad.{language}.json"]})
        for language in LANGUAGES
      },
      counted=tuple(
        f"{language}/{score}" for language in LANGUAGES for score in ("exact_match", "f1")
      ),
    )
  }
)
