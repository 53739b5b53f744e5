"""Reward models and ORPO follow their formulas, and learn a preference."""

import json

import numpy as np
import pytest
from flax import nnx
from scipy.special import expit, log_softmax

from t5x_like import train
from t5x_like.contrib.feedback import rewards
from t5x_like.contrib.feedback.objectives import orpo, reward
from t5x_like.errors import UserError
from t5x_like.models import gpt
from t5x_like.report.writer import read_metrics
from tests.contrib.feedback.test_dpo import draw_batch, flags
from tests.models.families import Case, shrunk
from tests.runs import assert_same_bits

CASE = Case("gpt", "gpt", shrunk(gpt.VARIANTS["gpt2"]))


@pytest.fixture(scope="module")
def batch():
  return draw_batch(CASE)


@pytest.fixture(scope="module")
def model_with_scores():
  return gpt.Model(nnx.Rngs(3), variant=CASE.variant, scores=1)


def select_side(batch, row, side):
  return {
    name: batch[name][row, side][None] for name in ("decoder_input_tokens", "decoder_segment_ids")
  }


def test_the_reward_loss_follows_bradley_and_terry(batch, model_with_scores):
  centre = 0.1
  gap = 0.2
  scores = np.array([0.0, 1.0, -0.5], np.float32)
  loss, sums = reward.Objective(centre=centre, gap=gap)(
    model_with_scores, batch | {"margin": scores}
  )
  rewards = np.zeros((3, 2))
  for row in range(3):
    for side in (0, 1):
      outputs = model_with_scores.outputs(select_side(batch, row, side))
      rewards[row, side] = float(outputs["scores"][0, 0])
  margins = rewards[:, 0] - rewards[:, 1]
  expected = (-np.log(expit(margins - gap - scores)) + centre * rewards.sum(1) ** 2).sum()
  np.testing.assert_allclose(
    [loss, sums["loss"], sums["margin"]], [expected, expected, margins.sum()], rtol=1e-5
  )
  np.testing.assert_allclose(sums["chosen_reward"], rewards[:, 0].sum(), rtol=1e-5)
  assert sums["weights"] == 3
  assert sums["correct"] == (margins > 0).sum()


def test_orpo_follows_its_paper(batch, model_with_scores):
  loss, sums = orpo.Objective(beta=0.3)(model_with_scores, batch)
  means = np.empty((3, 2))
  for row in range(3):
    for side in (0, 1):
      log_p = log_softmax(
        np.asarray(model_with_scores(select_side(batch, row, side))["logits"][0], np.float64),
        axis=-1,
      )
      weights = batch["decoder_loss_weights"][row, side]
      target_log_p = np.take_along_axis(
        log_p, batch["decoder_target_tokens"][row, side][:, None], 1
      )[:, 0]
      means[row, side] = (target_log_p * weights).sum() / weights.sum()
  odds = np.exp(means) / (1 - np.exp(means))
  ratio = np.log(odds[:, 0] / odds[:, 1])
  expected = (-means[:, 0] - 0.3 * np.log(expit(ratio))).sum()
  np.testing.assert_allclose([loss, sums["log_odds_ratio"]], [expected, ratio.sum()], rtol=1e-4)


@pytest.mark.parametrize("objective", [reward, orpo])
def test_padding_pairs_count_for_nothing(objective, batch, model_with_scores):
  padded = {name: np.concatenate([x, np.zeros_like(x[:1])]) for name, x in batch.items()}
  for actual, expected in zip(
    objective.Objective()(model_with_scores, padded)[1].values(),
    objective.Objective()(model_with_scores, batch)[1].values(),
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.more
@pytest.mark.parametrize("values, scores", [({"name": "reward"}, 1), ({"name": "orpo"}, 0)])
def test_a_run_learns_the_preference_and_resumes_to_the_same_bits(
  values, scores, tmp_path, compiled, capsys
):
  objective_flags = (f"--config.objective={json.dumps(values)}", f"--config.model.scores={scores}")
  run = tmp_path / "run"
  parted = tmp_path / "parted"
  arguments = [*flags(tmp_path, *objective_flags), f"--workdir={run}"]
  assert train.main(arguments) == 0, capsys.readouterr().err
  evaluated = [row for row in read_metrics(run) if "eval/pairs_preferences/accuracy" in row]
  assert evaluated[-1]["eval/pairs_preferences/accuracy"] > 0.9
  arguments = [*flags(tmp_path, *objective_flags, "--config.total_steps=3"), f"--workdir={parted}"]
  assert train.main(arguments) == 0
  assert train.main([*flags(tmp_path, *objective_flags), f"--workdir={parted}"]) == 0
  assert_same_bits(run, parted, 6)
  pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
  texts_and_rows = (
    [pair["chosen"] for pair in pairs],
    [{"prompt": pair["prompt"]} for pair in pairs],
  )
  if scores:  # the reward model as a reward says what the evaluation said
    chosen_rewards = rewards.reward_texts({"name": "model", "workdir": str(run)}, *texts_and_rows)
    assert chosen_rewards.mean() == pytest.approx(
      evaluated[-1]["eval/pairs_preferences/chosen_reward"], rel=1e-4
    )
  else:
    with pytest.raises(UserError, match="model failed: UserError: .*: found no reward model"):
      rewards.reward_texts({"name": "model", "workdir": str(run)}, *texts_and_rows)


def test_a_reward_model_needs_a_score(tmp_path, capsys):
  arguments = [
    *flags(tmp_path, '--config.objective={"name": "reward"}'),
    f"--workdir={tmp_path}/run",
  ]
  assert train.main(arguments) == 2
  assert "scores" in capsys.readouterr().err


def test_bad_options_are_refused_in_one_line():
  with pytest.raises(UserError, match="found centre -1.0 and gap 0.0, expected neither below 0"):
    reward.Objective(centre=-1.0)
  with pytest.raises(
    UserError, match="config.objective.beta: found 0.0, expected a number above 0"
  ):
    orpo.Objective(beta=0.0)
