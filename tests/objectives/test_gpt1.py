"""GPT-1's fine-tuning follows its paper in the layout of rows, the loss and the label scores."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import json_lines
import tests.recipes.nano_decoder  # noqa: F401 -- registers the variant of the runs
from t5x_like import train, vocabularies
from t5x_like.data import loader, task, task_features
from t5x_like.objectives.gpt1 import Objective
from t5x_like.report.writer import read_metrics
from tests.refusals import refuses

BYTES = vocabularies.load("bytes")
START = vocabularies.start_id(BYTES)
DELIMITER = vocabularies.special_id(BYTES, "sep")
EXTRACT = vocabularies.special_id(BYTES, "cls")
PAIRS = [{"a": "one", "b": "two", "label": "no"}, {"a": "one one", "b": "one", "label": "yes"}]
CHOICE = {"text": "one", "options": ["two", "three"], "label": 1}
LABELLED_PAIRS = {
  "name": "classification",
  "text": "{a}",
  "pair": "{b}",
  "labels": ["no", "yes"],
  "architecture": "decoder",
  "length": 32,
}


def build_task(folder, records, **arguments):
  json_lines.write(folder / "rows.jsonl", records)
  files = {"source": f"jsonl:{folder}/rows.jsonl", "cache": f"{folder}/cache"}
  return task.build(split="train", **files | arguments)


def build_pair_task(folder, **changes):
  return build_task(folder, PAIRS, **LABELLED_PAIRS | changes)


def token_ids(*parts):
  """Return the token ids of a row: texts are encoded, and ids of special tokens are kept."""
  ids = []
  for part in parts:
    ids += [part] if isinstance(part, int) else BYTES.encode(part)
  return ids


def unpadded_row(batch, example, number):
  """Return an example's row without padding; weights end at the extract token."""
  inputs = batch["decoder_input_tokens"][example, number]
  targets = batch["decoder_target_tokens"][example, number]
  weights = batch["decoder_loss_weights"][example, number]
  segments = batch["decoder_segment_ids"][example, number]
  n = int(segments.sum())
  assert np.array_equal(targets[: n - 1], inputs[1:n])
  assert inputs[n - 1] == EXTRACT
  assert weights.tolist() == [1.0] * (n - 2) + [0.0] * (len(weights) - n + 2)
  return inputs[:n].tolist()


def test_rows_hold_pairs_in_both_orders(tmp_path):
  single_order = build_pair_task(tmp_path)
  both_orders = build_pair_task(tmp_path, both_orders=True)
  declared = {key: LABELLED_PAIRS[key] for key in ("name", "length", "labels", "architecture")}
  assert single_order.features == task_features.declare(declared)
  assert both_orders.features == task_features.declare(declared | {"both_orders": True})
  batch = next(loader.eval_batches(both_orders, batch_size=2))
  assert unpadded_row(batch, 0, 0) == token_ids(START, "one", DELIMITER, "two", EXTRACT)
  assert unpadded_row(batch, 0, 1) == token_ids(START, "two", DELIMITER, "one", EXTRACT)
  single_batch = next(loader.eval_batches(single_order, batch_size=2))
  assert unpadded_row(batch, 1, 0) == unpadded_row(single_batch, 1, 0)


def test_rows_hold_each_option(tmp_path):
  options = {"name": "multiple_choice", "text": "{text}", "options": "options", "choices": 2}
  choices = build_task(tmp_path, [CHOICE], architecture="decoder", length=32, **options)
  batch = next(loader.eval_batches(choices, batch_size=1))
  for number, option in enumerate(CHOICE["options"]):
    expected = token_ids(START, "one", DELIMITER, option, EXTRACT)
    assert unpadded_row(batch, 0, number) == expected
  assert batch["option_labels"].tolist() == [[1, 2]]


class FixedModel:
  """A stand-in for a model, with fixed scores and logits."""

  def __init__(self, scores, logits):
    self._outputs = {"scores": jnp.asarray(scores), "logits": jnp.asarray(logits)}

  def outputs(self, rows, key):
    return self._outputs


@pytest.mark.parametrize("kind", ["classes", "number", "options"])
def test_loss_is_the_mean_over_examples_plus_a_share_of_the_mean_over_tokens(kind):
  """Compute equations 4 and 5 of the paper example by example; the third has no weight."""
  generator = np.random.default_rng(0)
  B = 3
  R = 2
  S = 5
  V = 7
  C = 3 if kind == "classes" else 1
  scores = generator.standard_normal((B * R, C)).astype(np.float32)
  logits = generator.standard_normal((B * R, S, V)).astype(np.float32)
  batch = {
    "decoder_input_tokens": np.zeros((B, R, S), np.int32),
    "decoder_target_tokens": generator.integers(0, V, (B, R, S)).astype(np.int32),
    "decoder_loss_weights": (generator.random((B, R, S)) < 0.6).astype(np.float32),
    "label": np.array([1, 0, 1], np.float32 if kind == "number" else np.int32),
    "example_weights": np.array([1.0, 1.0, 0.0], np.float32),
  }
  if kind == "options":
    batch["option_labels"] = np.array([[1, 2], [2, 1], [1, 2]], np.int32)
  scores_BRC = scores.reshape(B, R, C).astype(np.float64)
  label_losses = []
  for example, label in ((0, 1), (1, 0)):
    if kind == "number":
      label_losses.append((scores_BRC[example].sum() - label) ** 2)
    else:
      x = scores_BRC[example, :, 0] if kind == "options" else scores_BRC[example].sum(0)
      label_losses.append(-log_softmax(x)[label])
  log_p = log_softmax(logits.astype(np.float64), axis=-1).reshape(B, R, S, V)
  log_p = np.take_along_axis(log_p, batch["decoder_target_tokens"][..., None], -1)[:2, ..., 0]
  weights = batch["decoder_loss_weights"][:2]
  expected = np.mean(label_losses) - 0.3 * (log_p * weights).sum() / weights.sum()
  loss, sums = Objective(language_model=0.3)(FixedModel(scores, logits), batch)
  np.testing.assert_allclose(loss / sums["weights"], expected, rtol=1e-5)
  np.testing.assert_allclose(sums["loss"], np.sum(label_losses), rtol=1e-5)
  assert sums["language_model_weights"] == weights.sum()
  assert ("correct" in sums) == (kind != "number")


@pytest.mark.more
def test_pretrained_decoder_learns_labels(tmp_path, compiled, capsys):
  """Fine-tuning adds the language-model loss, and scores the dev set."""
  file = tmp_path / "rows.jsonl"
  json_lines.write(file, PAIRS)
  source = f"jsonl:train={file},validation={file}"
  steps = {"total_steps": 2, "eval_every": 2, "checkpoint.every": 2, "evals": {}}
  tuning = {
    "task": LABELLED_PAIRS | {"source": source, "both_orders": True, "cache": f"{tmp_path}/cache"},
    "objective": {"name": "gpt1"},
    "schedule": {"name": "constant", "learning_rate": 0.01},
    "evals": {"dev": {"name": "classification"}, "loss": {}},
    "init": {"workdir": f"{tmp_path}/base"},
    "model.scores": 2,
    "model.dropout": 0.0,
    "total_steps": 20,
  }
  for name, values in (("base", steps), ("tuned", steps | tuning)):
    overrides = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
    command = ["--config=tests/recipes/nano_decoder.py", f"--workdir={tmp_path}/{name}"]
    assert train.main([*command, *overrides]) == 0, capsys.readouterr().err
  report = json.loads((tmp_path / "tuned" / "init.json").read_text())
  assert report["initialised"] == ["scores/out/bias", "scores/out/kernel"]
  assert not report["ignored"]
  rows = read_metrics(tmp_path / "tuned")
  assert rows[-1]["eval/dev/accuracy"] == 100.0
  losses = [row["train/language_model_loss"] for row in rows if "train/language_model_loss" in row]
  assert losses[-1] < losses[0]


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"pair": None}, ("config.task.both_orders", "True", "a pair of texts")),
    ({"architecture": "encoder"}, ("config.task.both_orders", "architecture='decoder'")),
  ],
)
def test_both_orders_need_a_pair_and_a_decoder(changes, words, tmp_path):
  with refuses(*words):
    build_pair_task(tmp_path, both_orders=True, **changes)
