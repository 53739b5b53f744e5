"""Runs that learn from rewards: their rollouts, metrics and refusals, on one device and eight."""

import contextlib
import json

import pytest

import tests.recipes.nano_decoder  # noqa: F401 -- the variant that the runs are of
from t5x_like import predict, train
from t5x_like.contrib.feedback.rewards import exact
from t5x_like.report.writer import read_metrics
from tests.runs import hide_other_devices

GRPO = {"name": "grpo", "reward": "exact", "updates": 2}
PPO = {"name": "ppo", "reward": "exact", "updates": 2, "minibatches": 2}


def flags(folder, workdir, **changes):
  task = {
    "name": "prompts",
    "source": "sums:9",
    "cache": f"{folder}/cache",
    "prompt": "{a}+{b}=",
    "fields": ["sum"],
    "fields_length": 32,
    "prompt_length": 6,
    "new_tokens": 4,
    "completions": 4,
  }
  values = {
    "task": task,
    "objective": GRPO,
    "evals": {"reward": {"max_examples": 8}},
    "schedule": {"name": "constant", "learning_rate": 1e-2},
    "model.dropout": 0.1,
    "total_steps": 4,
    "eval_every": 4,
    "checkpoint.every": 2,
    "batch_size": 8,
  } | changes
  overrides = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
  return ["--config=tests/recipes/nano_decoder.py", f"--workdir={workdir}", *overrides]


@pytest.fixture
def calls(monkeypatch):
  """Reward small bytes, since no sum from random weights is right; return the calls' sizes."""
  sizes = []

  def reward(texts, examples):
    sizes.append(len(texts))
    assert all(example.keys() == {"sum"} for example in examples if example)
    return [sum(letter < "A" for letter in text) / 4 for text in texts]

  monkeypatch.setattr(exact, "reward", reward)
  return sizes


@pytest.mark.more
@pytest.mark.parametrize("objective", [PPO, GRPO], ids=["ppo", "grpo"])
def test_every_rollout_is_rewarded_and_measured(objective, calls, one_device, tmp_path, compiled):
  run = tmp_path / "run"
  assert train.main(flags(tmp_path, run, objective=objective)) == 0
  assert calls == [32, 32, 32, 32, 8]
  rows = [row for row in read_metrics(run) if "train/reward" in row]
  assert {"train/kl", "train/clip_fraction", "train/completion_length"} <= rows[0].keys()
  assert len(rows) == 4
  assert rows[0]["train/kl"] > 0, "the second update has left the reference"
  (tmp_path / "in.txt").write_text("1+2=\n")
  files = [f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.jsonl"]
  assert predict.main([f"--workdir={run}", *files, "--max_new_tokens=2"]) == 0


@pytest.mark.more
def test_a_run_stops_with_the_error_of_its_reward(
  one_device, tmp_path, compiled, monkeypatch, capsys
):
  def reward(texts, examples):
    raise InterruptedError("stopped here")

  monkeypatch.setattr(exact, "reward", reward)
  assert train.main(flags(tmp_path, tmp_path / "run")) == 2
  message = "config.objective.reward: exact failed: InterruptedError: stopped here"
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"evals": {"loss": {}}}, "config.evals.loss: prompts have no answers"),
    ({"objective": {"name": "grpo", "reward": "exakt"}}, "did you mean 'exact'"),
    ({"objective": PPO | {"minibatches": 3}}, "8 prompts do not divide into 3 minibatches"),
    ({"objective": {"name": "dpo"}, "evals": {}}, "'a chosen and a rejected answer'"),
  ],
)
def test_impossible_recipes_are_refused(changes, message, one_device, tmp_path, compiled, capsys):
  assert train.main(flags(tmp_path, tmp_path / "run", **changes)) == 2
  assert message in capsys.readouterr().err


@pytest.mark.more
@pytest.mark.parametrize("objective", [GRPO, PPO], ids=["grpo", "ppo"])
def test_eight_devices_have_the_losses_of_one(objective, calls, tmp_path, compiled):
  rows = []
  for devices in (1, 8):
    run = tmp_path / str(devices)
    with hide_other_devices() if devices == 1 else contextlib.nullcontext():
      assert train.main(flags(tmp_path, run, objective=objective, batch_size=16)) == 0
    rows.append([row for row in read_metrics(run) if "train/reward" in row])
  for single, eight in zip(*rows, strict=True):
    assert single["train/reward"] == eight["train/reward"]
    assert single["train/completion_length"] == eight["train/completion_length"]
    assert single["train/kl"] == pytest.approx(eight["train/kl"], rel=1e-3)
