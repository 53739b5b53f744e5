"""Runs and tasks work in Python, and the notebook's cells run in one process without Jupyter."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import t5x_like as t5x
from t5x_like import recipes
from t5x_like.errors import UserError
from tests.runs import NANO, REPO, environment

pytestmark = pytest.mark.runs

NOTEBOOK = REPO / "docs" / "notebook.ipynb"
FLAGS = {"total_steps": 2, "eval_every": 2, "checkpoint.every": 2, "evals": {"loss": {}}}


def test_callbacks_see_every_line_of_the_metrics(tmp_path, compiled):
  rows = []
  run = t5x.Run(NANO, str(tmp_path / "run"), FLAGS)
  run.train([lambda step, metrics: rows.append({"step": step, **metrics})])
  assert [row["step"] for row in rows] == [row["step"] for row in run.metrics()]
  assert rows[0]["train/loss"] == pytest.approx(run.metrics()[0]["train/loss"])
  assert any("eval/builtin_span_corruption/loss" in row for row in rows)
  run_of_recipe = t5x.Run(recipes.load(NANO), str(tmp_path / "run"), FLAGS)
  assert run_of_recipe.metrics() == run.metrics()


def test_an_unknown_flag_of_a_run_is_refused(tmp_path):
  with pytest.raises(UserError, match="no key .total_stepz. .did you mean .total_steps."):
    t5x.Run(NANO, str(tmp_path / "run"), {"total_stepz": 1})


def test_a_task_gives_the_batches_of_a_run():
  task = t5x.Task.of(NANO)
  config = recipes.load(NANO)
  batches = task.batches(config.batch_size, seed=config.seed)
  first = next(batches)
  second = next(batches)
  later = next(task.batches(config.batch_size, seed=config.seed, start=1))
  row_shapes = {name: x.shape[1:] for name, x in first.items()}
  assert row_shapes == {name: feature.shape for name, feature in task.features.items()}
  for name, x in later.items():
    np.testing.assert_array_equal(x, second[name])
  assert task[3].keys() == first.keys()
  assert len(list(task.examples(8, 20))) == 3  # 20 examples in batches of 8
  with pytest.raises(IndexError, match="examples, found index"):
    task[len(task)]


def test_the_notebook_runs(tmp_path, compiled):
  content = json.loads(NOTEBOOK.read_text())
  assert content["nbformat"] == 4
  cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
  assert not any(cell.get("outputs") for cell in content["cells"])
  (tmp_path / "cells.py").write_text("\n\n".join(cells))
  python_path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
  env = environment(1, compiled) | {"PYTHONPATH": python_path}
  process = subprocess.run(
    [sys.executable, "cells.py"], cwd=tmp_path, env=env, capture_output=True, text=True
  )
  assert process.returncode == 0, process.stderr[-2000:]
  assert (tmp_path / "exported" / "model.safetensors").is_file()
  assert "nats" in process.stdout
