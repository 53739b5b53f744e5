"""A block: named sublayers, each inside a residual connection."""

from functools import partial

import jax

from t5x_like.nn.dims import NO_DROPOUT, Dropout, subkey
from t5x_like.nn.layer import CacheStart, Layer, Statistics
from t5x_like.nn.norm import Identity
from t5x_like.parallel.constrain import constrain


class Residual(Layer):
  """`out_norm(alpha * x + dropout(res_norm(layer(in_norm(x)))))`.

  Pre-norm fills `in_norm`, post-norm `out_norm`, sandwich norm `in_norm` and `res_norm`; DeepNorm
  is post-norm with an `alpha` above 1. `drop_path` is the probability of skipping the layer for an
  example; the remaining examples are rescaled. If the context has depths, training multiplies the
  rate by `context.depth[layer_index]`, where the index is the layer's in its block.
  """

  def __init__(
    self,
    layer,
    *,
    in_norm=None,
    res_norm=None,
    out_norm=None,
    alpha=1.0,
    dropout=NO_DROPOUT,
    drop_path=0.0,
    layer_index=0,
  ):
    self.layer = layer
    self.in_norm = in_norm or Identity()
    self.res_norm = res_norm or Identity()
    self.out_norm = out_norm or Identity()
    self.alpha = alpha
    self.dropout = dropout
    self.drop_path = drop_path
    self.layer_index = layer_index

  def __call__(self, x_BTD: jax.Array, context, cache, key: jax.Array | None):
    y_BTD, aux, cache = self.layer(self.in_norm(x_BTD), context, cache, subkey(key, 0))
    y_BTD = constrain(y_BTD, "batch", "residual_length", "activation_embed")
    y_BTD = self.dropout(self.res_norm(y_BTD), subkey(key, 1))
    y_BTD = self.apply_drop_path(y_BTD, context, key)
    return self.out_norm(self.alpha * x_BTD + y_BTD), aux, cache

  def apply_drop_path(self, y_BTD: jax.Array, context, key: jax.Array | None) -> jax.Array:
    """Zero the examples of `y` whose path is dropped, and rescale the others."""
    rate = self.drop_path
    if key is not None and rate and context.depth is not None:
      rate = rate * context.depth[self.layer_index]
    return Dropout(rate, (-2, -1))(y_BTD, subkey(key, 2))

  def start_cache(self, start: CacheStart):
    return self.layer.start_cache(start)


class Block(Layer):
  """Named sublayers, applied in order.

  They form one layer of the model, or several (`num_layers`) with as many sublayers each.
  """

  def __init__(self, num_layers: int = 1, /, **sublayers: Layer):
    self.names = tuple(sublayers)
    self.num_layers = num_layers
    for name, sublayer in sublayers.items():
      setattr(self, name, sublayer)

  def __call__(
    self,
    x_BTD: jax.Array,
    context,
    cache: dict | None,
    key: jax.Array | None,
    wrap=lambda layer: layer,
  ):
    """Run the sublayers; `wrap` is applied to the function of each layer, as by `Remat.wrap`."""
    aux = {}
    caches = {}
    size = len(self.names) // self.num_layers
    for first in range(0, len(self.names), size):
      layer = partial(self._layer, range(first, first + size), context, cache, key)
      x_BTD, layer_aux, layer_caches = wrap(layer)(x_BTD)
      caches |= layer_caches
      for name, sublayer_aux in layer_aux.items():
        add_aux(aux, name, sublayer_aux)
    return x_BTD, aux, (None if cache is None else caches)

  def _layer(
    self, indices: range, context, cache: dict | None, key: jax.Array | None, x_BTD: jax.Array
  ):
    """Run the sublayers with these indices."""
    aux = {}
    caches = {}
    for index in indices:
      name = self.names[index]
      sublayer_cache = None if cache is None else cache[name]
      x_BTD, aux[name], caches[name] = getattr(self, name)(
        x_BTD, context, sublayer_cache, subkey(key, index)
      )
    return x_BTD, aux, caches

  def start_cache(self, start: CacheStart) -> dict:
    return {name: getattr(self, name).start_cache(start) for name in self.names}


class Parallel(Block):
  """Sublayers that read the same input and whose outputs are added (GPT-J, PaLM).

  It is used inside one `Residual`.
  """

  def __call__(self, x_BTD: jax.Array, context, cache: dict | None, key: jax.Array | None):
    total_BTD = 0.0
    aux = {}
    caches = {}
    for index, name in enumerate(self.names):
      layer_cache = None if cache is None else cache[name]
      y_BTD, layer_aux, caches[name] = getattr(self, name)(
        x_BTD, context, layer_cache, subkey(key, index)
      )
      total_BTD = total_BTD + y_BTD
      add_aux(aux, name, layer_aux)
    return total_BTD, aux, (None if cache is None else caches)


class Normed(Layer):
  """`layer(norm(x))`: a branch of a `Parallel` with its own norm (GPT-NeoX)."""

  def __init__(self, layer, *, norm):
    self.layer = layer
    self.norm = norm

  def __call__(self, x_BTD: jax.Array, context, cache, key: jax.Array | None):
    return self.layer(self.norm(x_BTD), context, cache, key)

  def start_cache(self, start: CacheStart):
    return self.layer.start_cache(start)


def add_aux(total: dict, name: str, aux: dict) -> None:
  """Add a sublayer's scalars to `total` in place; store its statistics under `name/key`."""
  for key, value in aux.items():
    if isinstance(value, Statistics):
      total[f"{name}/{key}"] = value
    else:
      total[key] = total[key] + value if key in total else value


def scalars(aux: dict) -> dict[str, jax.Array]:
  """Reduce statistics to scalars, and sum scalars of the same name."""
  total = {}
  for key, value in aux.items():
    add_aux(total, key, value.scalars() if isinstance(value, Statistics) else {key: value})
  return total
