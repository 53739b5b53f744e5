"""`tools.torch_baseline` trains on a run's batches in order and scores as the run does."""

import json
import sys

import numpy as np
import pytest
import torch  # noqa: F401 (before tensorflow)

import tests.recipes.nano_encoder  # noqa: F401 -- the variant that the run is of
from tests.runs import run
from tools import convert_hf, torch_baseline

pytestmark = pytest.mark.parity


def test_losses_and_scores_are_the_runs_without_dropout_at_a_rate_of_nearly_zero(tmp_path):
  rows = [{"text": f"number {n}" * (1 + n % 3), "label": n % 2} for n in range(40)]
  (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  task = {
    "name": "classification",
    "source": f"jsonl:train={tmp_path}/rows.jsonl,validation={tmp_path}/rows.jsonl",
    "text": "{text}",
    "labels": ["0", "1"],
    "length": 64,
    "buckets": 4,
    "vocabulary": "bytes",
    "cache": f"{tmp_path}/cache",
  }
  flags = {
    "objective.name": "classification",
    "task": task,
    "model.head": {"name": "classification", "labels": 2},
    "model.dropout": 0.0,
    "schedule": {"name": "constant", "learning_rate": 1e-30},
    "evals": {"dev": {"name": "classification", "scores": ["accuracy", "f1"]}},
    "batch_size": 8,
    "total_steps": 7,
    "eval_every": 4,
    "checkpoint.every": 7,
    "log_every": 1,
  }
  recipe = ["--config=tests/recipes/nano_encoder.py", f"--workdir={tmp_path}/run"]
  overrides = []
  for key, value in flags.items():
    text = value if isinstance(value, str) else json.dumps(value)
    overrides.append(f"--config.{key}={text}")
  code, output = run([sys.executable, "-m", "t5x_like.train", *recipe, *overrides], devices=8)
  assert code == 0, output
  assert convert_hf.main([f"--input={tmp_path}/run", f"--output={tmp_path}/exported"]) == 0
  assert not torch_baseline.main([f"--workdir={tmp_path}/run", f"--model={tmp_path}/exported"])

  scores = json.loads((tmp_path / "run" / torch_baseline.RESULT_FILE).read_text())["scores"]
  text = (tmp_path / "run" / "metrics.jsonl").read_text()
  metrics = [json.loads(line) for line in text.splitlines()]
  losses = [row["train/loss"] for row in metrics if "train/loss" in row]
  assert [row["step"] for row in scores] == [4, 7]
  mean_losses = [np.mean(losses[:4]), np.mean(losses[4:])]
  np.testing.assert_allclose([row["loss"] for row in scores], mean_losses, rtol=1e-5)
  assert scores[-1]["accuracy"] == pytest.approx(metrics[-1]["eval/dev/accuracy"])


def test_a_directory_without_a_run_is_refused_in_one_line(tmp_path, capsys):
  assert torch_baseline.main([f"--workdir={tmp_path}", "--model=."]) == 2
  assert "holds no run" in capsys.readouterr().err
