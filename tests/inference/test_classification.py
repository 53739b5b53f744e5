"""Classifiers of texts: rows are training's, answers are the model's, and the road from a table to
them."""

import csv
import io
import json
import sys

import numpy as np
import pytest

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
  return TextClassification(
    Model, BYTES, {"text": "{a}", "labels": ["no", "yes", "so so"]} | arguments, flags or {}
  )


@pytest.mark.parametrize("form", ["single", "pair", "decoder", "both_orders"])
def test_rows_are_those_of_training(form, tmp_path):
  arguments = {"text": "{a}", "labels": ["no", "yes"], "length": 16}
  if form in ("pair", "both_orders"):
    arguments["pair"] = "{b}"
  if form in ("decoder", "both_orders"):
    arguments["architecture"] = "decoder"
  if form == "both_orders":
    arguments["both_orders"] = True
  path = tmp_path / "test.jsonl"
  records = [{"a": text, "b": second, "label": "no"} for text, second in zip(TEXTS, SECOND)]
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  built = task.build(
    "classification",
    "test",
    source=f"jsonl:test={path}",
    cache=str(tmp_path / "cache"),
    **arguments,
  )
  (expected,) = loader.eval_batches(built, batch_size=len(TEXTS))
  inputs = list(zip(TEXTS, SECOND)) if built.examples(())[0]["text"][1:] else TEXTS
  rows = classifier(**arguments).encode(inputs, "test")
  assert set(rows.features) == {
    name for name in expected if name.startswith(("encoder_", "decoder_"))
  }
  for name, features in rows.features.items():
    np.testing.assert_array_equal(features, expected[name], err_msg=name)


def test_answers_have_the_likeliest_labels_first():
  label = classifier(length=32)
  (answer,) = label(Run(0.0, 2.0, 1.0), label.encode(["x"], "-"), ["x"])
  p = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
  assert answer["input"] == "x" and answer["prediction"] == "yes"
  assert (
    answer["probability"]
    == answer["predictions"][0]["probability"]
    == pytest.approx(p[0], rel=1e-5)
  )
  assert [one["label"] for one in answer["predictions"]] == ["yes", "so so", "no"]
  assert [one["probability"] for one in answer["predictions"]] == pytest.approx(p, rel=1e-5)
  two = classifier({"top_k": 2}, length=32)
  assert len(two(Run(0.0, 2.0, 1.0), two.encode(["x"], "-"), ["x"])[0]["predictions"]) == 2
  several = classifier(length=32, independent=True)
  (answer,) = several(Run(0.0, 0.0, 3.0), several.encode(["x"], "-"), ["x"])
  assert answer["predictions"][1] == {"label": "no", "probability": 0.5}
  number = classifier(length=32, labels=None)
  assert number(Run(2.5), number.encode(["x"], "-"), ["x"]) == [{"input": "x", "prediction": 2.5}]
  talk = Talk(Run(0.0, 2.0, 1.0), label, None)
  assert "".join(talk([Message("user", "x")])).splitlines() == [
    "yes",
    "  66.5%  yes",
    "  24.5%  so so",
    "  9.0%  no",
  ]
  assert talk.description == "It labels your text: no, yes, so so."


def test_pairs_are_given_in_three_ways_and_others_are_refused():
  label = classifier(pair="{b}", length=32)
  inputs = ["one\ttwo", "one | two", ("one", "two"), {"a": "one", "b": "two"}]
  features = label.encode(inputs, "-").features
  assert (features["encoder_input_tokens"] == features["encoder_input_tokens"][0]).all()
  for entry in ("one", "a | b | c", ("one",), 5):
    with pytest.raises(UserError, match="here: input 1: found .*, expected two texts with a tab"):
      label.encode([entry], "here")
  with pytest.raises(UserError, match="found 5, expected a text"):
    classifier().encode([5], "here")
  with pytest.raises(UserError, match="--beams=2: the model classifies texts"):
    classifier({"beams": 2})
  with pytest.raises(UserError, match="--top_k=0"):
    classifier({"top_k": 0})


def test_inputs_come_from_lines_and_from_tables_with_the_columns_of_training(tmp_path):
  def read(name, content, label, field=None):
    (tmp_path / name).write_text(content)
    return label.read(str(tmp_path / name), field)

  one = classifier()
  two = classifier(pair="{b}")
  assert read("new.txt", "x, y\n\nz\n", one) == ["x, y", None, "z"]
  assert read("new.csv", 'n,a\n1,"x, y"\n2,\n', one) == ["x, y", None]
  assert read("new.tsv", "a\tb\nx\ty\n", two) == [("x", "y")]
  assert read("new.jsonl", '{"a": "x"}\n\n{"a": 5}\n', one) == ["x", None, "5"]
  assert (
    read("other.jsonl", '{"body": "x"}\n', one, "body")
    == read("other.csv", "body\nx\n", one, "body")
    == ["x"]
  )
  for name, content in (("wrong.jsonl", '{"body": "x"}\n'), ("wrong.csv", "body\nx\n")):
    with pytest.raises(UserError, match="no field 'a' among body, expected 'a'.*--text_field"):
      read(name, content, one)


@pytest.mark.runs
@pytest.mark.usefixtures("compiled")
def test_from_a_table_to_labels_by_command_and_in_python(tmp_path, monkeypatch, capsys):
  """Training, prediction, a talk and an export, none of which names a label."""
  vocabulary = published.write(tmp_path / "vocabulary", "bert")
  words = {"fast one": "the quick fox", "slow one": "the lazy dog"}
  rows = [
    {"Review": f"{text} {number}", "class": label}
    for number in range(30)
    for label, text in words.items()
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
  )
  changes += (
    "total_steps=2",
    "model.layers=scan",
    'evals.validation.scores=["accuracy"]',
    "peak_flops=1e11",
  )
  flags = [f"--config.{change}" for change in changes]
  with hide_other_devices():
    assert (
      train.main(["--config=configs/finetune/encoder.py:own,tiny", f"--workdir={run}", *flags]) == 0
    )
    saved = json.loads((run / "config.json").read_text())
    assert (
      saved["task"]["labels"] == ["fast one", "slow one"] and saved["model"]["head"]["labels"] == 2
    )
    (tmp_path / "new.txt").write_text("the quick fox\nthe lazy dog\n")
    files = [f"--input={tmp_path}/new.txt", f"--output={tmp_path}/labels.jsonl"]
    assert predict.main([f"--workdir={run}", *files]) == 0
    answers = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    model = t5x.load(str(run))
    assert model.predict(list(words.values())) == answers and model.labels == [
      "fast one",
      "slow one",
    ]
    assert [set(one["label"] for one in answer["predictions"]) for answer in answers] == [
      set(words)
    ] * 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("the quick fox\n"))
    capsys.readouterr()
    assert chat.main([f"--workdir={run}"]) == 0
    assert capsys.readouterr().out.startswith(answers[0]["prediction"])
    model.save_hf(str(tmp_path / "exported"))
    exported = t5x.load(str(tmp_path / "exported"))
    assert exported.labels == ["fast one", "slow one"]
    again = exported.predict(list(words.values()))
    assert [one["probability"] for one in again] == pytest.approx(
      [one["probability"] for one in answers], abs=1e-4
    )
    with pytest.raises(UserError, match="labels texts and fills nothing"):
      model.fill("x")
    with pytest.raises(UserError, match="predict: found a string, expected a list of inputs"):
      model.predict("x")
    assert model.predict([]) == []
