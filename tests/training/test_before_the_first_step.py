"""Mistakes that can be known before the first step end a run in one line, before it saves."""

import json
import shutil

import pytest

from t5x_like import evals, evaluate, slots, train
from t5x_like.errors import UserError
from t5x_like.evals import span_infilling
from t5x_like.parallel import distributed
from t5x_like.report.charts import bars, charts, curves, points_by_group

LOSS = "--config.evals.loss={}"
LABEL = "eval/builtin_span_corruption"
PART = {"name": "span_corruption", "store": "builtin"}


def refusal_of_train(capsys, tmp_path, *flags, recipe="tests/recipes/nano.py") -> str:
  """Run a train command that must fail and leave no workdir that it made; return its error."""
  is_new = not (tmp_path / "run").exists()
  capsys.readouterr()
  assert train.main([f"--config={recipe}", f"--workdir={tmp_path / 'run'}", *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: ")
  assert len(line) < 1500
  assert not list((tmp_path / "run").glob("checkpoints/*"))
  assert not (is_new and (tmp_path / "run").exists())
  return line


@pytest.mark.parametrize(
  "override, parts",
  [
    (
      "seed=1180591620717411303424",
      ("config.seed: found 1180591620717411303424", "at most 64 bits"),
    ),
    ("batch_size=1073741824", ("config.batch_size: found 1073741824", "GiB")),
    ("model.vocab_size=2000000000", ("config.model: its parameters and their optimizer", "GiB")),
    ("model.dropout=NaN", ("config.model.dropout: found nan", "finite")),
    ("step_timeout_seconds=1e300", ("config.step_timeout_seconds: found 1e+300", "from 1 to 1e9")),
    (
      "step_timeout_seconds=1e-30",
      ("config.step_timeout_seconds: found 1e-30", "0, or a number of seconds from 1"),
    ),
    (
      "task.inputs_length=4611686018427387904",
      ("config.task.inputs_length: found 4611686018427387904", "16,777,216"),
    ),
    (
      'schedule={"name": "linear", "learning_rate": 0.1, "warmup_steps": 60}',
      ("warmup_steps", "found 60 in a run"),
    ),
    ('optimizer={"name": "adamw", "b1": 1.0}', ("config.optimizer.b1", "found 1.0", "less than 1")),
    ("optimizer.clipping_threshold=0", ("config.optimizer.clipping_threshold: found 0", "above 0")),
    (
      "evals.loss.max_examples=0",
      ("config.evals.loss.max_examples: found 0", "a whole number above 0"),
    ),
    ("eval_split=valid", ("no token store", "there are train, validation")),
  ],
  ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_invalid_values_are_refused(override, parts, capsys, tmp_path):
  line = refusal_of_train(capsys, tmp_path, LOSS, f"--config.{override}")
  for part in parts:
    assert part in line


def test_processes_of_a_job_compare_their_workdirs(monkeypatch, capsys, tmp_path):
  facts = {}

  def record_and_stop(values):
    facts.update(values)
    raise UserError("stopped here")

  monkeypatch.setattr(distributed, "check_agreement", record_and_stop)
  assert "stopped here" in refusal_of_train(capsys, tmp_path)
  assert facts["workdir"] == str(tmp_path / "run")


@pytest.mark.parametrize(
  "key, value",
  [
    *(
      ("evals", {name: {"name": "loss"}}) for name in ("$x^{$", "a/b", "ü", "x" * 80, "-x", "a\nb")
    ),
    ("phases", {"a/b": {"until": 3}}),
    ("task.parts", {"$a$": PART, "b": PART}),
  ],
)
def test_names_that_metrics_or_files_cannot_have_are_refused(key, value, capsys, tmp_path):
  flag = f"--config.{key}={json.dumps(value)}"
  if key == "task.parts":
    flag = f"--config.task={json.dumps({'name': 'mixture', 'parts': value})}"
  line = refusal_of_train(capsys, tmp_path, flag)
  assert f"config.{key}: found the name" in line
  assert "letters, digits" in line


def test_a_key_with_a_dot_is_refused(capsys, tmp_path):
  line = refusal_of_train(capsys, tmp_path, '--config.evals={"..": {"name": "loss"}}')
  assert "--config.evals: found '{" in line
  assert "dots" in line


@pytest.mark.parametrize(
  "selection, parts",
  [
    ({"metric": f"{LABEL}/los"}, ("selection.metric", f"did you mean '{LABEL}/loss'")),
    ({"metric": "train/loss"}, ("selection.metric", "found 'train/loss'", "one of eval/")),
    ({"metric": f"{LABEL}/loss"}, ("selection.goal", "found 'max'", "lower values are better")),
    ({"metric": f"{LABEL}/accuracy", "patience": 0}, ("selection.patience", "found 0")),
    ({"metric": f"{LABEL}/accuracy", "goal": "most"}, ("selection.goal", "found 'most'")),
  ],
)
def test_a_bad_selection_metric_is_refused(selection, parts, capsys, tmp_path):
  line = refusal_of_train(capsys, tmp_path, LOSS, f"--config.selection={json.dumps(selection)}")
  for part in parts:
    assert part in line


def test_a_selection_without_evaluators_is_refused(capsys, tmp_path):
  line = refusal_of_train(capsys, tmp_path, '--config.selection={"metric": "eval/x/loss"}')
  assert "config.evals has no evaluator" in line


def test_two_evaluators_with_the_same_metric_name_are_refused(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(span_infilling.Evaluator, "metric_names", lambda self: ("loss",))
  line = refusal_of_train(capsys, tmp_path, LOSS, "--config.evals.span_infilling={}")
  assert "config.evals.span_infilling: eval/" in line
  assert "/loss is also written by loss" in line


@pytest.mark.parametrize(
  "text", ["import sys; sys.exit(0)", "def get_config(): raise SystemExit(0)"]
)
def test_a_recipe_that_exits_is_refused(text, capsys, tmp_path):
  (tmp_path / "recipe.py").write_text(text)
  line = refusal_of_train(capsys, tmp_path, recipe=str(tmp_path / "recipe.py"))
  assert "the recipe failed: SystemExit: 0" in line


@pytest.mark.parametrize(
  "flag, message",
  [
    (
      "--from_step=-1",
      "argument --from_step: found '-1', expected a whole number, at least 0 and below 2",
    ),
    (f"--from_step={10**25}", "argument --from_step: found '1000"),
    ("--profile=70:80", "--profile=70:80: the run ends at step 60"),
    ("--profile=5:3", "FIRST not after LAST"),
    ("--profile=-1:3", "two step numbers"),
    (f"--profile=0:{10**20}", "two step numbers"),
  ],
)
def test_steps_outside_of_the_run_are_refused(flag, message, capsys, tmp_path):
  assert message in refusal_of_train(capsys, tmp_path, flag)


@pytest.mark.parametrize(
  "folder", ["samples", "profile", "pictures", "best", "checkpoints", "logs"]
)
def test_a_workdir_that_cannot_be_written_to_is_refused(folder, capsys, tmp_path):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / folder).write_text("a file")
  line = refusal_of_train(capsys, tmp_path)
  assert f"run/{folder}: cannot be written to: " in line
  assert "--workdir" in line


def test_an_evaluation_directory_that_cannot_be_written_to_is_refused(trained, capsys, tmp_path):
  skip = shutil.ignore_patterns("evaluations")
  workdir = shutil.copytree(trained, tmp_path / "copy", ignore=skip)
  (workdir / "evaluations").write_text("a file")
  assert evaluate.main([f"--workdir={workdir}"]) == 2
  assert "evaluations: cannot be written to" in capsys.readouterr().err


def test_charts_show_names_with_markup_literally():
  rows = []
  for step in range(1, 40):
    rows.append(
      {
        "step": step,
        "train/gradient_norm": 10.0 ** (step % 5),
        "eval/$\\frac$/loss": 2.0,
        "eval/a$x^$b/loss": 1.0,
      }
    )
  losses, norms = charts(rows)[:2]
  assert "$\\frac$" in losses["svg"]
  assert "a$x^$b" in losses["svg"]
  assert "mathdefault" not in norms["svg"]
  assert ">100<" in norms["svg"]
  assert "$\\b$" in curves({"$\\b$": rows}, "train/gradient_norm")
  assert "$\\b$" in points_by_group({"$\\b$": [1.0]}, "x")
  assert "$\\b$" in bars({"$\\b$": 1.0}, "x")


@pytest.mark.parametrize("name", slots.names(evals))
def test_every_evaluator_declares_the_metric_names_that_it_writes(name):
  assert callable(slots.find("x", name, evals, "Evaluator").metric_names)
