"""The suite of docstrings compares a checkpoint with the same model trained from scratch."""

import json

import pytest

from t5x_like import evaluate, train
from t5x_like.benchmarks import comparison, suite
from t5x_like.corpora.sources._docstrings import builder
from t5x_like.errors import UserError

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.more
def test_a_model_is_compared_with_itself_from_scratch(tmp_path, capsys, monkeypatch):
  """The comparison is computed from the saved predictions of both."""
  monkeypatch.setattr(builder.Docstrings.BUILDER_CONFIGS[0], "packages", ("flax",))
  run = tmp_path / "run"
  short_run = (
    "--config.total_steps=2",
    "--config.eval_every=2",
    "--config.checkpoint.every=2",
    "--config.batch_size=8",
  )
  recipe = "--config=tests/recipes/nano.py"
  assert train.main([recipe, f"--workdir={run}", *short_run, "--config.evals={}"]) == 0
  lengths = ("--config.task.inputs_length=32", "--config.task.targets_length=8")
  limits = [f"--config.evals.{split}.max_examples=24" for split in ("dev", "test")]
  command = [f"--workdir={run}", "--suite=docstrings", "--tasks=name", f"--data_dir={tmp_path}"]
  command += [*short_run, *lengths, *limits, f"--config.task.cache={tmp_path}/prepared"]
  assert evaluate.main([*command, "--from_scratch"]) == 0, capsys.readouterr().err
  scratch = run / "suites" / "docstrings" / "from_scratch"
  assert evaluate.main([*command, f"--compare={scratch}"]) == 0, capsys.readouterr().err
  out = capsys.readouterr().out
  assert "| task | metric | from scratch | pretrained | difference (95 % interval) |" in out
  results = json.loads((run / "suites" / "docstrings" / "results.json").read_text())
  rows = results["compared"]["rows"]
  assert [(row["task"], row["metric"]) for row in rows] == [("name", "f1"), ("name", "exact_match")]
  first = comparison.read_results(str(scratch))
  for row in rows:
    name = f"test/{row['metric']}"
    assert row["first"] == first["tasks"][row["task"]]["metrics"][name]
    assert row["second"] == results["tasks"][row["task"]]["metrics"][name]
    assert row["difference"] == row["second"] - row["first"]
    assert row["low"] <= row["difference"] <= row["high"]
  assert "Fine-tuned: docstrings" in (run / "report.html").read_text()
  for row in comparison.compare_results(first, first)["rows"]:
    assert row["difference"] == row["low"] == row["high"] == 0
    assert row["p_value"] == 1
  assert evaluate.main([*command, f"--compare={tmp_path}/nowhere"]) == 2
  assert "expected the directory of a finished suite" in capsys.readouterr().err.splitlines()[-1]


def test_saved_results_that_are_no_objects_are_refused(tmp_path):
  for name in ("results.json", "result.json"):
    (tmp_path / name).write_text("[1]")
  with pytest.raises(UserError, match="results.json: found a JSON array, expected an object"):
    comparison.read_results(str(tmp_path))
  with pytest.raises(UserError, match="result.json: found a JSON array, expected an object"):
    suite._read_file(tmp_path / "result.json", {})
