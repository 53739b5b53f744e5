"""Generated text: translation (Multi30k), summaries (SciTLDR) and questions without a context (WebQuestions)."""

from t5x_like.benchmarks.suites import Suite, generated

SUITE = Suite(
  {
    "multi30k": generated(
      "tfds:multi30k/en-de",
      29_000,
      inputs="translate English to German: {en}",
      targets="{de}",
      metrics=["bleu", "chrf"],
      counted=("bleu",),
      evaluated={"dev": "validation", "test": "test"},
      beams=4,
    ),
    "scitldr": generated(
      "tfds:scitldr",
      1_992,
      inputs="summarize: {source.*}",
      targets="{target.0}",
      metrics=["rouge"],
      counted=("rouge1", "rouge2", "rougeLsum"),
      references="target",
      evaluated={"dev": "validation", "test": "test"},
      inputs_length=512,
      targets_length=64,
    ),
    "web_questions": generated(
      "tfds:web_questions",
      3_778,
      inputs="question: {question}",
      targets="{answers.0}",
      metrics=["answers"],
      counted=("exact_match", "f1"),
      references="answers",
      evaluated={"dev": "test"},
      targets_length=32,
    ),
  }
)
