"""DPO has PyTorch's loss, margins and gradients of every tensor on the same model."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from parity import cases, reference
from t5x_like.contrib.feedback.objectives.dpo import Objective
from t5x_like.interop import hf
from t5x_like.nn import params

pytestmark = pytest.mark.parity
B = 4
T = 11
BETA = 0.2
SMOOTHING = 0.1


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_loss_and_gradients_are_those_of_pytorch(name, tmp_path):
  import torch

  case = cases.CASES[name]
  torch_reference = reference.make(case, tmp_path / "reference")
  model = hf.load(str(tmp_path / "reference"))
  arrays = {name: array * 1.2 for name, array in params.arrays(model).items()}
  hf.save(params.with_arrays(model, arrays), str(tmp_path / "policy"))
  policy = reference.read(case, tmp_path / "policy")

  generator = np.random.default_rng(0)
  tokens = generator.integers(3, cases.VOCAB, (B, 2, T + 1))
  first = generator.integers(1, 5, (B, 2, 1))
  last = generator.integers(6, T, (B, 2, 1))
  weights = ((np.arange(T) >= first) & (np.arange(T) < last)).astype(np.float32)
  batch = {
    "decoder_input_tokens": tokens[..., :-1].astype(np.int32),
    "decoder_target_tokens": tokens[..., 1:].astype(np.int32),
    "decoder_segment_ids": (np.arange(T) < last).astype(np.int32),
    "decoder_loss_weights": weights,
  }

  def log_probabilities(torch_model):
    rows = torch.tensor(tokens).reshape(B * 2, T + 1)
    log_p_vocab = torch_model(input_ids=rows[:, :-1]).logits.log_softmax(-1)
    log_p = log_p_vocab.gather(-1, rows[:, 1:, None])[..., 0]
    return (log_p * torch.tensor(weights).reshape(B * 2, T)).sum(1).reshape(B, 2)

  with torch.no_grad():
    base = log_probabilities(torch_reference)
  ratio = log_probabilities(policy) - base
  margin = BETA * (ratio[:, 0] - ratio[:, 1])
  log_sigmoid = torch.nn.functional.logsigmoid
  loss = -((1 - SMOOTHING) * log_sigmoid(margin) + SMOOTHING * log_sigmoid(-margin)).sum()
  loss.backward()

  @jax.jit
  def jax_loss(arrays):
    jax_policy = params.with_arrays(model, arrays)
    jax_policy.reference = model
    return Objective(beta=BETA, label_smoothing=SMOOTHING)(jax_policy, batch)

  (loss_sum, sums), gradients = jax.value_and_grad(jax_loss, has_aux=True)(arrays)
  np.testing.assert_allclose(loss_sum, loss.item(), rtol=1e-5)
  np.testing.assert_allclose(sums["margin"], margin.sum().item(), rtol=1e-5)
  hf.save(params.with_arrays(model, gradients), str(tmp_path / "gradients"))
  # Saved as a model, our gradients have PyTorch's names and layout.
  exported_gradients = load_file(tmp_path / "gradients" / "model.safetensors")
  for tensor, parameter in policy.named_parameters():
    gradient = parameter.grad.numpy()
    largest = np.abs(gradient).max()
    distance = np.abs(exported_gradients[tensor] - gradient).max()
    print(f"{name} {tensor}: {distance:.1e} of {largest:.2g}")
    assert distance <= 1e-5 * max(1.0, largest), tensor
