"""A block: named sublayers, each inside a residual connection."""

import jax
from flax import nnx

from t5x_like.nn.dims import dropout, subkey
from t5x_like.nn.norm import Identity


class Residual(nnx.Module):
  """`out_norm(alpha * x + dropout(res_norm(layer(in_norm(x)))))`.

  Pre-norm fills `in_norm`, post-norm `out_norm`, sandwich norm `in_norm` and `res_norm`; DeepNorm is post-norm with
  an `alpha` above 1.
  """

  def __init__(self, layer, *, in_norm=None, res_norm=None, out_norm=None, alpha: float = 1.0, dropout_rate: float = 0):
    self.layer = layer
    self.in_norm = in_norm or Identity()
    self.res_norm = res_norm or Identity()
    self.out_norm = out_norm or Identity()
    self.alpha = alpha
    self.dropout_rate = dropout_rate

  def __call__(self, x_BTD: jax.Array, context, cache, key: jax.Array | None):
    y_BTD, aux, cache = self.layer(self.in_norm(x_BTD), context, cache, subkey(key, 0))
    y_BTD = dropout(self.res_norm(y_BTD), self.dropout_rate, subkey(key, 1))
    return self.out_norm(self.alpha * x_BTD + y_BTD), aux, cache


class Block(nnx.Module):
  """Residual sublayers applied in order, kept under the names they are given.

  A layer is called as `layer(x, context, cache, key) -> (y, aux, cache)`, where `aux` is a dict of scalar losses and
  the cache of a layer that keeps none is None.
  """

  def __init__(self, **sublayers: Residual):
    self.names = tuple(sublayers)
    for name, sublayer in sublayers.items():
      setattr(self, name, sublayer)

  def __call__(self, x_BTD: jax.Array, context, cache: dict | None, key: jax.Array | None):
    aux, caches = {}, {}
    for index, name in enumerate(self.names):
      layer_cache = None if cache is None else cache[name]
      x_BTD, layer_aux, caches[name] = getattr(self, name)(x_BTD, context, layer_cache, subkey(key, index))
      aux.update({f"{name}/{k}": v for k, v in layer_aux.items()})
    return x_BTD, aux, (None if cache is None else caches)
