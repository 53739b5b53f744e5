"""Gemma 3, its text model (Gemma Team 2025, arXiv:2503.19786).

Gemma 2 without caps on the logits, with norms on queries and keys. Five of six layers see a window
of 1,024 tokens (512 in the two smallest sizes) and rotate with base 1e4; every sixth sees all, with
base 1e6 and, from 4B on, wavelengths stretched by eight. Attention is scaled by 1/sqrt(256), in 27B
by 1/sqrt(5376 / 32).
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.models import gemma2
from t5x_like.nn.dims import Dims

# position schemes
LOCAL = {"name": "rope", "theta": 1e4}
GLOBAL = {"name": "rope", "theta": 1e6}
STRETCHED = GLOBAL | {"linear": {"factor": 8.0}}
DESIGN = replace(gemma2.DESIGN, qk_norm=True, softcap=None, logits_softcap=None)
GLOBAL_EVERY = 6


def with_windows(design: Design, layers: int, window: int | None, global_position: dict) -> Design:
  """Return the design with the windows and positions of local and global layers.

  The pattern need not end with the last layer.

  Args:
    layers: the number of layers.
    window: the window of local layers.
    global_position: the position scheme of global layers.
  """
  period = GLOBAL_EVERY if layers % GLOBAL_EVERY == 0 else layers
  is_local = [(layer + 1) % GLOBAL_EVERY != 0 for layer in range(period)]
  windows = tuple(window if local else None for local in is_local)
  position = tuple(LOCAL if local else global_position for local in is_local)
  return replace(design, windows=windows, position=position)


def _gemma3(
  embed,
  mlp,
  heads,
  kv_heads,
  head_dim,
  layers,
  window,
  global_position=STRETCHED,
  scalar=256,
  vocab_size=262_208,
):
  design = replace(DESIGN, attention_scale=scalar**-0.5)
  design = with_windows(design, layers, window, global_position)
  return Variant(
    Dims(embed, heads, kv_heads, head_dim, mlp, layers),
    design,
    vocab_size,
    Tokens(pad=0, start=2, eos=1),
  )


VARIANTS = {
  #                embed    mlp heads kv head_dim layers window
  "tiny": _gemma3(   256,  1024,    4, 1,      64,     6,    64, GLOBAL, 64),
  "270m": _gemma3(   640,  2048,    4, 1,     256,    18,   512, GLOBAL, vocab_size=262_144),
  "1b":   _gemma3(  1152,  6912,    4, 1,     256,    26,   512, GLOBAL, vocab_size=262_144),
  "4b":   _gemma3(  2560, 10240,    8, 4,     256,    34,  1024),
  "12b":  _gemma3(  3840, 15360,   16, 8,     256,    48,  1024),
  "27b":  _gemma3(  5376, 21504,   32, 16,    128,    62,  1024, scalar=168),
}  # fmt: skip


class Model(Decoder):
  """A Gemma 3 in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
