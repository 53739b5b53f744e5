"""Distillation of language models follows its formulas, by a teacher's stored tokens as well."""

import json

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import tests.recipes.nano_decoder  # noqa: F401 -- the variant that the runs are of
from t5x_like import train
from t5x_like.corpora import builtin
from t5x_like.data import loader, task
from t5x_like.errors import UserError
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.objectives import _token_distillation, cached_distillation, token_distillation
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from tools import cache_teacher

B = 2
T = 6
V = 7
D = 4


class Small:
  def __init__(self, x_BTD, table_VD, reference=None):
    self.logits = VocabularyLogits(x_BTD, table_VD, tied=True)
    self.reference = reference

  def outputs(self, batch, key=None):
    return {"logits": self.logits}


@pytest.fixture(scope="module")
def case():
  """Return (hidden states and table of a student, of its teacher, a batch)."""
  draw = np.random.default_rng(4)
  pairs = [[draw.normal(size=s).astype(np.float32) for s in ((B, T, D), (V, D))] for _ in range(2)]
  targets = draw.integers(0, V, (B, T)).astype(np.int32)
  return *pairs, {
    "decoder_target_tokens": targets,
    "decoder_loss_weights": draw.uniform(size=(B, T)).astype("f"),
  }


def top_tokens(teacher, k):
  log_p, ids = jax.lax.top_k(jax.nn.log_softmax(teacher[0] @ teacher[1].T), k)
  return {"teacher_tokens": ids, "teacher_log_probabilities": log_p}


@pytest.mark.parametrize("k", [V, 3])
def test_the_loss_follows_the_formula(k, case):
  student, teacher, batch = case
  log_q, log_p = (
    log_softmax(np.asarray(x @ table.T, np.float64), axis=-1) for x, table in (student, teacher)
  )
  kl = np.zeros((B, T))
  remainder = np.zeros((B, T))
  for position in np.ndindex(B, T):
    q = np.exp(log_q[position])
    p = np.exp(log_p[position])
    top = np.argsort(-p)[:k]
    other_ids = [i for i in range(V) if i not in top]
    kl[position] = sum(p[i] * np.log(p[i] / q[i]) for i in top)
    if other_ids:
      remainder[position] = p[other_ids].sum()
      kl[position] += remainder[position] * np.log(remainder[position] / q[other_ids].sum())
  w = batch["decoder_loss_weights"]
  target = batch["decoder_target_tokens"]
  ce = -np.take_along_axis(log_q, target[..., None], -1)[..., 0]
  loss, sums = cached_distillation.Objective(share=0.7)(
    Small(*student), batch | top_tokens(teacher, k)
  )
  np.testing.assert_allclose(loss, (w * (0.3 * ce + 0.7 * kl)).sum(), rtol=1e-5)
  np.testing.assert_allclose(
    [sums["loss"], sums["distillation_loss"], sums["remainder"]],
    [(w * x).sum() for x in (ce, kl, remainder)],
    rtol=1e-5,
  )
  assert sums["agreement"] == pytest.approx(
    (w * (log_q.argmax(-1) == log_p.argmax(-1))).sum(), rel=1e-5
  )
  if k < V:
    full_loss = token_distillation.Objective()(Small(*student, Small(*teacher)), batch)[1][
      "distillation_loss"
    ]
    assert sums["distillation_loss"] < full_loss


def test_a_temperature_divides_the_logits_of_both(case):
  student, teacher, batch = case
  log_q, log_p = (
    log_softmax(np.asarray(x @ table.T, np.float64) / 3, axis=-1) for x, table in (student, teacher)
  )
  objective = token_distillation.Objective(share=1.0, temperature=3.0)
  loss, sums = objective(Small(*student, Small(*teacher)), batch)
  expected = (batch["decoder_loss_weights"] * 9 * (np.exp(log_p) * (log_p - log_q)).sum(-1)).sum()
  np.testing.assert_allclose([loss, sums["distillation_loss"]], [expected] * 2, rtol=1e-4)


@pytest.mark.parametrize("tokens", [None, 2], ids=["whole", "chunks"])
def test_stored_probabilities_of_all_tokens_equal_the_online_teacher(tokens, case, monkeypatch):
  student, teacher, batch = case

  def online(student):
    return token_distillation.Objective()(Small(*student, Small(*teacher)), batch)[0]

  expected = jax.value_and_grad(online)(student)
  if tokens:
    monkeypatch.setattr(_token_distillation, "MAX_CHUNK_LOGITS", B * tokens * V)
    assert "scan" in str(jax.make_jaxpr(online)(student))
  stored = batch | top_tokens(teacher, V)
  from_store = jax.value_and_grad(lambda s: cached_distillation.Objective()(Small(*s), stored)[0])(
    student
  )
  for pair in zip(
    jax.tree.leaves((from_store, jax.value_and_grad(online)(student))),
    jax.tree.leaves((expected,) * 2),
  ):
    np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-6)
  to_teacher = jax.grad(
    lambda t: token_distillation.Objective()(Small(*student, Small(*t)), batch)[0]
  )(teacher)
  assert all(not np.any(g) for g in to_teacher)


@pytest.mark.parametrize("wider", ["teacher", "student"])
def test_padding_of_a_vocabulary_changes_no_loss(wider, case):
  """Sizes of a family may share a tokenizer but pad their tables differently."""
  student, teacher, batch = case
  logits = {"student": student, "teacher": teacher}
  x, table = logits[wider]
  logits[wider] = x, np.concatenate([table, table[:3] + 9])
  log_q, log_p = (
    log_softmax(np.asarray(x @ table.T, np.float64), axis=-1) for x, table in logits.values()
  )
  log_q = log_q[..., :V]
  log_p = log_p[..., :V] - np.log(np.exp(log_p[..., :V]).sum(-1, keepdims=True))
  kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
  sums = token_distillation.Objective()(
    Small(*logits["student"], Small(*logits["teacher"])), batch
  )[1]
  expected = (kl * batch["decoder_loss_weights"]).sum()
  assert sums["distillation_loss"] == pytest.approx(expected, rel=1e-4)


def test_bad_options_are_refused_in_one_line(tmp_path):
  with pytest.raises(
    UserError, match="config.objective.share: found 1.5, expected a number from 0 to 1"
  ):
    cached_distillation.Objective(share=1.5)
  with pytest.raises(
    UserError, match="found no store .*/train; make it with python -m tools.cache_teacher"
  ):
    task.build("taught", "train", store=str(tmp_path))
  store = builtin.prepare()  # tokens alone
  with pytest.raises(UserError, match="expected a store that tools.cache_teacher made"):
    task.build("taught", "train", store=store)


@pytest.mark.more
@pytest.mark.runs
def test_a_student_learns_from_a_teachers_stored_tokens(tmp_path, compiled, capsys):
  recipe = ["--config=tests/recipes/nano_decoder.py"]
  k = 5
  steps = ["--config.total_steps=2", "--config.eval_every=2", "--config.checkpoint.every=2"]
  flags = [*recipe, *steps, f"--workdir={tmp_path}/teacher"]
  assert train.main(flags) == 0, capsys.readouterr().err
  stored = [
    f"--workdir={tmp_path}/teacher",
    f"--k={k}",
    "--examples=20",
    f"--output={tmp_path}/taught",
  ]
  assert cache_teacher.main([*recipe, *stored]) == 0, capsys.readouterr().err
  assert f"the {k} likeliest tokens leave a remainder of 0." in capsys.readouterr().out
  built = task.build("taught", "validation", store=f"{tmp_path}/taught")
  batch = next(loader.eval_batches(built, batch_size=8, max_examples=8))
  run = cache_teacher.Teacher(f"{tmp_path}/teacher", k)
  np.testing.assert_array_equal(batch["teacher_tokens"], run(batch)[0])
  np.testing.assert_allclose(batch["teacher_log_probabilities"], run(batch)[1], atol=1e-5)
  assert (np.diff(batch["teacher_log_probabilities"], axis=-1) <= 0).all()
  values = {
    "task": {"name": "taught", "store": f"{tmp_path}/taught"},
    "objective": {"name": "cached_distillation"},
  }
  overrides = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
  flags = [*recipe, *steps, *overrides, f"--workdir={tmp_path}/student"]
  assert train.main(flags) == 0, capsys.readouterr().err
  rows = read_metrics(tmp_path / "student")
  assert 0 < rows[0]["train/remainder"] < 1
  assert rows[0]["train/distillation_loss"] > 0
  overrides = ['--config.objective={"name": "cached_distillation"}', f"--workdir={tmp_path}/other"]
  assert train.main([*recipe, *steps, *overrides]) == 2
  assert "python -m tools.cache_teacher" in capsys.readouterr().err


@pytest.mark.more
@pytest.mark.parametrize(
  "mesh", [dict(data=2, fsdp=2, tensor=2), dict(sequence=2, tensor=4)], ids=str
)
def test_meshes_change_no_loss_and_no_gradient(mesh, monkeypatch):
  draw = np.random.default_rng(8)
  sizes = (4, 12, 16), (64, 16)
  student = [draw.normal(size=s).astype(np.float32) for s in sizes]
  teacher = [draw.normal(size=s).astype(np.float32) for s in sizes]
  batch = {"decoder_target_tokens": draw.integers(0, 64, (4, 12)).astype(np.int32)}
  batch |= {"decoder_loss_weights": np.ones((4, 12), np.float32)} | top_tokens(teacher, 5)
  monkeypatch.setattr(_token_distillation, "MAX_CHUNK_LOGITS", 128)

  def both_losses(student, teacher, batch):
    online = token_distillation.Objective(share=0.5)(Small(*student, Small(*teacher)), batch)[0]
    return online + cached_distillation.Objective(share=0.5)(Small(*student), batch)[0]

  expected = jax.value_and_grad(both_losses)(student, teacher, batch)
  rules = Rules.make(make_mesh(mesh))
  x = rules.sharding(("batch", "length", None))
  table = rules.sharding(("vocab", "embed"))

  def within(*arguments):
    with rules.activate():
      return jax.value_and_grad(both_losses)(*arguments)

  placed = [[jax.device_put(a, s) for a, s in zip(pair, (x, table))] for pair in (student, teacher)]
  rows = {
    n: jax.device_put(a, rules.sharding(("batch", "length", None)[: a.ndim]))
    for n, a in batch.items()
  }
  for sharded, unsharded in zip(
    jax.tree.leaves(jax.jit(within)(*placed, rows)), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(sharded, unsharded, rtol=1e-5, atol=1e-5)
