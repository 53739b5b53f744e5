"""Count the model FLOPs of a step that trains only some parameters, such as adapters or a head.

A product `a @ b` costs its FLOPs once in the forward pass, and once more in the backward pass for
each of `a` and `b` that depends on a trained parameter. So a frozen kernel costs one product, or
two if something before it is trained, and a trained kernel three.
"""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
from jax.extend import core

from t5x_like.nn import params
from t5x_like.nn.attention import CAUSAL_SCOPE
from t5x_like.objectives import evaluate
from t5x_like.training.jaxpr_flops import count_equation, inner_jaxprs, scan_sizes

Flags = list[bool]  # whether each of a list of values depends on a trained parameter


def partial_step_flops(
  model, objective: Callable, batch: dict[str, jax.ShapeDtypeStruct], trained: Collection[str]
) -> float:
  """Count as `flops.step_flops` does, except the backward pass of frozen parameters.

  Args:
    model: with dense cores, see `flops.with_dense_cores`.
    objective, batch, trained: see `flops.step_flops`.
  """
  arrays = params.arrays(model)
  traced = jax.make_jaxpr(
    lambda arrays, batch: evaluate(objective, params.with_arrays(model, arrays), batch)[0]
  )
  flags = ({name: name in trained for name in arrays}, {name: False for name in batch})
  flops, _ = _count_jaxpr(traced(arrays, batch).jaxpr, jax.tree.leaves(flags), False)
  return flops


def _count_jaxpr(jaxpr: core.Jaxpr, inputs: Flags, halved: bool) -> tuple[float, Flags]:
  """Return (the FLOPs of both passes, the flags of the results); see `count_equation`."""
  flags = dict(zip(jaxpr.invars, inputs, strict=True))
  total = 0.0
  for equation in jaxpr.eqns:
    flops, results = _count_equation(equation, _flags_of(flags, equation.invars), halved)
    total += flops
    flags.update(zip(equation.outvars, results))
  return total, _flags_of(flags, jaxpr.outvars)


def _flags_of(flags: dict, variables) -> Flags:
  return [not isinstance(v, core.Literal) and flags.get(v, False) for v in variables]


def _count_equation(equation, inputs: Flags, halved: bool) -> tuple[float, Flags]:
  if not halved and CAUSAL_SCOPE in str(equation.source_info.name_stack):
    flops, results = _count_equation(equation, inputs, True)
    return 0.5 * flops, results
  name = equation.primitive.name
  parameters = equation.params
  if name == "scan":
    constants, carried = scan_sizes(parameters)
    carry = slice(constants, constants + carried)
    flops, results = _count_loop(parameters["jaxpr"].jaxpr, inputs, carry, halved)
    return parameters["length"] * flops, results
  if name == "while":
    loop_inputs = inputs[parameters["cond_nconsts"] :]
    return _count_loop(
      parameters["body_jaxpr"].jaxpr,
      loop_inputs,
      slice(parameters["body_nconsts"], len(loop_inputs)),
      halved,
    )
  if name == "cond":
    branches = [_count_jaxpr(branch.jaxpr, inputs[1:], halved) for branch in parameters["branches"]]
    branch_flops, branch_flags = zip(*branches)
    return max(branch_flops), [any(flags) for flags in zip(*branch_flags)]
  inner = inner_jaxprs(parameters)
  # A call has an inner jaxpr with the same inputs. The inner jaxpr of a scatter or a reduction has
  # two scalars as inputs.
  if inner and len(inner[0].invars) == len(inputs):
    return _count_jaxpr(inner[0], inputs, halved)
  depends = any(inputs) and name != "stop_gradient"
  results = [depends and _has_gradient(variable.aval.dtype) for variable in equation.outvars]
  return count_equation(equation, halved) * (1 + sum(inputs[:2])), results


def _has_gradient(dtype) -> bool:
  """Return whether values of a type have gradients: floats, and the factors of 8-bit products."""
  return jnp.issubdtype(dtype, jnp.inexact) or dtype == jnp.int8


def _count_loop(
  body: core.Jaxpr, inputs: Flags, carried: slice, halved: bool
) -> tuple[float, Flags]:
  """Count one iteration of a loop's body, with flags that hold in every iteration."""
  while True:
    flops, results = _count_jaxpr(body, inputs, halved)
    next_flags = [before or after for before, after in zip(inputs[carried], results)]
    if next_flags == inputs[carried]:
      return flops, results
    inputs = [*inputs[: carried.start], *next_flags, *inputs[carried.stop :]]
