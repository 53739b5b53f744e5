"""Exports during a run equal those of the tool, survive kills, and are refused where impossible."""

import filecmp
import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
from ml_collections import ConfigDict

from t5x_like import config as config_lib
from t5x_like import train
from t5x_like.errors import UserError
from t5x_like.saved_model.exports import hf
from t5x_like.training import export
from tests.refusals import refuses
from tests.runs import NANO, run
from tools import convert_hf

STEPS = ("--config.total_steps=20", "--config.eval_every=20", "--config.checkpoint.every=10")
EXPORT = '--config.export={"every": 10}'
# A child that is killed within the export of a step, when half of the files are there.
KILLED = """
import os, pathlib, sys
from t5x_like import train
from t5x_like.saved_model.exports import hf
write = hf.write

def write_and_die(model, path, context, dtype):
  write(model, path, context, dtype)
  if path.endswith(sys.argv[1]):
    (pathlib.Path(path) / "config.json").unlink()
    os._exit(9)

hf.write = write_and_die
sys.exit(train.main(sys.argv[2:]))
"""
# Likewise, when twenty bytes of the file are there.
KILLED_GGUF = """
import os, pathlib, sys
from t5x_like import train
from t5x_like.saved_model.exports import gguf
write = gguf.write

def write_and_die(model, path, context, dtype):
  write(model, path, context, dtype)
  if path.endswith(sys.argv[1]):
    os.truncate(path, 20)
    os._exit(9)

gguf.write = write_and_die
sys.exit(train.main(sys.argv[2:]))
"""


def assert_same_files(first, second):
  comparison = filecmp.dircmp(first, second)
  assert not comparison.left_only
  assert not comparison.right_only
  names = comparison.common_files
  assert names
  assert filecmp.cmpfiles(first, second, names, shallow=False) == (names, [], [])


def export_by_tool(workdir, step: int, folder: pathlib.Path) -> pathlib.Path:
  output = folder / f"tool-{step}"
  assert convert_hf.main([f"--input={workdir}", f"--output={output}", f"--step={step}"]) == 0
  return output


@pytest.mark.usefixtures("one_device")
def test_a_run_that_continues_makes_the_exports_that_are_missing(trained, tmp_path, capsys):
  workdir = tmp_path / "run"
  shutil.copytree(trained, workdir)
  (workdir / "exports" / ".unfinished-4").mkdir(parents=True)
  flags = ["--config.total_steps=4", "--config.eval_every=4", "--config.checkpoint.every=2"]
  flags += ["--config.evals.loss={}", '--config.export={"every": 2}']
  assert train.main([f"--config={NANO}", f"--workdir={workdir}", *flags]) == 0
  assert sorted(path.name for path in (workdir / "exports").iterdir()) == ["2", "4"]
  for step in (2, 4):
    expected = export_by_tool(workdir, step, tmp_path)
    assert_same_files(workdir / "exports" / str(step), expected)


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
def test_a_run_exports_while_it_trains_and_after_a_kill(tmp_path):
  workdir = tmp_path / "run"
  flags = [f"--config={NANO}", f"--workdir={workdir}", *STEPS, EXPORT]
  code, output = run([sys.executable, "-c", KILLED, "10", *flags])
  assert code == 9, output
  assert [path.name for path in (workdir / "exports").iterdir()] == [".unfinished-10"]
  assert train.main(flags) == 0
  assert sorted(path.name for path in (workdir / "exports").iterdir()) == ["10", "20"]
  for step in (10, 20):
    expected = export_by_tool(workdir, step, tmp_path)
    assert_same_files(workdir / "exports" / str(step), expected)


@pytest.mark.runs
@pytest.mark.usefixtures("one_device")
def test_adapters_are_exported_to_gguf_while_they_train_and_after_a_kill(tmp_path):
  pytest.importorskip("gguf")
  from tests.interop.test_gguf import write_llama

  source = write_llama(tmp_path / "llama")
  roles = ("user", "assistant")
  turns = [{"role": role, "content": text} for role, text in zip(roles, ("Hello", "Good day"))]
  line = json.dumps({"messages": turns}) + "\n"
  chats = tmp_path / "chats.jsonl"
  chats.write_text(line * 64)
  workdir = tmp_path / "run"
  options = {"every": 2, "format": "gguf", "dtype": "q8_0"}
  flags = [
    "--config=configs/finetune/chat.py:lora",
    f"--workdir={workdir}",
    f"--config.init.workdir={source}",
    f"--config.task.source=jsonl:train={chats},validation={chats}",
    f"--config.task.cache={tmp_path / 'prepared'}",
    "--config.task.template=published",
    "--config.task.length=64",
    "--config.tuning.rank=2",
    "--config.batch_size=4",
    "--config.schedule.learning_rate=0.1",
    "--config.schedule.warmup_steps=0",
    "--config.total_steps=4",
    "--config.checkpoint.every=2",
    "--config.checkpoint.keep_last=2",
    "--config.evals={}",
    f"--config.export={json.dumps(options)}",
  ]
  code, output = run([sys.executable, "-c", KILLED_GGUF, "2.gguf", *flags])
  assert code == 9, output
  assert [path.name for path in (workdir / "exports").iterdir()] == [".unfinished-2.gguf"]
  assert train.main(flags) == 0
  assert sorted(path.name for path in (workdir / "exports").iterdir()) == ["2.gguf", "4.gguf"]
  contents = []
  for step in (2, 4):
    file = tmp_path / f"tool-{step}.gguf"
    output_flags = [f"--output={file}", f"--step={step}", "--dtype=q8_0"]
    assert convert_hf.main([f"--input={workdir}", *output_flags]) == 0
    contents.append(file.read_bytes())
    assert (workdir / "exports" / file.name.removeprefix("tool-")).read_bytes() == contents[-1]
  assert contents[0] != contents[1]


@pytest.mark.usefixtures("one_device")
def test_a_run_at_an_address_refuses_an_export(capsys):
  flags = [f"--config={NANO}", "--workdir=memory://exports/run", *STEPS, EXPORT]
  assert train.main(flags) == 2
  assert "config.export: needs a run of one process in a local workdir" in capsys.readouterr().err


@pytest.mark.runs
def test_a_job_of_two_processes_refuses_an_export_in_one_line(tmp_path):
  launcher = ["launch/local.py", "--processes=2", "--devices_per_process=1", "--grace_seconds=5"]
  flags = [f"--config={NANO}", f"--workdir={tmp_path / 'run'}", *STEPS, EXPORT]
  command = [sys.executable, "-m", "t5x_like.train", *flags]
  code, output = run([sys.executable, *launcher, "--", *command])
  assert code == 2, output
  assert "config.export: needs a run of one process in a local workdir" in output
  assert "Traceback" not in output
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  "options, parts",
  [
    (
      {"every": 15},
      ("config.export.every: found 15", "a multiple of config.checkpoint.every (10)"),
    ),
    ({"format": "onnx"}, ("config.export.format: found 'onnx', expected one of gguf, hf",)),
    ({"dtype": "q8_0"}, ("config.export.dtype: found 'q8_0'", "bfloat16", "for format 'hf'")),
    ({"format": "gguf", "dtype": "bfloat16"}, ("config.export.dtype", "float16, q8_0")),
    ({"directory": "gs://b/x"}, ("config.export.directory: found the address gs://b/x",)),
    ({"steps": [1]}, ("config.export", "steps")),
  ],
  ids=str,
)
def test_options_that_no_run_can_follow_are_refused(options, parts):
  config = ConfigDict({"export": options})
  with refuses(*parts):
    export.check_options(config, 10)


def test_all_saved_steps_are_exported_by_default():
  resolved = export.check_options(ConfigDict({"export": {"format": "hf"}}), 10)
  assert resolved.to_dict() == {"every": 10, "format": "hf", "dtype": None, "directory": None}
  assert config_lib.Recipe().export == {}


@pytest.mark.usefixtures("one_device")
def test_a_model_without_a_form_is_refused_before_training(trained, tmp_path, capsys):
  workdir = tmp_path / "run"
  shutil.copytree(trained, workdir)
  flags = ["--config.total_steps=6", "--config.eval_every=6", "--config.checkpoint.every=2"]
  flags += ['--config.export={"format": "gguf"}', "--config.evals.loss={}"]
  assert train.main([f"--config={NANO}", f"--workdir={workdir}", *flags]) == 2
  assert "the model is no decoder, expected one for a GGUF file" in capsys.readouterr().err
  assert not (workdir / "exports").exists()


def test_an_error_of_the_background_is_raised_by_the_next_wait(trained, tmp_path, monkeypatch):
  config = ConfigDict(json.loads((trained / "config.json").read_text()))
  config.export = export.check_options(
    ConfigDict({"export": {"every": 2, "directory": str(tmp_path)}}), 2
  )
  exports = export.RunExports(config, str(trained))

  def fail(*_):
    raise UserError("the disk is full")

  monkeypatch.setattr(hf, "write", fail)
  exports.write(3, {})  # not due
  exports.write(2, {name: np.zeros(1) for name in ("a",)} | read_weights(trained))
  with refuses("the disk is full"):
    exports.wait()
  exports.wait()
  assert not exports.path(2).exists()


def read_weights(workdir):
  from t5x_like.saved_model import open_saved_model

  return open_saved_model(str(workdir)).restore(2)[1]
