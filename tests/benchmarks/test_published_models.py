"""`evaluate` fine-tunes each kind of published model on a suite with the model's tokenizer."""

import json
import sys
import types

import pytest

import json_lines
import published_models
from more import later
from t5x_like import evaluate
from tests.benchmarks.small_suites import write_cola

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
HEADLESS = {"bert": {"head": "pooled"}}  # a BertModel, as sentence encoders are published


@pytest.mark.parametrize("kind", ["bert", later("gpt2"), later("t5")])
def test_a_suite_starts_from_a_hugging_face_directory(kind, tmp_path, capsys, monkeypatch):
  """All tensors of the directory are loaded.

  GPT-2's tokenizer has a single special token, which serves as each of them. The model is given by
  its name on the Hub, in whose cache nothing may be written.
  """
  directory = published_models.write(tmp_path / kind, kind, **HEADLESS.get(kind, {}))
  words = ("a lazy", "the quick")
  write_cola(tmp_path, [f"{words[n % 2]} fox {n}" for n in range(16)])
  output = tmp_path / "out"
  files = sorted(directory.rglob("*"))
  is_hub_name = kind == "gpt2"
  name = "someone/small" if is_hub_name else str(directory)
  client = types.SimpleNamespace(snapshot_download=lambda name, allow_patterns: str(directory))
  monkeypatch.setitem(sys.modules, "huggingface_hub", client)
  command = [
    f"--workdir={name}",
    "--suite=glue",
    "--tasks=cola",
    f"--data={tmp_path}",
    f"--output={output}",
  ]
  length = "task.inputs_length" if kind == "t5" else "task.length"
  short_run = ["--config.total_steps=2", "--config.batch_size=8", f"--config.{length}=32"]
  assert evaluate.main([*command, *short_run]) == 0, capsys.readouterr().err
  assert "| cola |" in capsys.readouterr().out
  task = json.loads((output / "results.json").read_text())["tasks"]["cola"]
  assert task["metrics"].keys() >= set(task["counted"])
  run = output / "cola" / "recipe-0"
  report = json.loads((run / "init.json").read_text())
  assert report["loaded"]
  for initialised_name in report["initialised"]:
    assert initialised_name.startswith(("head/", "scores/"))
  assert len(json_lines.read(run / "predictions" / "dev.jsonl")) == 16
  # Prepared data lie in a directory of the user's, but not in the cache of the Hub.
  assert (sorted(directory.rglob("*")) == files) == is_hub_name
  assert (output / "prepared").exists() == is_hub_name
