"""A fine-tuned and exported model generates the same tokens in `transformers`."""

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
  """Train in another process: TensorFlow, which training imports, and torch may not load in one."""
  code, output = run([sys.executable, "-m", "t5x_like.train", *flags], devices=8)
  assert code == 0, output


@pytest.fixture(scope="module", params=RECIPES)
def models_and_inputs(request, tmp_path_factory):
  """Return (exported model, our model, inputs of `transformers`' generate, our batch)."""
  folder = tmp_path_factory.mktemp(request.param)
  recipe = f"--config=tests/recipes/{request.param}.py"
  decoder = request.param == "nano_decoder"
  train(recipe, f"--workdir={folder}/base", *STEPS, "--config.total_steps=2")
  words = "one two three four five six seven eight nine ten eleven twelve".split()
  rows = [{"text": f"{a} {b}", "swapped": f"{b} {a}"} for a in words for b in words]
  (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  task = {
    "name": "text_to_text",
    "source": f"jsonl:train={folder}/rows.jsonl,validation={folder}/rows.jsonl",
    "inputs": "{text}",
    "targets": "{swapped}",
    "inputs_length": 32,
    "targets_length": None if decoder else 32,
    "cache": f"{folder}/cache",
    "architecture": "decoder" if decoder else "encoder_decoder",
  }
  fine_tuning = [
    recipe,
    *STEPS,
    f"--config.task={json.dumps(task)}",
    f"--config.init.workdir={folder}/base",
  ]
  train(*fine_tuning, f"--workdir={folder}/tuned", "--config.total_steps=30")
  assert convert_hf.main([f"--input={folder}/tuned", f"--output={folder}/exported"]) == 0

  tuned = library.load(f"{folder}/tuned", batch_size=ROWS)
  model = params.with_arrays(tuned.model, tuned.run.arrays)
  base_arrays = library.load(f"{folder}/base", batch_size=ROWS).run.arrays
  for name, array in tuned.run.arrays.items():
    if "kernel" in name:
      assert np.abs(array - base_arrays[name]).max() > 0, name
  auto_class = getattr(transformers, RECIPES[request.param])
  hf_model = auto_class.from_pretrained(f"{folder}/exported").eval()
  rows_of_ids = [tuned.vocabulary.encode(text) for text in TEXTS]
  length = max(map(len, rows_of_ids)) + 1
  tokens = np.zeros((ROWS, length), np.int32)
  mask = np.zeros((ROWS, length), np.int32)
  for row, ids in enumerate(rows_of_ids):
    if decoder:  # padded on the left
      tokens[row, length - len(ids) :] = ids
      mask[row, length - len(ids) :] = 1
    else:
      tokens[row, : len(ids) + 1] = [*ids, tuned.vocabulary.eos_id]
      mask[row, : len(ids) + 1] = 1
  inputs = {
    "input_ids": torch.tensor(tokens, dtype=torch.long),
    "attention_mask": torch.tensor(mask, dtype=torch.long),
  }
  if decoder:
    return hf_model, model, inputs, {"decoder_input_tokens": tokens, "decoder_segment_ids": mask}
  return hf_model, model, inputs, {"encoder_input_tokens": tokens}


@pytest.mark.parametrize(
  "options", [SEARCHES[0], SEARCHES[5], SEARCHES[6]], ids=["greedy", "beams", "beams-to-the-end"]
)
def test_greedy_and_beam_search_are_those_of_transformers(models_and_inputs, options):
  tokens = compare(models_and_inputs, (1,), options)
  different_answers = {tuple(row) for row in tokens[:, 0].tolist()}
  assert len(different_answers) > 1
