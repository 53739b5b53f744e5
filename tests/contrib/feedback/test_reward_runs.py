"""Runs that learn from rewards resume in the middle of a rollout with the same bits."""

import contextlib
import json

import pytest

import more
import tests.recipes.nano_decoder  # noqa: F401 -- the variant that the runs are of
from t5x_like import predict, train
from t5x_like.contrib.feedback.rewards import exact
from t5x_like.report.writer import read_metrics
from tests.runs import assert_same_bits, hide_other_devices


@pytest.fixture
def one_device():
  with hide_other_devices():
    yield


def flags(folder, workdir, **changes):
  task = {
    "name": "prompts",
    "source": "sums:9",
    "cache": f"{folder}/cache",
    "prompt": "{a}+{b}=",
    "fields": ["sum"],
  }
  values = {
    "task": task | {"fields_length": 32, "prompt_length": 6, "new_tokens": 4, "completions": 4},
    "objective": {"name": "grpo", "reward": "exact", "updates": 2},
    "evals": {"reward": {"max_examples": 8}},
    "schedule": {"name": "constant", "learning_rate": 1e-2},
  } | changes
  overrides = [f"--config.{slot}={json.dumps(value)}" for slot, value in values.items()]
  steps = (
    "--config.total_steps=4",
    "--config.eval_every=4",
    "--config.checkpoint.every=2",
    "--config.batch_size=8",
  )
  start = (
    "--config=tests/recipes/nano_decoder.py",
    "--config.model.dropout=0.1",
    f"--workdir={workdir}",
  )
  return [*start, *overrides, *steps]


@pytest.mark.parametrize(
  "objective",
  more.beyond(
    0,
    [
      {"name": "ppo", "updates": 2, "minibatches": 2, "reward": {"name": "exact"}},
      {"name": "grpo", "updates": 2},
    ],
  ),
  ids=lambda objective: objective["name"],
)
def test_a_run_stopped_in_a_rollout_goes_on_with_the_same_bits(
  objective, one_device, tmp_path, compiled, capsys, monkeypatch
):
  calls = []
  changes = {"objective": {"reward": "exact"} | objective}

  def reward(texts, examples):
    """Rewards small bytes: from random weights, no sum is right."""
    calls.append(len(texts))
    if len(calls) == stop_at:
      raise InterruptedError("stopped here")
    assert all(example.keys() == {"sum"} for example in examples)
    return [sum(letter < "A" for letter in text) / 4 for text in texts]

  monkeypatch.setattr(exact, "reward", reward)
  stop_at = None
  assert train.main(flags(tmp_path, tmp_path / "whole", **changes)) == 0, capsys.readouterr().err
  assert calls == [32, 32, 32, 32, 8]
  calls = []
  stop_at = 4
  assert train.main(flags(tmp_path, tmp_path / "parted", **changes)) == 2
  assert (
    "config.objective.reward: exact failed: InterruptedError: stopped here"
    in capsys.readouterr().err
  )
  assert train.main(flags(tmp_path, tmp_path / "parted", **changes)) == 0
  assert_same_bits(tmp_path / "whole", tmp_path / "parted", 4)
  rows = [row for row in read_metrics(tmp_path / "whole") if "train/reward" in row]
  assert {"train/kl", "train/clip_fraction", "train/reward", "train/completion_length"} <= rows[
    0
  ].keys()
  assert len(rows) == 4, "the second update has left the reference"
  assert rows[0]["train/kl"] > 0, "the second update has left the reference"
  (tmp_path / "in.txt").write_text("1+2=\n")
  resumed_flags = [
    f"--workdir={tmp_path}/whole",
    f"--input={tmp_path}/in.txt",
    f"--output={tmp_path}/out.jsonl",
  ]
  assert predict.main([*resumed_flags, "--max_new_tokens=2"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"evals": {"loss": {}}}, "config.evals.loss: prompts have no answers"),
    ({"objective": {"name": "grpo", "reward": "exakt"}}, "did you mean 'exact'"),
    (
      {"objective": {"name": "ppo", "reward": "exact", "minibatches": 3}},
      "8 prompts do not divide into 3 minibatches",
    ),
    (
      {"objective": {"name": "dpo"}, "evals": {}},
      "dpo needs the feature 'a chosen and a rejected answer', which task prompts does not make",
    ),
  ],
)
def test_impossible_recipes_are_refused_in_one_line(
  changes, message, one_device, tmp_path, compiled, capsys
):
  assert train.main(flags(tmp_path, tmp_path / "run", **changes)) == 2
  assert message in capsys.readouterr().err


@pytest.mark.more
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_eight_devices_have_the_losses_of_one(name, tmp_path, compiled, capsys, monkeypatch):
  monkeypatch.setattr(
    exact, "reward", lambda texts, _: [sum(letter < "A" for letter in text) / 4 for text in texts]
  )
  objective = {"name": name, "reward": "exact", "updates": 2} | (
    {"minibatches": 2} if name == "ppo" else {}
  )
  losses_by_devices = []
  for devices in (1, 8):
    with hide_other_devices() if devices == 1 else contextlib.nullcontext():
      run = tmp_path / str(devices)
      arguments = [*flags(tmp_path, run, objective=objective), "--config.batch_size=16"]
      assert train.main(arguments) == 0, capsys.readouterr().err
    losses_by_devices.append([row for row in read_metrics(run) if "train/reward" in row])
  for single, eight in zip(*losses_by_devices, strict=True):
    assert all(single[name] == eight[name] for name in ("train/reward", "train/completion_length"))
    assert single["train/kl"] == pytest.approx(eight["train/kl"], rel=1e-3)
