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

  This is the usual convention of MFU. A multiplication and an addition are two FLOPs. The backward
  pass costs twice the forward pass. Recomputation, elementwise operations, gathers and the
  optimizer are free.

  Causal attention counts half of the dense core's products, because half of the logits are masked
  (Dao 2023, section 4.1). Other exact cores count as the dense one. Bidirectional attention counts
  in full, also in a batch with a bidirectional prefix. Attention with a window counts only the keys
  inside the window. An expert counts only the tokens that are routed to it.

  Args:
    model: an abstract or concrete model.
    objective: `(model, batch, key) -> (loss sum, sums)`.
    batch: abstract features of the global batch.
    trained: names of the trained parameters; None means all. With frozen parameters,
      `training.frozen_flops` counts the step.
  """
  counted_model = with_dense_cores(model)
  if trained is not None:
    from t5x_like.training.frozen_flops import partial_step_flops

    return partial_step_flops(counted_model, objective, batch, trained)

  def forward(model, batch):
    return evaluate(objective, model, batch)[0]

  return 3.0 * forward_flops(forward, counted_model, batch)


def with_dense_cores(model):
  """Return a copy of a model whose products `forward_flops` can count: with dense attention cores.

  Attention with a window counts only the keys inside it, and experts do not count empty slots.
  """
  counted_model = jax.tree.map(lambda x: x, model)  # a copy, whose modules are changed below
  for _, module in list(nnx.iter_modules(counted_model)):
    if isinstance(module, Attention) and module.core.exact:
      module.core = Dense() if module.window is None else WindowedDense()
    elif hasattr(module, "experts"):
      module.experts = dataclasses.replace(module.experts, dispatch="dropless")
  return counted_model
