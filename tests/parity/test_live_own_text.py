"""A model trained with the tutorial's recipe has the same logits in `transformers`."""

import sys

import numpy as np
import pytest
import torch
import transformers

from t5x_like.library import model as library
from t5x_like.nn import params
from tests.runs import run
from tools import convert_hf

pytestmark = pytest.mark.parity
TEXT = "The king is not so sure of it.\n\nHe went\n"
SHORT = (
  "total_steps=2",
  "schedule.warmup_steps=1",
  "eval_every=2",
  "checkpoint.every=2",
  "evals={}",
  "batch_size=8",
  "task.store=builtin",
)


def test_the_tutorials_model_is_exported_with_its_logits(tmp_path):
  recipe = "--config=configs/gpt/my_text.py"
  workdir = tmp_path / "text"
  exported = tmp_path / "exported"
  overrides = [f"--config.{value}" for value in SHORT]
  command = [sys.executable, "-m", "t5x_like.train", recipe, f"--workdir={workdir}", *overrides]
  code, output = run(command, devices=8)  # TensorFlow and torch may not load in one process
  assert code == 0, output
  assert convert_hf.main([f"--input={workdir}", f"--output={exported}"]) == 0
  saved = library.load(str(workdir))
  model = params.with_arrays(saved.model, saved.run.arrays)
  ids = np.array([saved.vocabulary.encode(TEXT)])
  logits = np.asarray(model({"decoder_input_tokens": ids})["logits"])
  hf_model = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
  with torch.no_grad():
    np.testing.assert_allclose(logits, hf_model(torch.tensor(ids)).logits.numpy(), atol=1e-4)
