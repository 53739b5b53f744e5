"""Models fine-tuned here and exported generate in `transformers` what they generate here (`make
parity`)."""

import json
import sys

import numpy as np
import pytest
import torch
import transformers

import tests.recipes.nano
import tests.recipes.nano_decoder  # noqa: F401 -- the variants that the runs are of
from parity.test_live_generate import ROWS, SEARCHES, compare
from t5x_like.library import model as library
from t5x_like.nn import params
from tests.runs import run
from tools import convert_hf

pytestmark = pytest.mark.parity

RECIPES = {"nano": "AutoModelForSeq2SeqLM", "nano_decoder": "AutoModelForCausalLM"}
STEPS = (
  "--config.checkpoint.every=30",
  '--config.schedule={"name": "constant", "learning_rate": 0.01}',
)
TEXTS = ["one two", "seven eight nine", "three", "eleven four two one"]


def train(*flags: str) -> None:
  """A process of its own: TensorFlow, which training imports, and torch do not always load
  together."""
  code, said = run([sys.executable, "-m", "t5x_like.train", *flags], devices=8)
  assert code == 0, said


@pytest.fixture(scope="module", params=RECIPES)
def both(request, tmp_path_factory):
  """(their model of what was exported, ours of the checkpoint, the inputs of generate, our
  batch)."""
  folder = tmp_path_factory.mktemp(request.param)
  recipe = f"--config=tests/recipes/{request.param}.py"
  decoder = request.param == "nano_decoder"
  train(recipe, f"--workdir={folder}/base", *STEPS, "--config.total_steps=2")
  words = "one two three four five six seven eight nine ten eleven twelve".split()
  rows = [{"text": f"{a} {b}", "turned": f"{b} {a}"} for a in words for b in words]
  (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  task = {
    "name": "text_to_text",
    "source": f"jsonl:train={folder}/rows.jsonl,validation={folder}/rows.jsonl",
    "inputs": "{text}",
    "targets": "{turned}",
    "inputs_length": 32,
    "targets_length": None if decoder else 32,
    "cache": f"{folder}/cache",
    "architecture": "decoder" if decoder else "encoder_decoder",
  }
  tuned = [
    recipe,
    *STEPS,
    f"--config.task={json.dumps(task)}",
    f"--config.init.workdir={folder}/base",
  ]
  train(*tuned, f"--workdir={folder}/tuned", "--config.total_steps=30")
  assert convert_hf.main([f"--input={folder}/tuned", f"--output={folder}/exported"]) == 0

  opened = library.load(f"{folder}/tuned", batch_size=ROWS)
  ours = params.with_arrays(opened.model, opened.run.arrays)
  before = library.load(f"{folder}/base", batch_size=ROWS).run.arrays
  assert all(
    np.abs(x - before[name]).max() > 0 for name, x in opened.run.arrays.items() if "kernel" in name
  )
  theirs = (
    getattr(transformers, RECIPES[request.param]).from_pretrained(f"{folder}/exported").eval()
  )
  ids = [opened.vocabulary.encode(text) for text in TEXTS]
  length = max(map(len, ids)) + 1
  tokens, mask = np.zeros((2, ROWS, length), np.int32)
  for row, one in enumerate(ids):
    one = one if decoder else [*one, opened.vocabulary.eos_id]
    at = slice(length - len(one), length) if decoder else slice(0, len(one))
    tokens[row, at], mask[row, at] = one, 1
  inputs = {
    name: torch.tensor(x, dtype=torch.long)
    for name, x in (("input_ids", tokens), ("attention_mask", mask))
  }
  if decoder:
    return theirs, ours, inputs, {"decoder_input_tokens": tokens, "decoder_segment_ids": mask}
  return theirs, ours, inputs, {"encoder_input_tokens": tokens}


@pytest.mark.parametrize(
  "options", [SEARCHES[0], SEARCHES[5], SEARCHES[6]], ids=["greedy", "beams", "beams-to-the-end"]
)
def test_greedy_and_beam_search_are_those_of_transformers(both, options):
  found = compare(both, (1,), options)
  # an answer to each text, not one for all
  assert len({tuple(row) for row in found[:, 0].tolist()}) > 1
