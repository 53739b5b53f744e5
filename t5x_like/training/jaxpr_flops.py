"""Count the FLOPs of the matrix products of a traced function."""

import math
import re
from collections.abc import Callable

import jax
from jax.extend import core

from t5x_like.nn.attention import CAUSAL_SCOPE
from t5x_like.objectives._cross_entropy import COLUMNS_SCOPE


def forward_flops(function: Callable, *args) -> float:
  """Count the FLOPs of the matrix products of one call of `function` on (abstract) arguments."""
  return count_jaxpr(jax.make_jaxpr(function)(*args).jaxpr)


def count_jaxpr(jaxpr: core.Jaxpr, halved: bool = False) -> float:
  """Count the FLOPs of the equations of a jaxpr; see `count_equation`."""
  return sum(count_equation(equation, halved) for equation in jaxpr.eqns)


def count_equation(equation, halved: bool) -> float:
  """Count the FLOPs of one equation; `halved` means that causality is already accounted for."""
  scopes = str(equation.source_info.name_stack)
  if not halved and CAUSAL_SCOPE in scopes:
    return 0.5 * count_equation(equation, True)
  name = equation.primitive.name
  parameters = equation.params
  # In a ragged product, every row is multiplied by its group's matrix.
  if name in ("dot_general", "ragged_dot_general"):
    return _matrix_product_flops(equation) * _counted_share(scopes)
  if name == "conv_general_dilated":
    kernel = equation.invars[1].aval
    out_features = parameters["dimension_numbers"].rhs_spec[0]
    # The kernel already has only the input features of one feature group.
    window = math.prod(kernel.shape) / kernel.shape[out_features]
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * window
  if name == "cond":
    return max(count_jaxpr(branch.jaxpr, halved) for branch in parameters["branches"])
  repeats = parameters["length"] if name == "scan" else 1
  return repeats * sum(count_jaxpr(jaxpr, halved) for jaxpr in inner_jaxprs(parameters))


def _matrix_product_flops(equation) -> float:
  dimension_numbers = equation.params.get("dimension_numbers")
  ragged = equation.params.get("ragged_dot_dimension_numbers")
  if ragged:
    dimension_numbers = ragged.dot_dimension_numbers
  (lhs_contracted, _), _ = dimension_numbers
  lhs_shape = equation.invars[0].aval.shape
  contracted = math.prod(lhs_shape[axis] for axis in lhs_contracted)
  return 2.0 * math.prod(equation.outvars[0].aval.shape) * contracted


def _counted_share(scopes: str) -> float:
  """Return the share of a product's columns that counts: chunks of a vocabulary may overlap."""
  match = re.search(COLUMNS_SCOPE + r"(\d+)_of_(\d+)", scopes)
  return int(match[1]) / int(match[2]) if match else 1.0


def inner_jaxprs(params) -> list[core.Jaxpr]:
  """Return the jaxprs among an equation's parameters, as of jit, scan, checkpoint and while."""
  candidates = (getattr(value, "jaxpr", value) for value in params.values())
  return [jaxpr for jaxpr in candidates if isinstance(jaxpr, core.Jaxpr)]


def scan_sizes(params) -> tuple[int, int]:
  """Return the numbers of (constants, carried values) among the inputs of a scan's equation."""
  if "ft_in" in params:  # since jax 0.12
    constants, carried, _ = params["ft_in"].unpack()
    return len(constants), len(carried)
  return params["num_consts"], params["num_carry"]
