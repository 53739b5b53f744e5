"""cuDNN's flash attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

It supports neither segments nor padding: packed rows are refused. Cost: 4 H FLOPs per head for each
visible logit in the forward pass, 2.5 times as many in the backward pass. Memory: O(T + S).
"""

import jax
import jax.numpy as jnp

from t5x_like.nn.cores._blocks import pad_to
from t5x_like.nn.cores._devices import PerDevice
from t5x_like.parallel.constrain import current, platform

DTYPES = (jnp.bfloat16, jnp.float16)
MAX_HEAD_WIDTH = 128  # head width; 256 from Hopper on


class CuDnn(PerDevice):
  """Equal to the dense core for plain, causal and causal windowed attention in 16 bits."""

  refuses = ("segments", "prefix", "bias", "query_bias", "softcap", "dropout", "padding")
  exact = True

  @classmethod
  def unsupported(cls, q, k, mask, softmax):
    feature = super().unsupported(q, k, mask, softmax)
    if feature:
      return feature
    if platform() != "gpu":
      return f"a {platform().upper()}, it needs an NVIDIA GPU"
    layout = current()
    device = jax.devices()[0] if layout is None else layout.mesh.devices.flat[0]
    # AMD's devices report no number.
    major = getattr(device, "compute_capability", "8.0").partition(".")[0]
    width = q.shape[-1]
    if not major.isdigit() or int(major) < 8:
      return f"a {device.device_kind}, it needs an NVIDIA GPU since Ampere"
    if width > MAX_HEAD_WIDTH or width % 8 or q.dtype not in DTYPES:
      return (
        f"heads of width {width} in {q.dtype}, which must be at most {MAX_HEAD_WIDTH} wide in "
        "16 bits"
      )
    if mask.window is not None and not mask.causal:
      return "a window on both sides"
    return None

  def attend(self, q, k, v, mask, softmax):
    if (mask.causal or mask.window is not None) and not (
      mask.aligned and softmax.device_slice.has_all_queries
    ):
      raise self.refusal(
        "causality or windows over explicit positions or queries split over devices"
      )
    window = None if mask.window is None else (mask.window - 1, 0)
    out = jax.nn.dot_product_attention(
      q,
      k,
      pad_to(v, q.shape[-1], 3),
      scale=1.0,
      is_causal=mask.causal,
      local_window_size=window,
      implementation="cudnn",
    )
    return out[..., : v.shape[-1]]


make = CuDnn
