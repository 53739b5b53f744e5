"""Products in the compute dtype."""

from flax import nnx


def make():
  def unchanged(block: nnx.Module) -> nnx.Module:
    return block

  return unchanged
