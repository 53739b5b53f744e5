"""LSTM language models: GPT-1's baseline without attention, "LSTM w/ aux LM".

The baseline is from Radford et al. 2018, section 5, table 5. It has one layer of 2,048 units
between the token table and the tied output. The paper gives no further sizes; here the output is
projected to the width of the table, 768. `dims.mlp` is the number of units; heads are not used.
"""

from dataclasses import replace

from flax import nnx

from t5x_like.architectures.build import StackBuilder
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Variant
from t5x_like.contrib.recurrent.lstm import Recurrence
from t5x_like.errors import UserError
from t5x_like.models import gpt
from t5x_like.nn.block import Block
from t5x_like.nn.dims import Dims

DESIGN = replace(gpt.GPT1, position="none")


def _lstm(embed, units, layers) -> Variant:
  dims = Dims(embed=embed, heads=1, kv_heads=1, head_dim=embed, mlp=units, layers=layers)
  return Variant(dims, DESIGN, vocab_size=40478)


VARIANTS = {
  #                  embed units layers
  "lstm-tiny": _lstm(  128,  256,  1),
  "lstm-2048": _lstm(  768, 2048,  1),
}  # fmt: skip


class LstmBuilder(StackBuilder):
  """A builder of stacks in which each block is an LSTM."""

  def block(self, rngs: nnx.Rngs) -> Block:
    quantization = self.design.quantization
    if quantization != "none":
      raise UserError(
        f"config.model.design.quantization: found {quantization!r}, expected 'none' for LSTMs"
      )
    return Block(lstm=Recurrence(self.dims.embed, self.dims.mlp, rngs, self.dropout))


class Model(Decoder):
  """An LSTM in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
  STACK_BUILDER = LstmBuilder
