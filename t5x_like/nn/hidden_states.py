"""The hidden states of several layers of a stack."""

import copy

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn.block import Block
from t5x_like.nn.layer import Context
from t5x_like.nn.stack import Stack

LAST_STATE = (-1,)


def read_states(
  stack: Stack,
  x_BTD: jax.Array,
  context: Context,
  key: jax.Array | None,
  states: tuple[int, ...] = LAST_STATE,
) -> tuple[jax.Array, dict]:
  """Run a stack and return ([B, T, states * D], auxiliary scalars), the states side by side.

  State 0 is the input of the first layer, and the last is the output of the stack, after its final
  norm if it has one.

  Args:
    states: numbers of states, counted from the end if negative.
  Raises:
    UserError: no such state; or the layers repeat a pattern or are split over stages, and a state
      other than the last is read.
  """
  if states == LAST_STATE:
    return stack(x_BTD, context, key=key)[:2]
  if any(name[-1].isdigit() for name in stack.blocks.names):
    raise UserError(
      f"config.model.head.states: found {list(states)}, but the layers of this design repeat a "
      "pattern, of which only the last state is kept; set it to [-1]"
    )
  recording = copy.copy(stack)
  recording.blocks = _Recording(stack.blocks)
  last_BTD, aux, after_LBTD = recording(x_BTD, context, key=key)
  if after_LBTD is None:
    raise UserError(
      "config.mesh.stage: hidden states of several layers are not passed between "
      "stages; set it to 1"
    )
  all_states = [x_BTD, *after_LBTD[:-1], last_BTD]
  count = len(all_states)
  if not states or not all(-count <= state < count for state in states):
    raise UserError(
      f"config.model.head.states: found {list(states)}, expected numbers from {-count} to "
      f"{count - 1}; 0 is the embeddings"
    )
  return jnp.concatenate([all_states[state] for state in states], axis=-1), aux


class _Recording(nnx.Module):
  """A block that returns its output instead of its cache, so that the stack collects it."""

  def __init__(self, block: Block):
    self.block = block

  def __call__(self, x_BTD: jax.Array, context: Context, cache: None, key: jax.Array | None, wrap):
    x_BTD, aux, _ = self.block(x_BTD, context, cache, key, wrap)
    return x_BTD, aux, x_BTD
