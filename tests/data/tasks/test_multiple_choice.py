"""Multiple choice has a row for each option, and its loss is a softmax over the options."""

import jax.numpy as jnp
import numpy as np
import pytest

import json_lines
from refusals import refuses
from t5x_like import vocabularies
from t5x_like.benchmarks.suites import choices
from t5x_like.data import loader, task
from t5x_like.objectives.multiple_choice import Objective

BYTES = vocabularies.load("bytes")
COPA = {
  "premise": "It rained.",
  "question": "effect",
  "choice1": "Wet.",
  "choice2": "Dry, all of it.",
  "label": "choice1",
}
COPA_TASK = {
  "text": "{premise} What was the {question}?",
  "options": ["{choice1}", "{choice2}"],
  "labels": ["choice1", "choice2"],
  "choices": 2,
}
RECORD = {
  "passage": "Ann met Bob.",
  "query": "@placeholder saw Bob",
  "entities": ["Ann", "Bob", "Cid"],
  "answers": ["Ann"],
}
RECORD_TASK = {
  "text": "{passage}",
  "options": "entities",
  "option": "{query}",
  "placeholder": "@placeholder",
  "answers": "answers",
  "choices": 4,
  "fewer": True,
}
RACE_KEYS = ("text", "options", "option", "placeholder", "label_field", "labels", "choices")


def build_task(folder, records, **arguments):
  json_lines.write(folder / "choices.jsonl", records)
  defaults = {
    "source": f"jsonl:{folder}/choices.jsonl",
    "cache": str(folder / "cache"),
    "length": 64,
  }
  return task.build("multiple_choice", "train", **defaults | arguments)


def decode_options(batch, row):
  """Return `text|option` for each option of a row."""
  cls = vocabularies.special_id(BYTES, "cls")
  sep = vocabularies.special_id(BYTES, "sep")
  spellings = []
  for tokens, types in zip(batch["encoder_input_tokens"][row], batch["encoder_token_types"][row]):
    is_token = tokens != 0
    tokens = tokens[is_token]
    types = types[is_token]
    text_end, option_end = np.flatnonzero(tokens == sep)
    assert tokens[0] == cls
    assert option_end == len(tokens) - 1
    assert not types[: text_end + 1].any()
    assert types[text_end + 1 :].all()
    text = BYTES.decode(tokens[1:text_end])
    option = BYTES.decode(tokens[text_end + 1 : option_end])
    spellings.append(f"{text}|{option}")
  return spellings


def test_each_option_is_a_row_after_its_text(tmp_path):
  choice_task = build_task(
    tmp_path, [COPA, COPA | {"label": "choice2"}, COPA | {"label": -1}], **COPA_TASK
  )
  batch = next(loader.eval_batches(choice_task, batch_size=3))
  question = "It rained. What was the effect?|"
  assert (
    decode_options(batch, 0)
    == decode_options(batch, 2)
    == [question + "Wet.", question + "Dry, all of it."]
  )
  assert batch["option_labels"].tolist() == [[2, 1], [1, 2], [1, 1]]
  assert batch["label"].tolist() == [0, 1, 0]
  assert batch["example_weights"].tolist() == [1, 1, 0]
  first, second, unlabelled = choice_task.examples(())
  assert first["label"] == "choice1"
  assert first["right"] == [0]
  assert first["answers"] == ["Wet."]
  assert second["label"] == "choice2"
  assert second["right"] == [1]
  assert second["answers"] == ["Dry, all of it."]
  assert unlabelled["label"] is None
  assert unlabelled["right"] == unlabelled["answers"] == []


def test_entities_replace_the_placeholder_and_several_may_be_right(tmp_path):
  five_entities = RECORD | {"entities": ["Ann", "Bob", "Cid", "Dan", "Eve"], "answers": ["Eve"]}
  choice_task = build_task(
    tmp_path, [RECORD | {"answers": ["Cid", "Ann"]}, five_entities], **RECORD_TASK
  )
  batch = next(loader.eval_batches(choice_task, batch_size=2))
  names = ("Ann", "Bob", "Cid")
  assert decode_options(batch, 0)[:3] == [f"Ann met Bob.|{name} saw Bob" for name in names]
  assert batch["option_labels"].tolist() == [[2, 1, 2, 0], [1, 1, 1, 1]]
  # The right entity of the second record is the fifth, beyond `choices`.
  assert batch["example_weights"].tolist() == [1, 0]
  assert [example["answers"] for example in choice_task.examples(())] == [["Cid", "Ann"], ["Eve"]]


def test_option_fills_the_gap_in_a_question_or_follows_it(tmp_path):
  """As in fairseq's and ALBERT's code for RACE."""
  record = {"article": "Ann ran.", "options": ["Ann", "Bob", "a _", "it"], "answer": "A"}
  race = {key: choices.SUITE.tasks["race_high"].encoder.task[key] for key in RACE_KEYS}
  choice_task = build_task(
    tmp_path, [record | {"question": text} for text in ("_ ran.", "Who?")], **race
  )
  batch = next(loader.eval_batches(choice_task, batch_size=2))
  assert decode_options(batch, 0) == [f"Ann ran.|{option} ran." for option in record["options"]]
  assert decode_options(batch, 1) == [f"Ann ran.|Who? {option}" for option in record["options"]]


def test_long_texts_are_truncated_before_options(tmp_path):
  choice_task = build_task(
    tmp_path, [COPA | {"choice2": "x" * 40}, COPA | {"choice2": "x" * 80}], length=50, **COPA_TASK
  )
  batch = next(loader.eval_batches(choice_task, batch_size=2))
  assert decode_options(batch, 0) == ["It rained. What was the effect?|Wet.", "It rain|" + "x" * 40]
  assert decode_options(batch, 1)[1] == "I|" + "x" * 46


def test_loss_is_the_softmax_cross_entropy_over_the_options_of_a_row():
  """Option labels: 0 is no option, 1 is wrong, 2 is right."""
  scores = np.array([[1.0, 2.0, 5.0], [0.5, -1.0, 0.0], [3.0, 0.0, 0.0]], np.float32)
  option_labels = np.array([[2, 1, 0], [1, 2, 2], [2, 1, 1]], np.int32)
  batch = {
    "encoder_input_tokens": np.zeros((3, 3, 4), np.int32),
    "option_labels": option_labels,
    "label": np.array([0, 1, 0]),
    "example_weights": np.array([1.0, 1.0, 0.0], np.float32),
  }
  loss, sums = Objective()(lambda rows, key: {"logits": jnp.asarray(scores)}, batch)
  p = np.exp(scores[1]) / np.exp(scores[1]).sum()
  expected = np.log1p(np.exp(1.0)) - np.log(p[1] + p[2])
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  assert sums["weights"] == 2
  assert sums["correct"] == 0


@pytest.mark.parametrize(
  "record, arguments, names",
  [
    (COPA, COPA_TASK | {"choices": 3}, ("config.task.options: found 2 templates", "3")),
    (COPA, COPA_TASK | {"labels": ["a", "b"]}, ("found label 'choice1' in field 'label'", "a, b")),
    (COPA, COPA_TASK | {"labels": ["a"]}, ("config.task.labels: found 1 names", "2")),
    (COPA, COPA_TASK | {"length": 4}, ("config.task.length: found 4", "at least 5")),
    (COPA | {"choice1": ""}, COPA_TASK, ("found 0 examples, 1 records skipped (empty option)",)),
    (RECORD, RECORD_TASK | {"fewer": False}, ("found 3 options", "4", "fewer=true")),
    (RECORD, RECORD_TASK | {"placeholder": None}, ("config.task.option: found '{query}'",)),
    (RECORD | {"label": 3}, RECORD_TASK | {"answers": None}, ("found label '3' in field 'label'",)),
    (RECORD | {"entities": "Ann"}, RECORD_TASK, ("found str in field 'entities'",)),
  ],
)
def test_bad_records_and_arguments_are_refused(record, arguments, names, tmp_path):
  with refuses(*names):
    build_task(tmp_path, [record], **arguments)
