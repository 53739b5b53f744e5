"""With `dtype=bfloat16`, blocks multiply, save and pass on no array wider than bfloat16."""

import collections
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from t5x_like import recipes
from t5x_like.nn import params
from t5x_like.planning import steps
from t5x_like.training.build import build_parts
from t5x_like.training.jaxpr_flops import scan_sizes

# Functions that compute in float32 by design: small tables, a router's logits, a loss of pairs,
# the matching of boxes.
FLOAT32_FUNCTIONS = (
  "RelativeBias.bias",
  "RelativeBias.by_distance",
  "float32_product",
  "inner_products",
  "assign_queries",
)
ONE_OF_EACH = [
  "configs/bert/base.py",
  "configs/bigbird/base.py",
  "configs/clip/base.py",
  "configs/coatnet/base.py",
  "configs/detr/base.py",
  "configs/electra/small.py",
  "configs/gemma2/2b.py",
  "configs/linformer/base.py",
  "configs/mixtral/8x7b.py",
  "configs/mvit/base.py",
  "configs/swin/base.py",
  "configs/t5/base.py",
  "configs/vit/mae.py",
]
# The tiny form does not change the size of these.
NOT_TINY = ("configs/deit/base.py", "configs/deit/fashion_mnist.py")
ALL = sorted(
  str(path) for path in pathlib.Path("configs").glob("*/*.py") if not path.name.startswith("_")
)
RECIPES = [
  pytest.param(recipe, marks=[] if recipe in ONE_OF_EACH else pytest.mark.more)
  for recipe in ALL
  if recipe not in NOT_TINY
]


def equations(jaxpr):
  """Yield every equation of a program and of its inner programs."""
  for equation in jaxpr.eqns:
    yield equation
    for value in equation.params.values():
      for inner in value if isinstance(value, tuple | list) else [value]:
        if isinstance(inner, core.ClosedJaxpr | core.Jaxpr):
          yield from equations(getattr(inner, "jaxpr", inner))


def float32_shapes(values, axes: int) -> list[tuple[int, ...]]:
  """Return the shapes of the float32 arrays that have at least this many axes."""
  return [v.aval.shape for v in values if v.aval.dtype == jnp.float32 and v.aval.ndim >= axes]


def is_float32_by_design(equation) -> bool:
  frames = equation.source_info.traceback.frames
  return any(name in frame.function_name for frame in frames for name in FLOAT32_FUNCTIONS)


@pytest.mark.parametrize("recipe", RECIPES)
def test_arrays_are_wider_than_the_compute_dtype_only_by_design(recipe):
  # As on an accelerator: layers in a scan, which keeps the activations with names.
  options = ["model.dtype=bfloat16", "model.layers=scan", "model.remat=minimal"]
  config, task = steps.resolve(recipes.load(f"{recipe}:tiny", options), "cpu", None)
  parts = build_parts(config, jax.devices())
  rows = config.batch_size

  def loss(arrays, batch, key):
    return parts.objective(params.with_arrays(parts.model, arrays), batch, key)[0]

  batch = parts.rules.abstract_batch(task.features, config.batch_size)
  program = jax.make_jaxpr(jax.grad(loss))(parts.state.params, batch, jax.random.key(0))
  products = collections.Counter()
  carried = []
  residual_shapes = []
  for equation in equations(program.jaxpr):
    if equation.primitive.name in (
      "dot_general",
      "conv_general_dilated",
    ) and not is_float32_by_design(equation):
      products.update(float32_shapes(equation.invars, 2))
    if equation.primitive.name == "scan" and not is_float32_by_design(equation):
      first, last = scan_sizes(equation.params)
      carried += [
        shape
        for shape in float32_shapes(equation.invars[first : first + last], 3)
        if shape[0] == rows
      ]
      residual_shapes += [
        shape for shape in float32_shapes(equation.outvars[last:], 4) if shape[1] == rows
      ]
  shapes = f"products of {products}; between blocks {carried}; saved {residual_shapes}"
  assert not products, shapes
  assert not carried, shapes
  assert not residual_shapes, shapes
