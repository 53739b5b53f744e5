"""The suite that needs no data, from fresh weights and from a checkpoint, and what the two compare
to."""

import json

import pytest

from t5x_like import evaluate, train
from t5x_like.benchmarks import comparison
from t5x_like.corpora.sources._docstrings import builder

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.more
def test_a_model_is_compared_with_itself_from_scratch(tmp_path, capsys, monkeypatch):
  """Two steps of a task of a small corpus; the comparison is that of the saved predictions."""
  monkeypatch.setattr(builder.Docstrings.BUILDER_CONFIGS[0], "packages", ("flax",))
  run = tmp_path / "run"
  short = (
    "--config.total_steps=2",
    "--config.eval_every=2",
    "--config.checkpoint.every=2",
    "--config.batch_size=8",
  )
  assert (
    train.main(["--config=tests/recipes/nano.py", f"--workdir={run}", *short, "--config.evals={}"])
    == 0
  )
  lengths = ("--config.task.inputs_length=32", "--config.task.targets_length=8")
  few = [f"--config.evals.{split}.max_examples=24" for split in ("dev", "test")]
  command = [f"--workdir={run}", "--suite=docstrings", "--tasks=name", f"--data_dir={tmp_path}"]
  command += [*short, *lengths, *few, f"--config.task.cache={tmp_path}/prepared"]
  assert evaluate.main([*command, "--from_scratch"]) == 0, capsys.readouterr().err
  scratch = run / "suites" / "docstrings" / "from_scratch"
  assert evaluate.main([*command, f"--compare={scratch}"]) == 0, capsys.readouterr().err
  out = capsys.readouterr().out
  assert "| task | metric | from scratch | pretrained | difference (95 % interval) |" in out
  found = json.loads((run / "suites" / "docstrings" / "results.json").read_text())
  rows = found["compared"]["rows"]
  assert [(row["task"], row["metric"]) for row in rows] == [("name", "f1"), ("name", "exact_match")]
  first = comparison.read_results(str(scratch))
  for row in rows:
    name = f"test/{row['metric']}"
    assert row["first"] == first["tasks"][row["task"]]["metrics"][name]
    assert row["second"] == found["tasks"][row["task"]]["metrics"][name]
    assert (
      row["low"] <= row["difference"] <= row["high"]
      and row["difference"] == row["second"] - row["first"]
    )
  assert "Fine-tuned: docstrings" in (run / "report.html").read_text()
  same = comparison.compare_results(first, first)["rows"]
  assert all(
    row["difference"] == row["low"] == row["high"] == 0 and row["p_value"] == 1 for row in same
  )
  assert evaluate.main([*command, f"--compare={tmp_path}/nowhere"]) == 2
  assert "expected the directory of a finished suite" in capsys.readouterr().err.splitlines()[-1]
