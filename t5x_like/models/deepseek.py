"""DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437), in the sizes of section 4.2.

Pre-norm with RMSNorm, SwiGLU, no biases, an untied output. Attention is by latents; 64 of a head's
192 channels rotate, in pairs of neighbours, with base 1e4. All layers but the first three have
experts: one that every token uses, and 8 of 256 from the 4 best of 8 groups, chosen by sigmoids
whose biases balance the loads. A token's gates add up to 2.5. With `mtp_depth=1`, as published, one
more block predicts the token after the next.
"""

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.multi_token import MultiTokenDecoder
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts

TOKENS = Tokens(pad=None, start=0, eos=1)


def make_design(latent: dict, experts: Experts, dense_layers: int) -> Design:
  """Return DeepSeek-V3's design with these sizes of latents and experts.

  Args:
    latent: the fields of `nn.latent_attention.Latent`.
    dense_layers: number of first layers without experts.
  """
  return Design(
    norm="rmsnorm",
    norm_epsilon=1e-6,
    norm_position="pre",
    activation="swiglu",
    position={"name": "rope", "theta": 1e4, "interleaved": True},
    latent=latent,
    experts=experts,
    dense_layers=dense_layers,
    init_stddev=0.006,
    tied=False,
  )


def make_experts(**sizes) -> Experts:
  """Return DeepSeek-V3's mixture of experts with these sizes, fields of `Experts`."""
  published = dict(
    router="sigmoid",
    normalise=True,
    scale=2.5,
    bias_rate=0.001,
    balance_loss=1e-4,
    z_loss=0.0,
    shared=1,
  )
  return Experts(**published | sizes)


VARIANTS = {
  "tiny": Variant(
    Dims(embed=256, heads=4, kv_heads=4, head_dim=48, mlp=512, layers=4),
    make_design(
      dict(rank=64, query_rank=96, rope=16, value=32),
      make_experts(experts=8, top_k=2, mlp=128, groups=4, top_groups=2),
      dense_layers=1,
    ),
    129_280,
    TOKENS,
  ),
  "v3": Variant(
    Dims(embed=7168, heads=128, kv_heads=128, head_dim=192, mlp=18_432, layers=61),
    make_design(
      dict(rank=512, query_rank=1536, rope=64, value=128),
      make_experts(experts=256, top_k=8, mlp=2048, groups=8, top_groups=4),
      dense_layers=3,
    ),
    129_280,
    TOKENS,
  ),
}


class Model(MultiTokenDecoder):
  """A DeepSeek in one of its `VARIANTS`, with the features and arguments of `MultiTokenDecoder`."""

  VARIANTS = VARIANTS
