"""Compute T5's logits in numpy and float64, one query at a time, independently of the package."""

import math

import numpy as np


def bucket(relative: int, bidirectional: bool, buckets: int = 32, max_distance: int = 128) -> int:
  """Return the bucket of `key position - query position`, by the formula of T5's code."""
  first = 0
  if bidirectional:
    buckets //= 2
    if relative > 0:
      first = buckets
    distance = abs(relative)
  else:
    distance = max(-relative, 0)
  exact = buckets // 2
  if distance < exact:
    return first + distance
  # The tiny push keeps exact powers (16, 32, 64 …) on their own side of the edge.
  far = exact + int(
    math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact) + 1e-9
  )
  return first + min(far, buckets - 1)


def rms_norm(x, scale):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale


def gelu(x):
  return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class T5:
  """Read a model's weights by name, and compute the logits of one example."""

  def __init__(self, size, weights):
    self.dims = size.dims
    self.design = size.design
    self.w = {name: np.asarray(a, np.float64) for name, a in weights.items()}

  def attention(self, name, layer, x, memory, table, bidirectional, see):
    """Return attention in which `see(query, key)` tells visible keys; `table` is None across."""
    N = self.dims.heads
    H = self.dims.head_dim
    q = (x @ self.w[f"{name}/query/kernel"][layer]).reshape(len(x), N, H)
    k = (memory @ self.w[f"{name}/key/kernel"][layer]).reshape(len(memory), N, H)
    v = (memory @ self.w[f"{name}/value/kernel"][layer]).reshape(len(memory), N, H)
    out = np.zeros((len(x), N, H))
    for t in range(len(x)):
      visible = [s for s in range(len(memory)) if see(t, s)]
      logits = np.array(
        [[q[t, n] @ k[s, n] for s in visible] for n in range(N)]
      )  # no 1/sqrt(H) in T5
      if table is not None:
        logits += table[[bucket(s - t, bidirectional) for s in visible]].T
      p = np.exp(logits - logits.max(axis=1, keepdims=True))
      p /= p.sum(axis=1, keepdims=True)
      out[t] = np.einsum("ns,snh->nh", p, v[visible])
    return out.reshape(len(x), N * H) @ self.w[f"{name}/out/kernel"][layer]

  def mlp(self, name, layer, x):
    h = x @ self.w[f"{name}/wi/kernel"][layer]
    if self.design.activation == "geglu_tanh":
      h = gelu(x @ self.w[f"{name}/gate/kernel"][layer]) * h
    else:
      h = np.maximum(h, 0.0)
    return h @ self.w[f"{name}/wo/kernel"][layer]

  def stack(self, stack, tokens, see, memory=None, see_memory=None):
    x = self.w["embed/table"][tokens]
    table = self.w[f"{stack}/position/table"]
    blocks = f"{stack}/blocks"
    for layer in range(self.dims.layers):
      y = rms_norm(x, self.w[f"{blocks}/self_attention/in_norm/scale"][layer])
      x = x + self.attention(
        f"{blocks}/self_attention/layer", layer, y, y, table, stack == "encoder", see
      )
      if memory is not None:
        y = rms_norm(x, self.w[f"{blocks}/cross_attention/in_norm/scale"][layer])
        x = x + self.attention(
          f"{blocks}/cross_attention/layer", layer, y, memory, None, False, see_memory
        )
      y = rms_norm(x, self.w[f"{blocks}/mlp/in_norm/scale"][layer])
      x = x + self.mlp(f"{blocks}/mlp/layer", layer, y)
    return rms_norm(x, self.w[f"{stack}/final_norm/scale"])

  def logits(self, encoder_tokens, decoder_tokens):
    """Return the logits [T, V] of one example; the encoder's padding is invisible."""
    real = encoder_tokens > 0
    memory = self.stack("encoder", encoder_tokens, lambda t, s: real[s])
    x = self.stack("decoder", decoder_tokens, lambda t, s: s <= t, memory, lambda t, s: real[s])
    if self.design.tied:
      return (x / math.sqrt(self.dims.embed)) @ self.w["embed/table"].T
    return x @ self.w["head/kernel"]
