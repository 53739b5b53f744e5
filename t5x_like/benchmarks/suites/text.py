"""Generated text: translation (Multi30k), summaries (SciTLDR) and questions without a context.

The texts and the judgement of closed-book questions are those of Roberts et al. 2020
(https://arxiv.org/abs/2002.08910): the first answer is learned, and any is right. SciTLDR's
judgement is that of its `evaluate.py`: ROUGE without a stemmer with the reference of the highest
ROUGE-1.
"""

from t5x_like.benchmarks.suites import SPLITS, Files, Suite, generation

_MULTI30K = {
  "train": ["train.{field}"],
  "validation": ["val.{field}"],
  "test": ["test_2016_flickr.{field}"],
}
_SCITLDR = {split: [f"SciTLDR-A/{name}.jsonl"] for split, name in SPLITS.items()}
_WEB_QUESTIONS = {
  "train": ["webquestions.examples.train.json", ["trainmodel.json", "val.json", "devtest.json"]],
  "test": ["webquestions.examples.test.json", "test.json"],
}

SUITE = Suite(
  {
    "multi30k": generation(
      None,
      29_000,
      files=Files("multi30k", "parallel", _MULTI30K, header=("en", "de")),
      inputs="translate English to German: {en}",
      targets="{de}",
      metrics=["bleu", "chrf"],
      counted=("bleu",),
      evaluated={"dev": "validation", "test": "test"},
      beams=4,
    ),
    "scitldr": generation(
      None,
      1_992,
      files=Files("scitldr", "jsonl", _SCITLDR),
      inputs="summarize: {source.*}",
      targets="{target.0}",
      metrics=[{"name": "rouge", "use_stemmer": False, "one_reference": True}],
      counted=("rouge1", "rouge2", "rougeLsum"),
      references="target",
      evaluated={"dev": "validation", "test": "test"},
      inputs_length=512,
      targets_length=64,
    ),
    "web_questions": generation(
      "tfds:web_questions",
      3_778,
      files=Files("web_questions", "webquestions", _WEB_QUESTIONS),
      inputs="wq question: {question}",
      targets="{answers.0}",
      metrics=["answers"],
      counted=("exact_match", "f1"),
      references="answers",
      evaluated={"dev": "test"},
      targets_length=32,
    ),
    "natural_questions": generation(
      "tfds:natural_questions_open",
      87_925,
      inputs="nq question: {question}",
      targets="{answer.0}",
      metrics=["answers"],
      counted=("exact_match", "f1"),
      references="answer",
      targets_length=32,
    ),
    "trivia_qa": generation(
      "tfds:trivia_qa/unfiltered.nocontext",
      87_622,
      inputs="trivia_qa question: {question}",
      targets="{answer.value}",
      metrics=[{"name": "answers", "normalization": "triviaqa"}],
      counted=("exact_match", "f1"),
      references="answer.aliases",
      targets_length=32,
    ),
  }
)
