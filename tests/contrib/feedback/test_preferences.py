"""Reward models and ORPO follow their formulas, and learn a preference."""

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit, log_softmax

import json_lines
from t5x_like import train
from t5x_like.contrib.feedback import rewards
from t5x_like.contrib.feedback.objectives import orpo, reward
from t5x_like.models import gpt
from t5x_like.report.writer import read_metrics
from tests.contrib.feedback.test_dpo import B, T, draw_batch, pair_flags, train_on_pairs
from tests.models.families import Case, shrink
from tests.refusals import refuses

CASE = Case("gpt", "gpt", shrink(gpt.VARIANTS["gpt2"]))
BATCH = draw_batch(CASE)


@pytest.fixture(scope="module")
def scoring_model():
  return gpt.Model(nnx.Rngs(3), variant=CASE.variant, scores=1)


@pytest.fixture(scope="module")
def outputs(scoring_model):
  """Return the outputs for each text by itself, in rows [2 B]."""
  run = jax.jit(lambda model, row: model.outputs(row) | model(row))
  names = ("decoder_input_tokens", "decoder_segment_ids")
  rows = [{name: BATCH[name].reshape(2 * B, 1, T)[row] for name in names} for row in range(2 * B)]
  return [run(scoring_model, row) for row in rows]


def test_the_reward_loss_follows_bradley_and_terry(scoring_model, outputs):
  centre = 0.1
  gap = 0.2
  margin = np.array([0.0, 1.0, -0.5], np.float32)
  objective = reward.Objective(centre=centre, gap=gap)
  loss, sums = objective(scoring_model, BATCH | {"margin": margin})
  scores = np.array([float(row["scores"][0, 0]) for row in outputs]).reshape(B, 2)
  differences = scores[:, 0] - scores[:, 1]
  expected = (-np.log(expit(differences - gap - margin)) + centre * scores.sum(1) ** 2).sum()
  np.testing.assert_allclose([loss, sums["loss"]], [expected, expected], rtol=1e-5)
  np.testing.assert_allclose(sums["margin"], differences.sum(), rtol=1e-5)
  np.testing.assert_allclose(sums["chosen_reward"], scores[:, 0].sum(), rtol=1e-5)
  assert sums["weights"] == B
  assert sums["correct"] == (differences > 0).sum()


def test_orpo_follows_its_paper(scoring_model, outputs):
  loss, sums = orpo.Objective(beta=0.3)(scoring_model, BATCH)
  logits = np.stack([np.asarray(row["logits"][0], np.float64) for row in outputs])
  targets = BATCH["decoder_target_tokens"].reshape(2 * B, T, 1)
  log_p = np.take_along_axis(log_softmax(logits, axis=-1), targets, -1).reshape(B, 2, T)
  weights = BATCH["decoder_loss_weights"]
  means = (log_p * weights).sum(-1) / weights.sum(-1)
  odds = np.exp(means) / (1 - np.exp(means))
  ratio = np.log(odds[:, 0] / odds[:, 1])
  expected = (-means[:, 0] - 0.3 * np.log(expit(ratio))).sum()
  np.testing.assert_allclose([loss, sums["log_odds_ratio"]], [expected, ratio.sum()], rtol=1e-4)


@pytest.mark.more
@pytest.mark.parametrize(("name", "scores"), [("reward", 1), ("orpo", 0)])
def test_a_run_learns_the_preference(name, scores, tmp_path, compiled):
  run = train_on_pairs(tmp_path, "run", objective={"name": name}, **{"model.scores": scores})
  prefix = "eval/pairs_preferences"
  row = [row for row in read_metrics(run) if f"{prefix}/accuracy" in row][-1]
  assert row[f"{prefix}/accuracy"] > 0.9
  pairs = json_lines.read(tmp_path / "pairs.jsonl")
  answers = [pair["chosen"] for pair in pairs]
  reward_of_run = {"name": "model", "workdir": str(run)}
  if scores:  # as a reward, the model has the scores of the evaluation
    chosen_rewards = rewards.reward_texts(reward_of_run, answers, pairs)
    assert chosen_rewards.mean() == pytest.approx(row[f"{prefix}/chosen_reward"], rel=1e-4)
  else:
    with refuses("model failed", "found no reward model"):
      rewards.reward_texts(reward_of_run, answers, pairs)


def test_a_reward_model_needs_a_score(tmp_path, capsys):
  assert train.main(pair_flags(tmp_path, "run", objective={"name": "reward"})) == 2
  assert "scores" in capsys.readouterr().err


def test_bad_options_are_refused():
  with refuses("centre -1.0", "gap 0.0"):
    reward.Objective(centre=-1.0)
  with refuses("config.objective.beta", "0.0"):
    orpo.Objective(beta=0.0)
