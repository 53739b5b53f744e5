"""GLUE (Wang et al. 2018, https://arxiv.org/abs/1804.07461).

The templates of text-to-text models are T5's (Raffel et al. 2020, appendix D).
"""

import dataclasses

from t5x_like.benchmarks.suites import SPLITS, Benchmark, Files, Suite, classification, t5_text_form

_THREE_LABELS = ("entailment", "neutral", "contradiction")
_TWO_LABELS = ("entailment", "not_entailment")
_SENTENCE_PAIR = {"text": "{sentence1}", "pair": "{sentence2}"}
_MNLI_EVALUATIONS = {"matched": "validation_matched", "mismatched": "validation_mismatched"}


def _tsv(folder: str, **columns) -> Files:
  """Return the files of a task in GLUE's archive, where test sets have no labels."""
  splits = {split: [f"{folder}/{name}.tsv"] for split, name in SPLITS.items()}
  return Files(folder, "tsv", splits, **columns)


# Several paths of a split are the possible names of its one file, see `official.py`.
_MRPC = Files(
  "MRPC",
  "tsv",
  {
    "train": ["MRPC/train.tsv", "msr_paraphrase_train.txt"],
    "validation": ["MRPC/dev.tsv"],
    "test": ["MRPC/test.tsv", "msr_paraphrase_test.txt"],
  },
  fields={"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"},
)
_MNLI = Files(
  "MNLI",
  "tsv",
  {
    "train": ["MNLI/train.tsv"],
    "validation_matched": ["MNLI/dev_matched.tsv"],
    "validation_mismatched": ["MNLI/dev_mismatched.tsv"],
    "test_matched": ["MNLI/test_matched.tsv"],
    "test_mismatched": ["MNLI/test_mismatched.tsv"],
    "test_ax": ["diagnostic/diagnostic.tsv", "AX/diagnostic.tsv", "AX/AX.tsv"],
  },
  header=("label", "premise", "hypothesis"),
  fields={"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"},
)

# Scores on the development sets, from the tables of https://github.com/microsoft/unilm
# (minilm/README.md) and https://github.com/facebookresearch/fairseq (examples/roberta/README.md).
_PUBLISHED = {
  "BERT base": dict(mnli=84.5, sst2=93.2, qnli=91.7, cola=58.9, rte=68.6, mrpc=87.3, qqp=91.3),
  "MiniLM-L6xH384": dict(mnli=83.3, sst2=91.5, qnli=90.5, cola=47.5, rte=68.8, mrpc=88.9, qqp=90.6),
  "RoBERTa base": dict(
    mnli=87.6, qnli=92.8, qqp=91.9, rte=78.7, sst2=94.8, mrpc=90.2, cola=63.6, stsb=91.2
  ),
}


def _with_published(tasks: dict[str, Benchmark]) -> dict[str, Benchmark]:
  """Return the tasks, each with its published scores."""
  scored_tasks = {}
  for task, benchmark in tasks.items():
    published = {model: scores[task] for model, scores in _PUBLISHED.items() if task in scores}
    scored_tasks[task] = dataclasses.replace(benchmark, published=published)
  return scored_tasks


SUITE = Suite(
  _with_published(
    {
      "cola": classification(
        "tfds:glue/cola",
        8_551,
        files=_tsv("CoLA", header=("source", "label", "mark", "sentence")),
        text="{sentence}",
        length=64,
        labels=("unacceptable", "acceptable"),
        scores=("matthews_correlation", "accuracy"),
        counted=("matthews_correlation",),
        inputs="cola sentence: {sentence}",
        test={"CoLA": "test"},
      ),
      "sst2": classification(
        "tfds:glue/sst2",
        67_349,
        files=_tsv("SST-2"),
        text="{sentence}",
        length=80,
        labels=("negative", "positive"),
        inputs="sst2 sentence: {sentence}",
        test={"SST-2": "test"},
      ),
      "mrpc": classification(
        "tfds:glue/mrpc",
        3_668,
        files=_MRPC,
        **_SENTENCE_PAIR,
        labels=("not_equivalent", "equivalent"),
        scores=("f1", "accuracy"),
        symmetric=True,
        inputs="mrpc sentence1: {sentence1} sentence2: {sentence2}",
        test={"MRPC": "test"},
      ),
      "stsb": classification(
        "tfds:glue/stsb",
        5_749,
        files=_tsv("STS-B", fields={"label": "score"}),
        **_SENTENCE_PAIR,
        labels=None,
        symmetric=True,
        inputs=t5_text_form("stsb", ["number"], ("pearson", "spearman")),
        test={"STS-B": "test"},
      ),
      "qqp": classification(
        "tfds:glue/qqp",
        363_846,
        # some questions contain line breaks, which split their rows
        files=_tsv("QQP", fields={"label": "is_duplicate"}, ragged=True),
        text="{question1}",
        pair="{question2}",
        labels=("not_duplicate", "duplicate"),
        scores=("f1", "accuracy"),
        symmetric=True,
        inputs="qqp question1: {question1} question2: {question2}",
        test={"QQP": "test"},
      ),
      "mnli": classification(
        "tfds:glue/mnli",
        392_702,
        files=_MNLI,
        text="{premise}",
        pair="{hypothesis}",
        labels=_THREE_LABELS,
        inputs="mnli hypothesis: {hypothesis} premise: {premise}",
        evaluated=_MNLI_EVALUATIONS,
        test={"MNLI-m": "test_matched", "MNLI-mm": "test_mismatched", "AX": "test_ax"},
      ),
      "qnli": classification(
        "tfds:glue/qnli",
        104_743,
        files=_tsv("QNLI"),
        text="{question}",
        pair="{sentence}",
        labels=_TWO_LABELS,
        inputs="qnli question: {question} sentence: {sentence}",
        test={"QNLI": "test"},
      ),
      "rte": classification(
        "tfds:glue/rte",
        2_490,
        files=_tsv("RTE"),
        **_SENTENCE_PAIR,
        labels=_TWO_LABELS,
        inputs="rte sentence1: {sentence1} sentence2: {sentence2}",
        test={"RTE": "test"},
      ),
      "wnli": classification(
        "tfds:glue/wnli",
        635,
        files=_tsv("WNLI"),
        **_SENTENCE_PAIR,
        labels=("not_entailment", "entailment"),
        inputs="wnli sentence1: {sentence1} sentence2: {sentence2}",
        test={"WNLI": "test"},
      ),
    }
  ),
  submission="glue",
  numbered=("cola", "sst2", "mrpc", "qqp", "wnli"),
)
