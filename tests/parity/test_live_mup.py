"""muP against the authors' package: initial deviations, factors of logits, rates and decay (`make
parity`).

The package is not among this project's: `pip install --no-deps mup`.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import abstract_model, recipes, slots, tunings
from t5x_like.nn import params
from t5x_like.training.optimizer import adamw
from t5x_like.training.resolve import resolve

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


def theirs(width, tied):
  """Build the parts of a Transformer that muP tells apart, as the package's README asks."""
  import mup
  from torch import nn

  class Parts(nn.Module):
    def __init__(self):
      super().__init__()
      self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(LENGTH, width)
      self.norm, self.query = nn.LayerNorm(width), nn.Linear(width, width, bias=False)
      self.out, self.wi = nn.Linear(width, width), nn.Linear(width, 4 * width, bias=False)
      self.wo = nn.Linear(4 * width, width, bias=False)
      self.head = (
        mup.MuSharedReadout(self.tokens.weight, bias=False)
        if tied
        else mup.MuReadout(width, VOCAB, bias=False)
      )

  return Parts()


@pytest.mark.parametrize("tied", [True, False])
def test_deviations_factors_rates_and_decay_are_the_packages(tied):
  mup = pytest.importorskip("mup", reason="pip install --no-deps mup")
  import torch

  torch.manual_seed(0)
  model = theirs(WIDTH, tied)
  mup.set_base_shapes(model, theirs(BASE, tied), delta=theirs(2 * BASE, tied))
  for one in (
    model.tokens,
    model.positions,
    model.query,
    model.out,
    model.wi,
    model.wo,
    model.head,
  ):
    mup.init.normal_(one.weight, std=DEVIATION)
  own = dict(model.named_parameters())
  found = {f"{name}.weight": own.get(f"{name}.weight") for name in NAMES if name != "out_bias"}
  found = {NAMES[name.removesuffix(".weight")]: x for name, x in found.items()} | {
    NAMES["out_bias"]: own["out.bias"]
  }
  if not tied:
    found["head/kernel"] = model.head.weight
  deviations = {name: float(x.detach().std()) for name, x in found.items() if x.ndim == 2}
  with torch.no_grad():
    hidden = torch.ones(1, WIDTH)
    factor = float((model.head(hidden) / (hidden @ model.head.weight.T)).mean())
    for x in found.values():
      x.fill_(1.0)
  optimizer = mup.MuAdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
  for x in model.parameters():
    x.grad = torch.full_like(x, 0.5)
  optimizer.step()
  moved = {name: float(x.detach().mean()) - 1.0 for name, x in found.items()}

  dims = dict(embed=WIDTH, heads=16, kv_heads=16, head_dim=HEAD, mlp=4 * WIDTH, layers=1)
  design = dict(norm="layernorm", biases=["out"], init_stddev=DEVIATION, tied=tied)
  design["position"] = {"name": "learned", "length": LENGTH}
  variant = json.dumps({"dims": dims, "vocab_size": VOCAB, "design": design})
  flags = [f"model.variant={variant}", f"model.vocab_size={VOCAB}", "optimizer.name=adamw"]
  flags += ["tuning.name=mup", f"tuning.base={BASE}"]
  config = resolve(recipes.load("configs/gpt/gpt2_124m.py:debug", flags), "cpu")
  named = params.named_params(abstract_model.build_model(config)[0])
  assert config.model.design.logits_scale == pytest.approx(factor)
  for name, deviation in deviations.items():
    assert named[name].stddev == pytest.approx(deviation, rel=0.02), name
  tune = slots.make("config.tuning", config.tuning, tunings, "make")
  ours = tune.scale_rates(adamw(lambda step: RATE, weight_decay=DECAY), named)
  arrays = {name: jnp.ones((2, 2)) for name in found}
  updates, _ = ours.update(
    {n: jnp.full((2, 2), 0.5) for n in found}, ours.init(arrays), arrays, step=0
  )
  for name, update in updates.items():
    undecayed = RATE * DECAY * name.endswith("bias")  # ours leaves biases out
    np.testing.assert_allclose(update, moved[name] + undecayed, rtol=2e-4, err_msg=name)
