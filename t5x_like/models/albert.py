"""ALBERT: BERT with a narrow token table and shared layers.

Lan et al. 2020, https://arxiv.org/abs/1909.11942.

All layers have the same parameters; a published config may have several groups of layers
(`AlbertVariant`). Token vectors of width 128 are projected to the stack. The second pretraining
head predicts whether two segments are in order (`config.task.swapped`). GELU is in its tanh form,
as in the released models; sizes are from the paper's table 1, with the 12 layers of the released
xxlarge.
"""

from collections import Counter
from dataclasses import dataclass, replace

from flax import nnx

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.models import bert
from t5x_like.nn.dims import Dims
from t5x_like.nn.shared_stack import SharedStack
from t5x_like.slots import PositiveInt

DESIGN = replace(bert.DESIGN, activation="gelu_tanh")
TOKENS = Tokens(pad=0, start=2, eos=3)  # <pad>, [CLS], [SEP]


@dataclass(frozen=True)
class AlbertVariant(Variant):
  """A `Variant` whose layers share their parameters.

  Attributes:
    groups: number of groups of blocks; the `dims.layers` runs of the stack are divided equally
      among them.
    inner: number of blocks in a group, applied one after another in each run of the group.
  """

  groups: PositiveInt = 1
  inner: PositiveInt = 1

  @property
  def times(self) -> tuple[int, ...]:
    """Return how often each group runs."""
    layers = self.dims.layers
    # rounded as in the released code
    group_of_layer = [int(layer / (layers / self.groups)) for layer in range(layers)]
    counts = Counter(group_of_layer)
    return tuple(counts[group] for group in range(self.groups))


def _albert(embed, mlp, heads, layers) -> AlbertVariant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  return AlbertVariant(dims, DESIGN, 30_000, TOKENS, types=2, embed=128, head="pretraining")


VARIANTS = {
  #                         embed    mlp heads layers
  "albert-tiny":    _albert(  256,  1024,    4,     4),  # for debugging
  "albert-base":    _albert(  768,  3072,   12,    12),
  "albert-large":   _albert( 1024,  4096,   16,    24),
  "albert-xlarge":  _albert( 2048,  8192,   16,    24),
  "albert-xxlarge": _albert( 4096, 16384,   64,    12),
}  # fmt: skip


class Model(Encoder):
  """An ALBERT in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS

  def build(self, rngs: nnx.Rngs, **options) -> None:
    variant = self.variant
    self.variant = replace(
      variant, dims=replace(variant.dims, layers=variant.groups * variant.inner)
    )
    super().build(rngs, **options)
    self.variant = variant
    self.encoder = SharedStack(self.encoder, variant.times)
