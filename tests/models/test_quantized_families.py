"""Every family with products of 8-bit factors."""

import dataclasses

import families
import jax
import pytest
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.feed_forward.moe import Moe
from t5x_like.nn.linear import Linear, matmul


def multiplied(model) -> dict[str, bool]:
  """Whether each part of a model with a product of its own has an 8-bit one."""
  found = [(path, part) for path, part in nnx.iter_modules(model) if isinstance(part, Linear | Moe)]
  return {"/".join(map(str, path)): part.multiply not in (matmul, Moe.multiply) for path, part in found}


SAMPLE = ("t5", "llama", "bert", "switch")


@pytest.mark.parametrize(
  "family", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.more) for name in families.families()]
)
def test_every_family_has_them_with_the_same_parameters(family):
  case = next(c for c in families.representatives() if c.family == family)
  design = dataclasses.replace(case.variant.design, quantization="fp8")
  if design.experts:
    design = dataclasses.replace(design, experts=dataclasses.replace(design.experts, dispatch="capacity"))
  plain, made = (
    jax.eval_shape(lambda v=v: case.model_class(nnx.Rngs(params=0), variant=v))
    for v in (case.variant, dataclasses.replace(case.variant, design=design))
  )
  assert {n: p.shape for n, p in params.named_params(made).items()} == {
    n: p.shape for n, p in params.named_params(plain).items()
  }
  found = multiplied(made)
  assert any(found.values()) and not any(multiplied(plain).values())
  assert [name for name, eight in found.items() if eight != ("blocks" in name)] == []
