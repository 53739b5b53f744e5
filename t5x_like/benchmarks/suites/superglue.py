"""SuperGLUE (Wang et al. 2019, https://arxiv.org/abs/1905.00537).

Encoders give each alternative of COPA, and each entity of ReCoRD, a row and a score; in
text-to-text the answer is generated (Raffel et al. 2020, appendix D). WSC's answer is the referent
of a pronoun, learned from the records whose referent is right. At most 32 entities of a passage
are candidates; few passages have more.
"""

from t5x_like.benchmarks.suites import Files, Suite, classification, multiple_choice, t5_text_form

_BOOLEAN = ("False", "True")
_QUESTION = ("idx.paragraph", "idx.question")


def _jsonl(folder: str, form: str = "jsonl") -> Files:
  """Return the files of a task in SuperGLUE's archive, where test sets have no labels."""
  names = {"train": "train", "validation": "val", "test": "test"}
  return Files(
    f"super_{folder}", form, {split: [f"{folder}/{name}.jsonl"] for split, name in names.items()}
  )


# The model of RTE also predicts the diagnostic sets; AX-b names its fields otherwise.
_RTE = _jsonl("RTE")
_RTE.splits.update({"test_ax_b": ["AX-b/AX-b.jsonl"], "test_ax_g": ["AX-g/AX-g.jsonl"]})
_RTE.fields.update({"premise": "sentence1", "hypothesis": "sentence2"})

SUITE = Suite(
  {
    "boolq": classification(
      "tfds:super_glue/boolq",
      9_427,
      files=_jsonl("BoolQ"),
      text="{question}",
      pair="{passage}",
      labels=_BOOLEAN,
      inputs="boolq passage: {passage} question: {question}",
      length=256,
      test={"BoolQ": "test"},
    ),
    "cb": classification(
      "tfds:super_glue/cb",
      250,
      files=_jsonl("CB"),
      text="{premise}",
      pair="{hypothesis}",
      labels=("entailment", "contradiction", "neutral"),
      scores=("macro_f1", "accuracy"),
      inputs="cb hypothesis: {hypothesis} premise: {premise}",
      length=256,
      test={"CB": "test"},
    ),
    "copa": multiple_choice(
      "tfds:super_glue/copa",
      400,
      files=_jsonl("COPA"),
      text="{premise} What was the {question}?",
      options=("{choice1}", "{choice2}"),
      choices=2,
      labels=["choice1", "choice2"],
      text_form=classification(
        "tfds:super_glue/copa",
        400,
        text="{premise}",
        labels=("choice1", "choice2"),
        inputs="copa choice1: {choice1} choice2: {choice2} premise: {premise} question: {question}",
      ).text,
      test={"COPA": "test"},
    ),
    "multirc": classification(
      "tfds:super_glue/multirc",
      27_243,
      files=_jsonl("MultiRC", "multirc"),
      text="{paragraph}",
      pair="{question} {answer}",
      labels=_BOOLEAN,
      questions=_QUESTION,
      counted=("f1a", "exact_match"),
      inputs=t5_text_form(
        "multirc",
        [{"name": "labels", "classes": list(_BOOLEAN)}],
        ("f1a", "exact_match"),
        inputs_length=512,
        questions=_QUESTION,
      ),
      length=512,
      test={"MultiRC": "test"},
    ),
    "record": multiple_choice(
      "tfds:super_glue/record",
      100_730,
      files=_jsonl("ReCoRD", "record"),
      text="{passage}",
      options="entities",
      option="{query}",
      placeholder="@placeholder",
      answers="answers",
      choices=32,
      fewer=True,
      scores=("answers",),
      counted=("f1", "exact_match"),
      length=384,
      text_form=t5_text_form(
        "record",
        ["answers"],
        ("f1", "exact_match"),
        inputs_length=512,
        targets_length=32,
        references="answers",
      ),
      test={"ReCoRD": "test"},
    ),
    "rte": classification(
      "tfds:super_glue/rte",
      2_490,
      files=_RTE,
      text="{premise}",
      pair="{hypothesis}",
      labels=("entailment", "not_entailment"),
      inputs="rte hypothesis: {hypothesis} premise: {premise}",
      test={"RTE": "test", "AX-b": "test_ax_b", "AX-g": "test_ax_g"},
    ),
    "wic": classification(
      "tfds:super_glue/wic",
      5_428,
      files=_jsonl("WiC"),
      text="{word}: {sentence1}",
      pair="{sentence2}",
      labels=_BOOLEAN,
      inputs="wic sentence1: {sentence1} sentence2: {sentence2} word: {word}",
      test={"WiC": "test"},
    ),
    "wsc": classification(
      "tfds:super_glue/wsc.fixed",
      554,
      files=_jsonl("WSC", "wsc"),
      text="{text}",
      pair="{span2_text}: {span1_text}",
      labels=_BOOLEAN,
      inputs=t5_text_form(
        "wsc", ["referent"], ("accuracy",), targets_length=32, references="judged"
      ),
      test={"WSC": "test"},
    ),
  },
  submission="superglue",
  numbered=("copa",),
)
