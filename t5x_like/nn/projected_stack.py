"""A stack with one projection of keys and values for all its layers.

It is "layerwise" sharing in Linformer (Wang et al. 2020, section 4).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.cores import Core
from t5x_like.nn.shared_stack import copy_attributes
from t5x_like.nn.stack import Stack


class ProjectedStack(Stack):
  """A stack that lends its matrix to the cores of all layers.

  Args:
    stack: the stack whose parts this one takes over.
    projection: the matrix, [k, length].
  """

  def __init__(self, stack: Stack, projection: nnx.Param):
    copy_attributes(self, stack)
    self.projection = projection

  def _run(self, blocks, *args):
    layers = jax.tree.leaves(blocks)[0].shape[0]
    projections = jnp.broadcast_to(self.projection[...], (layers, *self.projection.shape))

    def with_projection(part):
      if isinstance(part, Core) and part.layerwise:
        part = jax.tree.map(lambda x: x, part)  # a new one, of this trace
        part.keys = nnx.data(nnx.Param(projections))
      return part

    blocks = jax.tree.map(with_projection, blocks, is_leaf=lambda part: isinstance(part, Core))
    return super()._run(blocks, *args)
