"""muP has the initial deviations, logit factor, rates and decay of its authors' package.

The project does not install the package: `pip install --no-deps mup`.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import abstract_model, recipes
from t5x_like.nn import params
from t5x_like.training.optimizer import build_optimizer
from t5x_like.training.resolve import resolve
from t5x_like.tunings import TUNINGS

pytestmark = pytest.mark.parity
BASE = 64
WIDTH = 256
HEAD = 16
VOCAB = 384
LENGTH = 32
DEVIATION = 0.02
RATE = 0.01
DECAY = 0.3
BLOCK = "decoder/blocks"
NAMES = {  # the package's model -> ours
  "tokens": "embed/table",
  "positions": "inputs/position/table",
  "norm": f"{BLOCK}/mlp/in_norm/scale",
  "query": f"{BLOCK}/self_attention/layer/query/kernel",
  "out": f"{BLOCK}/self_attention/layer/out/kernel",
  "out_bias": f"{BLOCK}/self_attention/layer/out/bias",
  "wi": f"{BLOCK}/mlp/layer/wi/kernel",
  "wo": f"{BLOCK}/mlp/layer/wo/kernel",
}


def build_torch_parts(width, tied):
  """Build the parts of a Transformer that muP treats differently, as the package's README asks."""
  import mup
  from torch import nn

  class Parts(nn.Module):
    def __init__(self):
      super().__init__()
      self.tokens = nn.Embedding(VOCAB, width)
      self.positions = nn.Embedding(LENGTH, width)
      self.norm = nn.LayerNorm(width)
      self.query = nn.Linear(width, width, bias=False)
      self.out = nn.Linear(width, width)
      self.wi = nn.Linear(width, 4 * width, bias=False)
      self.wo = nn.Linear(4 * width, width, bias=False)
      if tied:
        self.head = mup.MuSharedReadout(self.tokens.weight, bias=False)
      else:
        self.head = mup.MuReadout(width, VOCAB, bias=False)

  return Parts()


@pytest.mark.parametrize("tied", [True, False])
def test_deviations_factors_rates_and_decay_are_the_packages(tied):
  mup = pytest.importorskip("mup", reason="pip install --no-deps mup")
  import torch

  torch.manual_seed(0)
  model = build_torch_parts(WIDTH, tied)
  base_model = build_torch_parts(BASE, tied)
  mup.set_base_shapes(model, base_model, delta=build_torch_parts(2 * BASE, tied))
  for name in ("tokens", "positions", "query", "out", "wi", "wo", "head"):
    mup.init.normal_(getattr(model, name).weight, std=DEVIATION)
  torch_parameters = dict(model.named_parameters())
  parameters = {NAMES["out_bias"]: torch_parameters["out.bias"]}
  for part, name in NAMES.items():
    if part != "out_bias":
      parameters[name] = torch_parameters[f"{part}.weight"]
  if not tied:
    parameters["head/kernel"] = model.head.weight
  deviations = {name: float(x.detach().std()) for name, x in parameters.items() if x.ndim == 2}
  with torch.no_grad():
    hidden = torch.ones(1, WIDTH)
    factor = float((model.head(hidden) / (hidden @ model.head.weight.T)).mean())
    for parameter in parameters.values():
      parameter.fill_(1.0)
  optimizer = mup.MuAdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
  for parameter in model.parameters():
    parameter.grad = torch.full_like(parameter, 0.5)
  optimizer.step()
  torch_updates = {name: float(x.detach().mean()) - 1.0 for name, x in parameters.items()}

  dims = dict(embed=WIDTH, heads=16, kv_heads=16, head_dim=HEAD, mlp=4 * WIDTH, layers=1)
  design = dict(norm="layernorm", biases=["out"], init_stddev=DEVIATION, tied=tied)
  design["position"] = {"name": "learned", "length": LENGTH}
  variant = json.dumps({"dims": dims, "vocab_size": VOCAB, "design": design})
  flags = [f"model.variant={variant}", f"model.vocab_size={VOCAB}", "optimizer.name=adamw"]
  flags += ["tuning.name=mup", f"tuning.base={BASE}"]
  config = resolve(recipes.load("configs/gpt/gpt2_124m.py:debug", flags), "cpu")
  named = params.named_params(abstract_model.build_model(config))
  assert config.model.design.logits_scale == pytest.approx(factor)
  for name, deviation in deviations.items():
    assert named[name].stddev == pytest.approx(deviation, rel=0.02), name
  tune = TUNINGS.make("config.tuning", config.tuning)
  our_optimizer = tune.scale_rates(
    build_optimizer("adamw", lambda step: RATE, weight_decay=DECAY), named
  )
  arrays = {name: jnp.ones((2, 2)) for name in parameters}
  gradients = {name: jnp.full((2, 2), 0.5) for name in parameters}
  updates, _ = our_optimizer.update(gradients, our_optimizer.init(arrays), arrays, step=0)
  for name, update in updates.items():
    expected = torch_updates[name]
    if name.endswith("bias"):  # our AdamW does not decay biases
      expected += RATE * DECAY
    np.testing.assert_allclose(update, expected, rtol=2e-4, err_msg=name)
