"""Count the model FLOPs of a train step, the numerator of MFU."""

import dataclasses
from collections.abc import Callable

import jax
from flax import nnx

from t5x_like.nn.attention import Attention
from t5x_like.nn.cores.dense import Dense
from t5x_like.objectives import evaluate
from t5x_like.training.jaxpr_flops import forward_flops
from t5x_like.training.window_flops import WindowedDense


def step_flops(
  model, objective: Callable, batch: dict[str, jax.ShapeDtypeStruct], trained=None
) -> float:
  """Count the model FLOPs of one train step: three times the matrix products of the forward pass.

  The usual convention of MFU: a multiplication and an addition are two FLOPs; the backward pass
  costs twice the forward pass; recomputation, elementwise work, gathers and the optimizer are free.
  Causal attention counts half of what the dense core computes, because causality hides half of the
  logits (Dao 2023, section 4.1), and other exact cores count as the dense one; bidirectional
  attention, also of a batch with a bidirectional prefix, counts in full. Windows count the keys
  that they leave, experts the tokens that choose them, in the traced forward pass.

  Args:
    model: an abstract or concrete model.
    objective: `(model, batch, key) -> (loss sum, sums)`.
    batch: abstract features of the global batch.
    trained: names of the trained parameters; None for all. See `training.frozen_flops` for some.
  """
  counted_model = with_dense_cores(model)
  if trained is not None:
    from t5x_like.training.frozen_flops import partial_step_flops

    return partial_step_flops(counted_model, objective, batch, trained)

  def forward(model, batch):
    return evaluate(objective, model, batch)[0]

  return 3.0 * forward_flops(forward, counted_model, batch)


def with_dense_cores(model):
  """Return the model to count, with dense cores in place of exact ones.

  Windows count the keys that they leave, and experts no empty slots.
  """
  counted_model = jax.tree.map(lambda x: x, model)
  for _, module in list(nnx.iter_modules(counted_model)):
    if isinstance(module, Attention) and module.core.exact:
      module.core = Dense() if module.window is None else WindowedDense()
    elif hasattr(module, "experts"):
      module.experts = dataclasses.replace(module.experts, dispatch="dropless")
  return counted_model
