"""Classifiers of texts read rows as training does and answer with the likeliest labels."""

import csv
import io
import json
import sys

import numpy as np
import pytest

import json_lines
import published
import t5x_like as t5x
from t5x_like import chat, predict, train, vocabularies
from t5x_like.data import loader, task
from t5x_like.data.supervised.chat import Message
from t5x_like.errors import UserError
from t5x_like.inference.classification import TextClassification
from t5x_like.inference.talk import Talk
from tests.runs import hide_other_devices

BYTES = vocabularies.load("bytes")
TEXTS = ["short", "a text that is longer than a row of sixteen tokens", "日本語", ""]
SECOND = ["and", "the other one, which is long too, by far", "x", "y"]


class Model:
  """Stands in for a model, of which only the attention core is read."""

  class variant:
    class design:
      core = "dense"


class Run:
  """Stands in for a `Runner` that gets these logits of every row."""

  def __init__(self, *logits):
    self.logits = logits

  def run_on_features(self, function, features, lengths, longest):
    return [(np.asarray(self.logits, np.float32),) for _ in lengths]


def classifier(flags=None, **arguments):
  task_arguments = {"text": "{a}", "labels": ["no", "yes", "so so"]} | arguments
  return TextClassification(Model, BYTES, task_arguments, flags or {})


def classify(label, *logits) -> dict:
  """Return the answer of a classifier for the text "x" whose logits are given."""
  (answer,) = label(Run(*logits), label.encode(["x"], "-"), ["x"])
  return answer


FORMS = {
  "single": {},
  "pair": {"pair": "{b}"},
  "decoder": {"architecture": "decoder"},
  "both_orders": {"pair": "{b}", "architecture": "decoder", "both_orders": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_training(form, tmp_path):
  arguments = {"text": "{a}", "labels": ["no", "yes"], "length": 16} | FORMS[form]
  path = tmp_path / "test.jsonl"
  json_lines.write(path, [{"a": a, "b": b, "label": "no"} for a, b in zip(TEXTS, SECOND)])
  built = task.build(
    "classification",
    "test",
    source=f"jsonl:test={path}",
    cache=str(tmp_path / "cache"),
    **arguments,
  )
  (expected,) = loader.eval_batches(built, batch_size=len(TEXTS))
  inputs = list(zip(TEXTS, SECOND)) if "pair" in arguments else TEXTS
  rows = classifier(**arguments).encode(inputs, "test")
  input_names = {name for name in expected if name.startswith(("encoder_", "decoder_"))}
  assert set(rows.features) == input_names
  for name, features in rows.features.items():
    np.testing.assert_array_equal(features, expected[name], err_msg=name)


def test_answers_have_the_likeliest_labels_first():
  answer = classify(classifier(length=32), 0.0, 2.0, 1.0)
  p = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
  predictions = answer["predictions"]
  assert answer["input"] == "x"
  assert answer["prediction"] == "yes"
  assert answer["probability"] == predictions[0]["probability"]
  assert [row["label"] for row in predictions] == ["yes", "so so", "no"]
  assert [row["probability"] for row in predictions] == pytest.approx(p, rel=1e-5)


def test_top_k_limits_the_labels_of_an_answer():
  answer = classify(classifier({"top_k": 2}, length=32), 0.0, 2.0, 1.0)
  assert len(answer["predictions"]) == 2


def test_independent_labels_have_probabilities_of_their_own():
  answer = classify(classifier(length=32, independent=True), 0.0, 0.0, 3.0)
  assert answer["predictions"][1] == {"label": "no", "probability": 0.5}


def test_a_model_without_labels_predicts_a_number():
  assert classify(classifier(length=32, labels=None), 2.5) == {"input": "x", "prediction": 2.5}


def test_a_talk_with_a_classifier_lists_its_labels():
  talk = Talk(Run(0.0, 2.0, 1.0), classifier(length=32), None)
  assert "".join(talk([Message("user", "x")])).splitlines() == [
    "yes",
    "  66.5%  yes",
    "  24.5%  so so",
    "  9.0%  no",
  ]
  assert talk.description == "It labels your text: no, yes, so so."


def test_a_pair_is_two_texts_with_a_separator_a_tuple_or_a_record():
  label = classifier(pair="{b}", length=32)
  inputs = ["one\ttwo", "one | two", ("one", "two"), {"a": "one", "b": "two"}]
  tokens = label.encode(inputs, "-").features["encoder_input_tokens"]
  assert (tokens == tokens[0]).all()


@pytest.mark.parametrize("text", ["one", "a | b | c", ("one",), 5])
def test_an_input_that_is_no_pair_is_refused(text):
  words = "here: input 1: found .*, expected two texts with a tab"
  with pytest.raises(UserError, match=words):
    classifier(pair="{b}", length=32).encode([text], "here")


def test_an_input_that_is_no_text_is_refused():
  with pytest.raises(UserError, match="found 5, expected a text"):
    classifier().encode([5], "here")


@pytest.mark.parametrize(
  "flags, words",
  [({"beams": 2}, "--beams=2: the model classifies texts"), ({"top_k": 0}, "--top_k=0")],
)
def test_flags_that_a_classifier_lacks_are_refused(flags, words):
  with pytest.raises(UserError, match=words):
    classifier(flags)


def test_inputs_come_from_lines_and_from_tables_with_the_columns_of_training(tmp_path):
  def read(name, content, label, field=None):
    (tmp_path / name).write_text(content)
    return label.read(str(tmp_path / name), field)

  single = classifier()
  pairs = classifier(pair="{b}")
  assert read("new.txt", "x, y\n\nz\n", single) == ["x, y", None, "z"]
  assert read("new.csv", 'n,a\n1,"x, y"\n2,\n', single) == ["x, y", None]
  assert read("new.tsv", "a\tb\nx\ty\n", pairs) == [("x", "y")]
  assert read("new.jsonl", '{"a": "x"}\n\n{"a": 5}\n', single) == ["x", None, "5"]
  assert read("other.jsonl", '{"body": "x"}\n', single, "body") == ["x"]
  assert read("other.csv", "body\nx\n", single, "body") == ["x"]
  for name, content in (("wrong.jsonl", '{"body": "x"}\n'), ("wrong.csv", "body\nx\n")):
    with pytest.raises(UserError, match="no field 'a' among body, expected 'a'.*--text_field"):
      read(name, content, single)


@pytest.mark.runs
@pytest.mark.usefixtures("compiled")
def test_a_table_trains_a_classifier_that_every_command_labels_alike(tmp_path, monkeypatch, capsys):
  """Training, prediction, a talk and an export read the labels from the table and the run."""
  vocabulary = published.write(tmp_path / "vocabulary", "bert")
  text_by_label = {"fast one": "the quick fox", "slow one": "the lazy dog"}
  labels = list(text_by_label)
  texts = list(text_by_label.values())
  rows = []
  for number in range(30):
    rows += [
      {"Review": f"{text} {number}", "class": label} for label, text in text_by_label.items()
    ]
  table = tmp_path / "reviews.csv"
  with table.open("w", newline="") as file:
    writer = csv.DictWriter(file, ("Review", "class"))
    writer.writeheader()
    writer.writerows(rows)
  run = tmp_path / "run"
  changes = (
    f"task.source={table}",
    f"task.vocabulary={vocabulary}",
    "task.length=32",
    "task.buckets=1",
    "total_steps=2",
    "model.layers=scan",
    'evals.validation.scores=["accuracy"]',
    "peak_flops=1e11",
  )
  flags = [f"--config.{change}" for change in changes]
  with hide_other_devices():
    recipe = "--config=configs/finetune/encoder.py:own,tiny"
    assert train.main([recipe, f"--workdir={run}", *flags]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["task"]["labels"] == labels
    assert config["model"]["head"]["labels"] == 2
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    files = [f"--input={tmp_path}/new.txt", f"--output={tmp_path}/labels.jsonl"]
    assert predict.main([f"--workdir={run}", *files]) == 0
    answers = json_lines.read(tmp_path / "labels.jsonl")
    for answer in answers:
      assert {prediction["label"] for prediction in answer["predictions"]} == set(labels)
    model = t5x.load(str(run))
    assert model.predict(texts) == answers
    assert model.labels == labels
    monkeypatch.setattr(sys, "stdin", io.StringIO("the quick fox\n"))
    capsys.readouterr()
    assert chat.main([f"--workdir={run}"]) == 0
    assert capsys.readouterr().out.startswith(answers[0]["prediction"])
    model.save_hf(str(tmp_path / "exported"))
    exported = t5x.load(str(tmp_path / "exported"))
    assert exported.labels == labels
    exported_probabilities = [answer["probability"] for answer in exported.predict(texts)]
    probabilities = [answer["probability"] for answer in answers]
    assert exported_probabilities == pytest.approx(probabilities, abs=1e-4)
    with pytest.raises(UserError, match="labels texts and fills nothing"):
      model.fill("x")
    with pytest.raises(UserError, match="predict: found a string, expected a list of inputs"):
      model.predict("x")
    assert model.predict([]) == []
