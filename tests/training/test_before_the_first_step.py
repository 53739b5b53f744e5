"""Errors that are known before the first step end a run in one line before it writes anything."""

import json
import pathlib
import re

import pytest

from t5x_like import evaluate, train
from t5x_like.report.charts import bars, charts, curves, spread

REPO = pathlib.Path(__file__).resolve().parents[2]
LOSS = "--config.evals.loss={}"


def refusal_of_train(capsys, tmp_path, *flags, recipe="tests/recipes/nano.py") -> str:
  """Run a train command that must fail before it saves anything; return its last line."""
  capsys.readouterr()
  assert train.main([f"--config={recipe}", f"--workdir={tmp_path / 'run'}", *flags]) == 2
  line = capsys.readouterr().err
  assert line.startswith("error: ")
  assert line.count("\n") == 1
  assert len(line) < 1500
  assert not (tmp_path / "run" / "checkpoints").exists()
  return line


@pytest.mark.parametrize(
  "key, message",
  [
    ("seed=1180591620717411303424", "config.seed: found 1180591620717411303424 .*expected int of "
                                    "at most 64 bits"),
    ("batch_size=1e20", "config.batch_size: found 1e[+]?20 of type float, expected a whole number "
                        "above 0"),
    ("batch_size=1073741824", "config.batch_size: found 1073741824, but such a batch takes .* GiB "
                              "of the .* GiB"),
    ("batch_size=0", "config.batch_size: found 0 .*above 0"),
    ("model.vocab_size=-1", "config.model.vocab_size: found -1 .*above 0"),
    ("model.vocab_size=2000000000", "config.model: its parameters and their optimizer take .* "
                                    "GiB, and there are"),
    ("model.dropout=NaN", "config.model.dropout: found nan of type float, expected one finite"),
    ("checkpoint.minutes=NaN", "config.checkpoint.minutes: found nan of type float, expected one "
                               "finite"),
    ("step_timeout_seconds=NaN", "config.step_timeout_seconds: found nan"),
    ("step_timeout_seconds=1e300", "config.step_timeout_seconds: found 1e[+]300 .*from 1 to 1e9"),
    ("step_timeout_seconds=1e-30", "config.step_timeout_seconds: found 1e-30 .*0, or a number of "
                                   "seconds from 1"),
    ("checkpoint.save_timeout_seconds=0", "config.checkpoint.save_timeout_seconds: found 0"),
    ("checkpoint.keep_last=0", "config.checkpoint.keep_last: found 0"),
    ("task.inputs_length=4611686018427387904", "config.task.inputs_length: found "
                                               "4611686018427387904 .*16,777,216"),
    ('schedule={"name": "linear", "learning_rate": 0.1, "warmup_steps": 60}', "warmup_steps: "
                                                                              "found 60 in a run"),
    ('schedule={"name": "rsqrt", "warmup_steps": 0}', "config.schedule.warmup_steps: found 0 "
                                                      ".*above 0"),
    ('optimizer={"name": "adamw", "b1": 1.0}', "config.optimizer.b1: found 1.0 .*at least 0 and "
                                               "less than 1"),
    ('optimizer={"name": "muon", "weight_decay": -1}', "config.optimizer.weight_decay: found -1.* "
                                                       "at least 0"),
    ("optimizer.clipping_threshold=0", "config.optimizer.clipping_threshold: found 0.* above 0"),
    ("evals.loss.max_examples=0", "config.evals.loss.max_examples: found 0 .*a whole number above "
                                  "0"),
    ("evals.loss.max_examples=-3", "config.evals.loss.max_examples: found -3"),
    ("eval_split=valid", "valid: no token store .*there are train, validation"),
    ("train_split=a\0b", "config.train_split: found .*without NUL"),
    ("train_split=\ud800", "config.train_split: found .*UTF-8"),
    ("total_steps=null", "config.total_steps: found None"),
    ("total_steps={}", "config.total_steps: found"),
    (f"evals.loss={'[' * 3000}", "config.evals.loss: "),
    ("evals={\"a.b\": {}}", "evals"),
    ("phases.half={\"until\": 0}", "config.phases.half.until: found 0"),
  ],
)  # fmt: skip
def test_an_impossible_value_is_refused(key, message, capsys, tmp_path):
  line = refusal_of_train(capsys, tmp_path, LOSS, f"--config.{key}")
  assert re.search(message, line), line


@pytest.mark.parametrize("name", ["$x^{$", "a/b", "..", "a b", "ü", "x" * 80, "-x", "a\nb", "🙂"])
@pytest.mark.parametrize("kind", ["evals", "phases"])
def test_a_name_that_metrics_or_files_cannot_have_is_refused(name, kind, capsys, tmp_path):
  value = {"evals": {"name": "loss"}, "phases": {"until": 3}}[kind]
  line = refusal_of_train(capsys, tmp_path, f"--config.{kind}={json.dumps({name: value})}")
  dotted = f"--config.{kind}: found '{{" in line and "dots" in line
  if "." in name:
    assert dotted
  else:
    assert f"config.{kind}: found the name" in line
    assert "letters, digits" in line


def test_such_a_name_of_a_mixtures_part_is_refused(capsys, tmp_path):
  part = {"name": "span_corruption", "store": "builtin"}
  task = {"name": "mixture", "parts": {"$a$": part, "b": part}}
  assert "config.task.parts: found the name '$a$'" in refusal_of_train(
    capsys, tmp_path, f"--config.task={json.dumps(task)}"
  )


@pytest.mark.parametrize(
  "chosen, message",
  [
    (
      {"metric": "eval/builtin_span_corruption/los"},
      "selection.metric: found .*did you mean 'eval/",
    ),
    ({"metric": "train/loss"}, "selection.metric: found 'train/loss', expected one of eval/"),
    ({"metric": "LABEL/loss"}, "selection.goal: found 'max' for eval/.*/loss, which should fall"),
    ({"metric": "LABEL/accuracy", "patience": 0}, "selection.patience: found 0"),
    ({"metric": "LABEL/accuracy", "goal": "most"}, "selection.goal: found 'most'"),
  ],
)
def test_a_bad_selection_metric_is_refused(chosen, message, capsys, tmp_path):
  chosen = dict(chosen)
  for key, value in chosen.items():
    if isinstance(value, str):
      chosen[key] = value.replace("LABEL", LABEL)
  line = refusal_of_train(capsys, tmp_path, LOSS, f"--config.selection={json.dumps(chosen)}")
  assert re.search(message, line), line


LABEL = "eval/builtin_span_corruption"


def test_a_selection_without_evaluators_is_refused(capsys, tmp_path):
  assert "config.evals has no evaluator" in refusal_of_train(
    capsys, tmp_path, '--config.selection={"metric": "eval/x/loss"}'
  )


def test_two_evaluators_of_one_metric_name_are_refused(capsys, tmp_path, monkeypatch):
  from t5x_like.evals import span_infilling

  monkeypatch.setattr(span_infilling.Evaluator, "metric_names", lambda self: ("loss",))
  flags = (LOSS, "--config.evals.span_infilling={}")
  line = refusal_of_train(capsys, tmp_path, *flags)
  assert "config.evals.span_infilling: eval/" in line
  assert "/loss is written twice, by loss too" in line


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
  capsys.readouterr()
  assert train.main(["--config=tests/recipes/nano.py", f"--workdir={tmp_path / 'run'}"]) == 2
  line = capsys.readouterr().err
  assert f"run/{folder}: cannot be written to: " in line
  assert "--workdir" in line
  assert line.count("\n") == 1


def test_an_evaluation_directory_that_cannot_be_written_to_is_refused(trained, capsys, tmp_path):
  import shutil

  workdir = tmp_path / "copy"
  shutil.copytree(trained, workdir)
  shutil.rmtree(workdir / "evaluations", ignore_errors=True)
  (workdir / "evaluations").write_text("a file")
  assert evaluate.main([f"--workdir={workdir}"]) == 2
  assert "evaluations: cannot be written to" in capsys.readouterr().err


def test_names_with_markup_are_drawn_literally():
  rows = [
    {
      "step": step,
      "train/gradient_norm": 10.0 ** (step % 5),
      "eval/$\\frac$/loss": 2.0,
      "eval/a$x^$b/loss": 1.0,
    }
    for step in range(1, 40)
  ]
  drawn = charts(rows)
  assert "$\\frac$" in drawn[0]["svg"]
  assert "a$x^$b" in drawn[0]["svg"]
  assert "mathdefault" not in drawn[1]["svg"]
  assert ">100<" in drawn[1]["svg"]
  for svg in (
    curves({"$\\b$": rows}, "train/gradient_norm"),
    spread({"$\\b$": [1.0]}, "x"),
    bars({"$\\b$": 1.0}, "x"),
  ):
    assert "$\\b$" in svg


def test_every_evaluator_declares_the_metric_names_that_it_writes(trained):
  from t5x_like import evals, slots

  for name in slots.names(evals):
    assert callable(slots.find("x", name, evals, "Evaluator").metric_names), name
