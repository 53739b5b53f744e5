"""Greedy tokens of published models with unusual heads and norms equal the forward pass."""

import numpy as np
import pytest

from interop.test_golden import write
from t5x_like.decoding import generate
from t5x_like.interop import hf


@pytest.mark.parametrize("name", ["opt-350m", "cohere-plus"])
def test_greedy_tokens_are_the_likeliest_of_the_forward_pass(name, tmp_path):
  write(name, tmp_path / "model")
  model = hf.load(str(tmp_path / "model"))
  prompt = np.array([[5, 9, 17, 4]], np.int32)
  tokens = generate.greedy(model, {"decoder_input_tokens": prompt}, max_length=5, eos=(0,))
  prompt_and_tokens = np.concatenate([prompt, tokens], axis=1)
  likeliest = np.asarray(model({"decoder_input_tokens": prompt_and_tokens})["logits"]).argmax(-1)
  assert tokens.shape == (1, 5)
  np.testing.assert_array_equal(likeliest[:, 3:-1], tokens)
