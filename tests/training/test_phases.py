"""A run stopped before, at or after a boundary of phases ends with the bits of an unbroken one."""

import json

import pytest

from t5x_like import recipes, train
from t5x_like.data import loader, task
from t5x_like.errors import UserError
from t5x_like.training import phases
from t5x_like.training.build import build_phases
from t5x_like.training.resolve import resolve
from tests.runs import fingerprints, losses

FLAGS = (
  "--config=tests/recipes/nano_encoder.py",
  '--config.phases={"short": {"until": 2, "task": {"length": 32}, "batch_size": 16}}',
  '--config.schedule={"name": "constant", "learning_rate": 0.001}',
  "--config.evals={}",
  "--config.checkpoint.every=1",
  "--config.checkpoint.keep_last=9",
  "--config.peak_flops=1e11",
  "--config.model.dropout=0.1",
)


def train_run(workdir, steps):
  assert train.main([*FLAGS, f"--workdir={workdir}", f"--config.total_steps={steps}"]) == 0


@pytest.mark.usefixtures("compiled")
@pytest.mark.more
def test_resume_on_either_side_of_a_boundary(tmp_path, capsys):
  train_run(tmp_path / "whole", 4)
  printed = capsys.readouterr().out
  assert "phase short from step 0" in printed
  assert "phase main from step 2" in printed
  for steps in (1, 2, 4):
    train_run(tmp_path / "parts", steps)
  printed = capsys.readouterr().out
  assert "phase short from step 1" in printed
  assert printed.count("phase main from step 2") == 1
  assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
  assert len(losses(tmp_path / "whole")) == 4
  assert fingerprints(tmp_path / "parts", 4) == fingerprints(tmp_path / "whole", 4)
  saved = json.loads((tmp_path / "whole" / "config.json").read_text())
  assert saved["features"]["encoder_input_tokens"] == [64]
  assert "data_short" in saved["fingerprints"]
  other_phases = FLAGS[1].replace("32", "48")
  flags = [*FLAGS, other_phases, f"--workdir={tmp_path / 'whole'}", "--config.total_steps=5"]
  assert train.main(flags) == 2
  assert "fingerprints.data_short" in capsys.readouterr().err
  for until, size in ((3, 16), (2, 8)):
    changed = {"short": {"until": until, "task": {"length": 32}, "batch_size": size}}
    other_phases = f"--config.phases={json.dumps(changed)}"
    flags = [*FLAGS, other_phases, f"--workdir={tmp_path / 'whole'}", "--config.total_steps=5"]
    assert train.main(flags) == 2
    errors = capsys.readouterr().err
    assert f"found phase short up to step {until} at batch size {size}" in errors, errors
    assert "its steps up to 4 were made with phase short up to step 2 at batch size 16" in errors


def test_phases_draw_one_sequence_of_examples():
  """Batches grow, pause for another corpus and return."""
  changes = {
    "a": {"until": 2, "batch_size": 4},
    "b": {"until": 5, "task": {"length": 16}},
    "c": {"until": 7},
  }
  config = recipes.load(
    "configs/gpt/gpt2_124m.py:debug", [f"phases={json.dumps(changes)}", "batch_size=16"]
  )
  built = build_phases(config, task.build_at)
  rows = []
  for step in (*range(2), *range(5, 9)):
    batch = next(phases.iterate_batches(built, step))
    rows += [row.tobytes() for row in batch["decoder_target_tokens"]]
  last_phase = loader.train_batches(built[-1].task, batch_size=1, seed=config.seed)
  assert rows == [next(last_phase)["decoder_target_tokens"].tobytes() for _ in rows]
  assert len(rows) == 72


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ('{"a": {"until": 0, "task": {}}}', "phases.a.until: found 0"),
    ('{"a": {"until": 3, "task": {}}, "b": {"until": 3, "task": {}}}', "phases.b.until"),
    ('{"a": {"untl": 3, "task": {}}}', "untl.*did you mean 'until'"),
    ('{"a": {"until": 3, "task": {"name": "bart"}}}', "phases.a.task.name"),
    ('{"a": {"until": 3, "batch_size": 0}}', "phases.a.batch_size: found 0"),
    ('{"a": {"until": 3, "batch_size": "8"}}', "phases.a.batch_size: found '8'"),
  ],
)
def test_bad_phases_are_refused(changes, message):
  with pytest.raises(UserError, match=message):
    resolve(recipes.load("configs/bert/base.py:debug", [f"phases={changes}"]))


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (
      ['phases={"a": {"until": 1, "task": {"lenth": 16}}}'],
      "config.phases.a.task.lenth: .*did you mean 'length'",
    ),
    (
      ['phases={"a": {"until": 1, "task": {"length": 32}}}', "task.lenth=16"],
      "config.task.lenth: .*did you mean 'length'",
    ),
    (
      ['phases={"a": {"until": 1, "task": {"length": 2}}}'],
      "config.phases.a.task.length: found 2, expected at least",
    ),
  ],
)
def test_an_argument_is_named_where_it_stands(overrides, message):
  config = recipes.load("configs/bert/base.py:debug", overrides)
  with pytest.raises(UserError, match=message):
    build_phases(config, task.build_at)
