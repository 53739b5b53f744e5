"""DPO against PyTorch on the same model: loss, margins and the gradient of every tensor (`make
parity`)."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from parity import cases, reference
from t5x_like.interop import hf
from t5x_like.nn import params
from t5x_like.objectives.dpo import Objective

pytestmark = pytest.mark.parity
B = 4
T = 11
BETA = 0.2
SMOOTHING = 0.1


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_loss_and_gradients_are_those_of_pytorch(name, tmp_path):
  import torch

  case = cases.CASES[name]
  theirs = reference.make(case, tmp_path / "theirs")
  model = hf.load(str(tmp_path / "theirs"))
  arrays = {n: x * 1.2 for n, x in params.arrays(model).items()}
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

  def log_probabilities(one):
    rows = torch.tensor(tokens).reshape(B * 2, T + 1)
    log_p = one(input_ids=rows[:, :-1]).logits.log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
    return (log_p * torch.tensor(weights).reshape(B * 2, T)).sum(1).reshape(B, 2)

  policy.eval(), theirs.eval()
  with torch.no_grad():
    base = log_probabilities(theirs)
  ratio = log_probabilities(policy) - base
  margin = BETA * (ratio[:, 0] - ratio[:, 1])
  log_sigmoid = torch.nn.functional.logsigmoid
  loss = -((1 - SMOOTHING) * log_sigmoid(margin) + SMOOTHING * log_sigmoid(-margin)).sum()
  loss.backward()

  @jax.jit
  def ours(arrays):
    changed = params.with_arrays(model, arrays)
    changed.reference = model
    return Objective(beta=BETA, label_smoothing=SMOOTHING)(changed, batch)

  (found, sums), gradients = jax.value_and_grad(ours, has_aux=True)(arrays)
  np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
  np.testing.assert_allclose(sums["margin"], margin.sum().item(), rtol=1e-5)
  hf.save(params.with_arrays(model, gradients), str(tmp_path / "gradients"))
  read = load_file(tmp_path / "gradients" / "model.safetensors")
  expected = {n: p.grad.numpy() for n, p in policy.named_parameters()}
  assert expected.keys() <= read.keys()
  for n, g in expected.items():
    distance = np.abs(read[n] - g).max()
    print(f"{name} {n}: {distance:.1e} of {np.abs(g).max():.2g}")
    assert distance <= 1e-5 * max(1.0, np.abs(g).max()), n
