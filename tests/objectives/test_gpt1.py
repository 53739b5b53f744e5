"""GPT-1's fine-tuning lays out rows, costs them and scores labels as its paper does."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import tests.recipes.nano_decoder  # noqa: F401 -- the variant that the runs are of
from t5x_like import train, vocabularies
from t5x_like.data import loader, task, task_features
from t5x_like.errors import UserError
from t5x_like.objectives.gpt1 import Objective
from t5x_like.report.writer import read_metrics

BYTES = vocabularies.load("bytes")
START = vocabularies.start_id(BYTES)
DELIMITER = vocabularies.special_id(BYTES, "sep")
EXTRACT = vocabularies.special_id(BYTES, "cls")
PAIRS = [{"a": "one", "b": "two", "label": "no"}, {"a": "one one", "b": "one", "label": "yes"}]
CHOICE = {"text": "one", "options": ["two", "three"], "label": 1}


def build(folder, name, records, **arguments):
  (folder / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
  options = {"source": f"jsonl:{folder}/rows.jsonl", "cache": str(folder / "cache"), "length": 32}
  return task.build(name, "train", architecture="decoder", **options | arguments)


def pairs(folder, **options):
  return build(
    folder, "classification", PAIRS, text="{a}", pair="{b}", labels=["no", "yes"], **options
  )


def row(*parts):
  """Return the ids of texts and marks."""
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


def test_rows_hold_pairs_in_both_orders_and_each_option(tmp_path):
  single_order = pairs(tmp_path)
  both_orders = pairs(tmp_path, both_orders=True)
  about = {
    "name": "classification",
    "length": 32,
    "labels": ["no", "yes"],
    "architecture": "decoder",
  }
  assert single_order.features == task_features.declare(about)
  assert both_orders.features == task_features.declare(about | {"both_orders": True})
  batch = next(loader.eval_batches(both_orders, batch_size=2))
  assert unpadded_row(batch, 0, 0) == row(START, "one", DELIMITER, "two", EXTRACT)
  assert unpadded_row(batch, 0, 1) == row(START, "two", DELIMITER, "one", EXTRACT)
  assert unpadded_row(batch, 1, 0) == unpadded_row(
    next(loader.eval_batches(single_order, batch_size=2)), 1, 0
  )
  chosen = build(tmp_path, "multiple_choice", [CHOICE], text="{text}", options="options", choices=2)
  batch = next(loader.eval_batches(chosen, batch_size=1))
  assert [unpadded_row(batch, 0, n) for n in (0, 1)] == [
    row(START, "one", DELIMITER, t, EXTRACT) for t in CHOICE["options"]
  ]
  assert batch["option_labels"].tolist() == [[1, 2]]


class _Fixed:
  """Stand in for a model with fixed scores and logits."""

  def __init__(self, scores, logits):
    self._outputs = {"scores": jnp.asarray(scores), "logits": jnp.asarray(logits)}

  def outputs(self, rows, key):
    return self._outputs


@pytest.mark.parametrize("kind", ["classes", "number", "options"])
def test_the_loss_is_the_mean_over_examples_and_a_share_of_that_over_tokens(kind):
  """Equations 4 and 5, example by example, from a batch of which one example has no weight."""
  generator = np.random.default_rng(0)
  B = 3
  R = 2
  S = 5
  C = {"classes": 3}.get(kind, 1)
  V = 7
  scores = generator.standard_normal((B * R, *(C,))).astype(np.float32)
  logits = generator.standard_normal((B * R, *(S, V))).astype(np.float32)
  batch = {
    "decoder_input_tokens": np.zeros((B, R, S), np.int32),
    "decoder_target_tokens": generator.integers(0, V, (B, R, S)).astype(np.int32),
    "decoder_loss_weights": (generator.random((B, R, S)) < 0.6).astype(np.float32),
    "label": np.array([1, 0, 1], np.float32 if kind == "number" else np.int32),
    "example_weights": np.array([1.0, 1.0, 0.0], np.float32),
  }
  if kind == "options":
    batch["option_labels"] = np.array([[1, 2], [2, 1], [1, 2]], np.int32)
  per_row = scores.reshape(B, R, C).astype(np.float64)
  labels = []
  for example in (0, 1):
    label = int(batch["label"][example])
    if kind == "number":
      labels.append((per_row[example].sum() - label) ** 2)
    else:
      x = per_row[example].sum(0) if kind == "classes" else per_row[example, :, 0]
      labels.append(np.log(np.exp(x).sum()) - x[label])
  log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
  log_p = np.take_along_axis(
    log_p.reshape(B, R, S, V), batch["decoder_target_tokens"][..., None], -1
  )[..., 0]
  real = batch["decoder_loss_weights"][:2]
  expected = np.mean(labels) - 0.3 * (log_p[:2] * real).sum() / real.sum()
  loss, sums = Objective(language_model=0.3)(_Fixed(scores, logits), batch)
  np.testing.assert_allclose(loss / sums["weights"], expected, rtol=1e-5)
  np.testing.assert_allclose(sums["loss"], np.sum(labels), rtol=1e-5)
  assert sums["language_model_weights"] == real.sum()
  assert ("correct" in sums) == (kind != "number")


@pytest.mark.more
def test_a_pretrained_decoder_learns_labels(tmp_path, compiled, capsys):
  """The language model's loss is added; the dev set is scored."""
  short = (
    "--config.total_steps=2",
    "--config.eval_every=2",
    "--config.checkpoint.every=2",
    "--config.evals={}",
  )
  command = ["--config=tests/recipes/nano_decoder.py", *short]
  assert train.main([*command, f"--workdir={tmp_path}/base"]) == 0, capsys.readouterr().err
  pairs(tmp_path)
  settings = {
    "name": "classification",
    "text": "{a}",
    "pair": "{b}",
    "labels": ["no", "yes"],
    "architecture": "decoder",
  }
  settings |= {
    "source": f"jsonl:train={tmp_path}/rows.jsonl,validation={tmp_path}/rows.jsonl",
    "both_orders": True,
  }
  values = {
    "task": settings | {"length": 32, "cache": f"{tmp_path}/cache"},
    "objective": {"name": "gpt1"},
    "schedule": {"name": "constant", "learning_rate": 0.01},
    "evals": {"dev": {"name": "classification"}, "loss": {}},
    "init": {"workdir": f"{tmp_path}/base"},
  }
  overrides = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
  tuned = [
    *command,
    "--config.model.scores=2",
    "--config.model.dropout=0.0",
    "--config.total_steps=20",
    *overrides,
  ]
  assert train.main([*tuned, f"--workdir={tmp_path}/tuned"]) == 0, capsys.readouterr().err
  report = json.loads((tmp_path / "tuned" / "init.json").read_text())
  assert report["initialised"] == ["scores/out/bias", "scores/out/kernel"]
  assert not report["ignored"]
  rows = read_metrics(tmp_path / "tuned")
  assert rows[-1]["eval/dev/accuracy"] == 100.0
  losses = [row["train/language_model_loss"] for row in rows if "train/language_model_loss" in row]
  assert losses[-1] < losses[0]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      {"both_orders": True, "pair": None},
      "config.task.both_orders: found True, expected a pair of texts",
    ),
    (
      {"both_orders": True, "architecture": "encoder"},
      "expected a pair of texts and architecture='decoder'",
    ),
  ],
)
def test_bad_input_is_refused_in_one_line(arguments, message, tmp_path):
  with pytest.raises(UserError, match=message):
    settings = {
      "text": "{a}",
      "pair": "{b}",
      "labels": ["no", "yes"],
      "architecture": "decoder",
      **arguments,
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(PAIRS[0]))
    task.build(
      "classification",
      "train",
      source=f"jsonl:{tmp_path}/rows.jsonl",
      cache=str(tmp_path),
      **settings,
    )
