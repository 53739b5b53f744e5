"""A suite learned from a Hugging Face directory, through the door: every kind of model, with the
tokenizer it has."""

import json
import sys
import types

import pytest

import published_models
from more import later
from t5x_like import evaluate

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
HEADLESS = {"bert": {"head": "pooled"}}  # a BertModel, as sentence encoders are published


@pytest.mark.parametrize("kind", ["bert", later("gpt2"), later("t5")])
def test_a_suite_starts_from_a_hugging_face_directory(kind, tmp_path, capsys, monkeypatch):
  """All of its tensors are loaded. GPT-2's tokenizer has a single special token, which stands in
  all their places; it is given by its name on the Hub, in whose cache nothing is written."""
  directory = published_models.write(tmp_path / kind, kind, **HEADLESS.get(kind, {}))
  (tmp_path / "CoLA").mkdir()
  rows = "".join(f"x\t{n % 2}\t\t{'the quick' if n % 2 else 'a lazy'} fox {n}\n" for n in range(16))
  for split in ("train", "dev"):
    (tmp_path / "CoLA" / f"{split}.tsv").write_text(rows)
  output = tmp_path / "out"
  files = sorted(directory.rglob("*"))
  name = "someone/small" if kind == "gpt2" else str(directory)
  client = types.SimpleNamespace(snapshot_download=lambda name, allow_patterns: str(directory))
  monkeypatch.setitem(sys.modules, "huggingface_hub", client)
  command = [
    f"--workdir={name}",
    "--suite=glue",
    "--tasks=cola",
    f"--data={tmp_path}",
    f"--output={output}",
  ]
  short = [
    f"--config.{value}"
    for value in ("total_steps=2", "batch_size=8", "task.length=32", "task.inputs_length=32")
  ]
  short = [word for word in short if ("inputs" in word) == (kind == "t5") or "length" not in word]
  assert evaluate.main([*command, *short]) == 0, capsys.readouterr().err
  found = json.loads((output / "results.json").read_text())
  assert "| cola |" in capsys.readouterr().out and found["tasks"]["cola"]["metrics"].keys() >= set(
    found["tasks"]["cola"]["counted"]
  )
  run = output / "cola" / "recipe-0"
  started = json.loads((run / "init.json").read_text())
  assert started["loaded"] and all(
    name.startswith(("head/", "scores/")) for name in started["initialised"]
  )
  predictions = [
    json.loads(line) for line in (run / "predictions" / "dev.jsonl").read_text().splitlines()
  ]
  assert len(predictions) == 16
  assert (sorted(directory.rglob("*")) == files) == (kind == "gpt2") and (
    output / "prepared"
  ).exists() == (kind == "gpt2")
