"""A run that is resumed before, at or after a boundary of phases ends with the same bits."""

import json

import pytest

from refusals import refuses
from t5x_like import recipes, train
from t5x_like.data import loader, task
from t5x_like.training import phases
from t5x_like.training.build import build_phases
from t5x_like.training.resolve import resolve
from tests.runs import fingerprints, losses

FLAGS = (
  "--config=tests/recipes/nano_encoder.py",
  '--config.schedule={"name": "constant", "learning_rate": 0.001}',
  "--config.evals={}",
  "--config.checkpoint.every=1",
  "--config.checkpoint.keep_last=9",
  "--config.peak_flops=1e11",
  "--config.model.dropout=0.1",
)


def train_run(workdir, steps: int, *, until: int = 2, length: int = 32, rows: int = 16) -> int:
  """Train a phase with short rows up to step `until`, and then the main phase."""
  short = {"until": until, "task": {"length": length}, "batch_size": rows}
  flags = (f"--config.phases={json.dumps({'short': short})}", f"--config.total_steps={steps}")
  return train.main([*FLAGS, *flags, f"--workdir={workdir}"])


@pytest.mark.usefixtures("compiled")
@pytest.mark.more
def test_resumed_run_equals_an_uninterrupted_one_on_both_sides_of_a_boundary(tmp_path, capsys):
  whole = tmp_path / "whole"
  parts = tmp_path / "parts"
  assert train_run(whole, 4) == 0
  printed = capsys.readouterr().out
  assert "phase short from step 0" in printed
  assert "phase main from step 2" in printed
  for steps in (1, 2, 4):
    assert train_run(parts, steps) == 0
  printed = capsys.readouterr().out
  assert "phase short from step 1" in printed
  assert printed.count("phase main from step 2") == 1
  assert losses(parts) == losses(whole)
  assert len(losses(whole)) == 4
  assert fingerprints(parts, 4) == fingerprints(whole, 4)
  saved = json.loads((whole / "config.json").read_text())
  assert saved["features"]["encoder_input_tokens"] == [64]
  assert train_run(whole, 5, length=48) == 2
  assert "fingerprints.data_short" in capsys.readouterr().err
  for until, rows in ((3, 16), (2, 8)):
    assert train_run(whole, 5, until=until, rows=rows) == 2
    error = capsys.readouterr().err
    assert f"found phase short up to step {until} at batch size {rows}" in error
    assert "its steps up to 4 were made with phase short up to step 2 at batch size 16" in error


def test_phases_on_the_same_examples_continue_one_sequence():
  """The batch size grows, and a phase on other rows comes between."""
  changes = {
    "a": {"until": 2, "batch_size": 4},
    "b": {"until": 5, "task": {"length": 16}},
    "c": {"until": 7},
  }
  config = recipes.load(
    "configs/gpt/gpt2_124m.py:debug", [f"phases={json.dumps(changes)}", "batch_size=16"]
  )
  run_phases = build_phases(config, task.build_at)
  rows = []
  for step in (*range(2), *range(5, 9)):
    batch = next(phases.iterate_batches(run_phases, step))
    rows += [row.tobytes() for row in batch["decoder_target_tokens"]]
  last_phase = loader.train_batches(run_phases[-1].task, batch_size=1, seed=config.seed)
  assert rows == [next(last_phase)["decoder_target_tokens"].tobytes() for _ in rows]
  assert len(rows) == 72


@pytest.mark.parametrize(
  ("phases", "parts"),
  [
    ('{"a": {"until": 0}}', ("phases.a.until: found 0",)),
    ('{"a": {"until": 3}, "b": {"until": 3}}', ("phases.b.until",)),
    ('{"a": {"untl": 3}}', ("untl", "did you mean 'until'")),
    ('{"a": {"until": 3, "task": {"name": "bart"}}}', ("phases.a.task.name",)),
    ('{"a": {"until": 3, "batch_size": 0}}', ("phases.a.batch_size: found 0",)),
  ],
)
def test_bad_phases_are_refused(phases, parts):
  with refuses(*parts):
    resolve(recipes.load("configs/bert/base.py:debug", [f"phases={phases}"]))


@pytest.mark.parametrize(
  ("overrides", "parts"),
  [
    (
      ['phases={"a": {"until": 1, "task": {"lenth": 16}}}'],
      ("config.phases.a.task.lenth: ", "did you mean 'length'"),
    ),
    (
      ['phases={"a": {"until": 1, "task": {"length": 32}}}', "task.lenth=16"],
      ("config.task.lenth: ", "did you mean 'length'"),
    ),
    (
      ['phases={"a": {"until": 1, "task": {"length": 2}}}'],
      ("config.phases.a.task.length: found 2", "expected at least"),
    ),
  ],
)
def test_errors_name_the_key_that_sets_the_argument(overrides, parts):
  config = recipes.load("configs/bert/base.py:debug", overrides)
  with refuses(*parts):
    build_phases(config, task.build_at)
