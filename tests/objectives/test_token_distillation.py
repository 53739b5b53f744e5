"""Distillation of language models follows its formulas, with an online or a stored teacher."""

import json

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import tests.recipes.nano_decoder  # noqa: F401 -- registers the variant of the runs
from t5x_like import train
from t5x_like.corpora import builtin
from t5x_like.data import loader, task
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.objectives import _token_distillation, cached_distillation, token_distillation
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from tests.arrays import assert_trees_close
from tests.refusals import refuses
from tools import cache_teacher

B = 2
T = 6
V = 7
D = 4


class LinearModel:
  """A stand-in for a model, whose logits are the product of hidden states and a table."""

  def __init__(self, x_BTD, table_VD, reference=None):
    self.logits = VocabularyLogits(x_BTD, table_VD, tied=True)
    self.reference = reference

  def outputs(self, batch, key=None):
    return {"logits": self.logits}


@pytest.fixture(scope="module")
def case():
  """Return (hidden states and table of a student, of its teacher, a batch)."""
  generator = np.random.default_rng(4)
  shapes = ((B, T, D), (V, D))
  pairs = [[generator.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(2)]
  batch = {
    "decoder_target_tokens": generator.integers(0, V, (B, T)).astype(np.int32),
    "decoder_loss_weights": generator.uniform(size=(B, T)).astype(np.float32),
  }
  return *pairs, batch


def log_probabilities(x_BTD, table_VD, temperature=1.0):
  return log_softmax(np.asarray(x_BTD @ table_VD.T, np.float64) / temperature, axis=-1)


def top_tokens(teacher, k):
  log_p, ids = jax.lax.top_k(jax.nn.log_softmax(teacher[0] @ teacher[1].T), k)
  return {"teacher_tokens": ids, "teacher_log_probabilities": log_p}


def online_loss(student, teacher, batch, **options):
  """Return (loss, sums) with a teacher that runs beside the student."""
  return token_distillation.Objective(**options)(
    LinearModel(*student, LinearModel(*teacher)), batch
  )


def stored_loss(student, batch, **options):
  """Return (loss, sums) with a teacher whose top tokens are in the batch."""
  return cached_distillation.Objective(**options)(LinearModel(*student), batch)


@pytest.mark.parametrize("k", [V, 3])
def test_loss_follows_the_formula(k, case):
  student, teacher, batch = case
  log_q = log_probabilities(*student)
  log_p = log_probabilities(*teacher)
  order = np.argsort(-log_p, axis=-1)
  q = np.take_along_axis(np.exp(log_q), order, -1)
  p = np.take_along_axis(np.exp(log_p), order, -1)
  kl = (p * np.log(p / q))[..., :k].sum(-1)
  remainder = p[..., k:].sum(-1)
  if k < V:
    kl += remainder * np.log(remainder / q[..., k:].sum(-1))
  w = batch["decoder_loss_weights"]
  targets = batch["decoder_target_tokens"][..., None]
  cross_entropy = -np.take_along_axis(log_q, targets, -1)[..., 0]
  loss, sums = stored_loss(student, batch | top_tokens(teacher, k), share=0.7)
  np.testing.assert_allclose(loss, (w * (0.3 * cross_entropy + 0.7 * kl)).sum(), rtol=1e-5)
  expected = {
    "loss": cross_entropy,
    "distillation_loss": kl,
    "remainder": remainder,
    "agreement": log_q.argmax(-1) == log_p.argmax(-1),
  }
  for name, values in expected.items():
    np.testing.assert_allclose(sums[name], (w * values).sum(), rtol=1e-5, err_msg=name)


def test_temperature_divides_the_logits_of_student_and_teacher(case):
  student, teacher, batch = case
  log_q = log_probabilities(*student, 3)
  log_p = log_probabilities(*teacher, 3)
  loss, sums = online_loss(student, teacher, batch, share=1.0, temperature=3.0)
  expected = (batch["decoder_loss_weights"] * 9 * (np.exp(log_p) * (log_p - log_q)).sum(-1)).sum()
  np.testing.assert_allclose([loss, sums["distillation_loss"]], [expected] * 2, rtol=1e-4)


@pytest.mark.parametrize("tokens", [None, 2], ids=["whole", "chunks"])
def test_storing_all_tokens_equals_the_online_teacher(tokens, case, monkeypatch):
  student, teacher, batch = case
  stored = batch | top_tokens(teacher, V)

  def online(student, teacher):
    return online_loss(student, teacher, batch)[0]

  expected = jax.value_and_grad(online)(student, teacher)
  if tokens:
    monkeypatch.setattr(_token_distillation, "MAX_CHUNK_LOGITS", B * tokens * V)
    assert "scan" in str(jax.make_jaxpr(online)(student, teacher))
  loss, gradients = jax.value_and_grad(online, argnums=(0, 1))(student, teacher)
  assert_trees_close((loss, gradients[0]), expected, rtol=1e-5, atol=1e-6)
  assert not any(np.any(g) for g in gradients[1])
  from_store = jax.value_and_grad(lambda student: stored_loss(student, stored)[0])(student)
  assert_trees_close(from_store, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wider", ["teacher", "student"])
def test_vocabulary_padding_changes_no_loss(wider, case):
  """Models of one family may share a tokenizer but pad their vocabularies to different sizes."""
  student, teacher, batch = case
  models = {"student": student, "teacher": teacher}
  x, table = models[wider]
  models[wider] = x, np.concatenate([table, table[:3] + 9])
  log_q = log_probabilities(*models["student"])[..., :V]
  log_p = log_softmax(log_probabilities(*models["teacher"])[..., :V], axis=-1)
  kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
  expected = (kl * batch["decoder_loss_weights"]).sum()
  _, sums = online_loss(models["student"], models["teacher"], batch)
  assert sums["distillation_loss"] == pytest.approx(expected, rel=1e-4)


def test_bad_options_and_stores_are_refused(tmp_path):
  with refuses("config.objective.share", "1.5"):
    cached_distillation.Objective(share=1.5)
  with refuses(f"{tmp_path}/train", "python -m tools.cache_teacher"):
    task.build("taught", "train", store=str(tmp_path))
  with refuses("expected a store that tools.cache_teacher made"):
    task.build("taught", "train", store=builtin.prepare())  # a store without a teacher's tokens


@pytest.mark.more
@pytest.mark.runs
def test_student_learns_from_stored_teacher_tokens(tmp_path, compiled, capsys):
  k = 5
  recipe = "--config=tests/recipes/nano_decoder.py"
  steps = ["--config.total_steps=2", "--config.eval_every=2", "--config.checkpoint.every=2"]
  objective = '--config.objective={"name": "cached_distillation"}'
  store = f"{tmp_path}/taught"
  teacher = f"--workdir={tmp_path}/teacher"
  assert train.main([recipe, *steps, teacher]) == 0
  flags = [recipe, teacher, f"--k={k}", "--examples=20", f"--output={store}"]
  assert cache_teacher.main(flags) == 0
  assert f"the {k} likeliest tokens leave a remainder of 0." in capsys.readouterr().out
  taught = task.build("taught", "validation", store=store)
  batch = next(loader.eval_batches(taught, batch_size=8, max_examples=8))
  tokens, log_probabilities = cache_teacher.Teacher(f"{tmp_path}/teacher", k)(batch)
  np.testing.assert_array_equal(batch["teacher_tokens"], tokens)
  np.testing.assert_allclose(batch["teacher_log_probabilities"], log_probabilities, atol=1e-5)
  assert (np.diff(batch["teacher_log_probabilities"], axis=-1) <= 0).all()
  data = f"--config.task={json.dumps({'name': 'taught', 'store': store})}"
  assert train.main([recipe, *steps, data, objective, f"--workdir={tmp_path}/student"]) == 0
  row = read_metrics(tmp_path / "student")[0]
  assert 0 < row["train/remainder"] < 1
  assert row["train/distillation_loss"] > 0
  assert train.main([recipe, *steps, objective, f"--workdir={tmp_path}/other"]) == 2
  assert "python -m tools.cache_teacher" in capsys.readouterr().err


@pytest.mark.more
@pytest.mark.parametrize(
  "mesh", [dict(data=2, fsdp=2, tensor=2), dict(sequence=2, tensor=4)], ids=str
)
def test_meshes_change_neither_loss_nor_gradients(mesh, monkeypatch):
  generator = np.random.default_rng(8)
  shapes = (4, 12, 16), (64, 16)
  student, teacher = (
    [generator.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(2)
  )
  batch = {"decoder_target_tokens": generator.integers(0, 64, (4, 12)).astype(np.int32)}
  batch |= {"decoder_loss_weights": np.ones((4, 12), np.float32)} | top_tokens(teacher, 5)
  monkeypatch.setattr(_token_distillation, "MAX_CHUNK_LOGITS", 128)

  def both_losses(student, teacher, batch):
    online, _ = online_loss(student, teacher, batch, share=0.5)
    stored, _ = stored_loss(student, batch, share=0.5)
    return online + stored

  rules = Rules.make(make_mesh(mesh))

  def run_on_mesh(*arguments):
    with rules.activate():
      return jax.value_and_grad(both_losses)(*arguments)

  axes = ("batch", "length", None)
  shardings = [rules.sharding(axes), rules.sharding(("vocab", "embed"))]
  rows = {name: jax.device_put(x, rules.sharding(axes[: x.ndim])) for name, x in batch.items()}
  placed = [jax.device_put(model, shardings) for model in (student, teacher)]
  expected = jax.value_and_grad(both_losses)(student, teacher, batch)
  assert_trees_close(jax.jit(run_on_mesh)(*placed, rows), expected, rtol=1e-5, atol=1e-5)
