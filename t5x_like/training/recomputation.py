"""Compute a step twice, to find devices that compute wrongly (`config.recompute_every`)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from t5x_like.checkpoints.manifest import flatten
from t5x_like.checkpoints.tensors import fingerprints
from t5x_like.errors import TransientError
from t5x_like.training.state import TrainState, to_tree

_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def compute_twice(
  step: Callable, state: TrainState, batch
) -> tuple[TrainState, dict[str, jax.Array]]:
  """Return `step(state, batch)`, which donates the state; compute it twice and compare.

  It needs memory for two states.

  Raises:
    TransientError: the two differ in some bit.
  """
  number = int(state.step) + 1
  second_state, _ = step(_copy(state), batch)
  expected = fingerprints(flatten(to_tree(second_state)))
  del second_state
  state, metrics = step(state, batch)
  fingerprints_found = fingerprints(flatten(to_tree(state)))
  differing = [name for name in fingerprints_found if fingerprints_found[name] != expected[name]]
  if differing:
    raise TransientError(
      f"step {number} was computed twice, and {differing[0]} ({len(differing)} of "
      f"{len(fingerprints_found)} tensors) differs: a device computes wrongly; the step is not "
      "saved; test the devices, then run the same command again"
    )
  return state, metrics
