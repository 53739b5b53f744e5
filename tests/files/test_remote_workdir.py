"""A run in a bucket is evaluated and asked like one on a disk, where it is."""

import json

import pytest

from t5x_like import evaluate, predict, train
from t5x_like.files import remote
from tests import object_server

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
pytest.importorskip("gcsfs")
RECIPE = "--config=tests/recipes/nano_decoder.py"


@pytest.fixture
def server(tmp_path, monkeypatch):
  server = object_server.Server(tmp_path / "bucket")
  server.root.mkdir()
  with server.running():
    remote.reset()  # of another test's server
    for name, value in object_server.environment(server).items():
      monkeypatch.setenv(name, value)
    yield server


def test_evaluation_and_prediction_equal_those_of_a_local_workdir(server, tmp_path, capsys):
  (tmp_path / "lines.txt").write_text("def add(a, b):\nReturns the sum\n")
  outputs = {}
  for address, folder in (
    ("gs://bucket/run", server.root / "run"),
    (str(tmp_path / "run"), tmp_path / "run"),
  ):
    flags = ("--config.total_steps=2", "--config.checkpoint.every=2")
    assert train.main([RECIPE, f"--workdir={address}", *flags]) == 0
    server.unavailable = 0.05
    assert evaluate.main([f"--workdir={address}", "--config.evals.loss.max_examples=16"]) == 0
    output = tmp_path / "out.jsonl"
    flags = ("--max_new_tokens=4", f"--input={tmp_path}/lines.txt", f"--output={output}")
    assert predict.main([f"--workdir={address}", *flags]) == 0
    tables = {file.name: json.loads(file.read_text()) for file in folder.glob("evaluations/*.json")}
    outputs[address] = tables, output.read_text()
    assert tables
    assert len(output.read_text().splitlines()) == 2
    server.unavailable = 0.0
  local_output, remote_output = outputs.values()
  assert local_output == remote_output
  assert evaluate.main(["--workdir=gs://bucket/none"]) == 2
  assert "--workdir: gs://bucket/none holds no run" in capsys.readouterr().err
  assert evaluate.main(["--workdir=gs://bucket/run", "--suite=glue"]) == 2
  assert "--output=DIR" in capsys.readouterr().err
