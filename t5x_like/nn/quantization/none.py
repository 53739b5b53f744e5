"""Products in the compute dtype."""

from flax import nnx


def make():
  def return_block(block: nnx.Module) -> nnx.Module:
    return block

  return return_block
