"""Small variants of image families."""

import dataclasses

import jax
from flax import nnx

import t5x_like.models
from t5x_like import slots
from t5x_like.architectures.image_stages import StagedEncoder
from t5x_like.architectures.window_encoder import WindowEncoder
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from tests import topics
from tests.models import families

SMALL = dict(dims=Dims(16, 4, 4, 4, 32, 2), patch=2, resolution=6)
STAGED = dict(embed=8, depths=(2, 1), heads=(2, 4), mlp_ratio=2.0, patch=2, resolution=11)
CHANGES = topics.cases("IMAGE_CHANGES")


def case(family="vit", position=None, **changes) -> families.Case:
  """Return a small form of the first variant of a family."""
  first = next(iter(slots.module(family, t5x_like.models).VARIANTS.values()))
  design = (
    first.design if position is None else dataclasses.replace(first.design, position=position)
  )
  kind = slots.module(family, t5x_like.models).Model
  small = SMALL
  if issubclass(kind, StagedEncoder):
    small = STAGED
    if issubclass(kind, WindowEncoder):
      small = STAGED | {"window": 3}
  small = small | CHANGES.get(family, {})
  changes = small | {"head": {"name": first.head, "labels": 5}} | changes
  variant = dataclasses.replace(first, design=design, **changes)
  return families.Case(
    f"{family}:{position}:{variant.head['name']}:{variant.class_tokens}", family, variant
  )


def deviation(family, variant, name="patches/kernel", **options):
  """Return the initial standard deviation of a parameter of a family."""

  def make(key):
    return family.Model(nnx.Rngs(params=key), variant=variant, **options)

  return params.named_params(jax.eval_shape(make, jax.random.key(0)))[name].stddev
