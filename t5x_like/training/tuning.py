"""Which parameters a run trains, and at what rates, by name: `config.tuning = {"name": "layer_decay", "rate": 0.9}`.

Each entry of `TUNINGS` is a function of its options that returns `(optimizer, named parameters) -> optimizer`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like.errors import UserError

Named = dict[str, jax.Array]
Tune = Callable[[optax.GradientTransformation, dict], optax.GradientTransformation]
_HEAD = "head/"


def everything() -> Tune:
  """All parameters, at the schedule's rate."""
  return lambda optimizer, named: optimizer


def head(*, also: tuple[str, ...] = ()) -> Tune:
  """The head alone, on frozen features, and the parameters whose names begin with one of `also`."""

  def tune(optimizer, named):
    trained = [name for name in named if name.startswith((_HEAD, *also))]
    if not trained:
      raise UserError("config.tuning: the model has no head to train alone; set --config.tuning.name=all")
    return _only(optimizer, trained)

  return tune


def layer_decay(*, rate: float = 0.9) -> Tune:
  """The rate of each layer is `rate` times that of the layer above it; heads have the schedule's, embeddings the lowest
  (Clark et al. 2020, appendix A: 0.9 to 0.6)."""
  if not 0 < rate <= 1:
    raise UserError(f"config.tuning.rate: found {rate}, expected above 0 and at most 1")

  def tune(optimizer, named):
    depth = max((p.shape[0] for p in named.values() if p.axes[:1] == ("layers",)), default=0)
    return _scaled(optimizer, {name: _of_depth(name, p, depth, rate) for name, p in named.items()})

  return tune


TUNINGS = {"all": everything, "head": head, "layer_decay": layer_decay}


def _of_depth(name: str, p, depth: int, rate: float) -> np.ndarray | float:
  if name.startswith(("embed/", "inputs/", "decoder_inputs/", "encoder_inputs/")) or "/position/" in name:
    return rate ** (depth + 1)
  if p.axes[:1] != ("layers",):
    return 1.0
  layers = p.shape[0]
  return (rate ** (layers - np.arange(layers, dtype=np.float64))).astype(np.float32)


def _scaled(optimizer, scales: dict[str, np.ndarray | float]) -> optax.GradientTransformation:
  def update(grads: Named, state, params: Named, **extra):
    updates, state = optimizer.update(grads, state, params, **extra)
    scaled = {}
    for name, u in updates.items():
      scale = jnp.asarray(scales[name], u.dtype)
      scaled[name] = u * scale.reshape(scale.shape + (1,) * (u.ndim - scale.ndim))
    return scaled, state

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def _only(optimizer, trained: list[str]) -> optax.GradientTransformation:
  """The optimizer of some parameters; it has no state for the others and leaves them as they are."""

  def of(named: Named) -> Named:
    return {name: named[name] for name in trained}

  def update(grads: Named, state, params: Named, **extra):
    updates, state = optimizer.update(of(grads), state, of(params), **extra)
    return {name: updates.get(name, jnp.zeros_like(g)) for name, g in grads.items()}, state

  return optax.GradientTransformationExtraArgs(lambda params: optimizer.init(of(params)), update)
