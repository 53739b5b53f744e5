"""Which parameters a run trains, and at what rates, by name: `config.tuning = {"name": "layer_decay", "rate": 0.9}`.

Each entry of `TUNINGS` is a function of its options that returns a `Tuning`.
"""

import dataclasses
import fnmatch
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like import nn, slots
from t5x_like.errors import UserError
from t5x_like.nn.linear import ADAPTERS
from t5x_like.slots import Positive

Named = dict[str, jax.Array]
_HEADS = ("head/", "scores/")


@dataclasses.dataclass(frozen=True)
class Tuning:
  """What becomes of a model and its optimizer.

  Attributes:
    adapt: `(model, key) -> model`, of a model just made, with what is trained besides its parameters.
    rates: `(optimizer, named parameters) -> optimizer`.
    trained: the names of the parameters that are trained, of all.
  """

  adapt: Callable = lambda model, key: model
  rates: Callable[[optax.GradientTransformation, dict], optax.GradientTransformation] = lambda optimizer, named: (
    optimizer
  )
  trained: Callable[[dict], list[str]] = list


def everything() -> Tuning:
  """All parameters, at the schedule's rate."""
  return Tuning()


def head(*, also: tuple[str, ...] = ()) -> Tuning:
  """The head alone, on frozen features, and the parameters whose names begin with one of `also`."""

  def trained(named):
    found = [name for name in named if name.startswith((*_HEADS, *also))]
    if not found:
      raise UserError("config.tuning: the model has no head to train alone; set --config.tuning.name=all")
    return found

  return Tuning(trained=trained)


def layer_decay(*, rate: float = 0.9) -> Tuning:
  """The rate of each layer is `rate` times that of the layer above it; heads have the schedule's, embeddings the lowest
  (Clark et al. 2020, appendix A: 0.9 to 0.6)."""
  if not 0 < rate <= 1:
    raise UserError(f"config.tuning.rate: found {rate}, expected above 0 and at most 1")

  def rates(optimizer, named):
    depth = max((p.shape[0] for p in named.values() if p.axes[:1] == ("layers",)), default=0)
    return _scaled(optimizer, {name: _of_depth(name, p, depth, rate) for name, p in named.items()})

  return Tuning(rates=rates)


def by_part(*, rates: dict = {}) -> Tuning:  # noqa: B006 (never written to)
  """Parts at rates of their own, as shares of the schedule's; what has a rate of 0 is not trained.

  Args:
    rates: pattern of parameters' names -> share, such as {"backbone/*": 0.1}; the last that fits has the say.
  """
  for pattern, rate in rates.items():
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not rate >= 0:
      raise UserError(f"config.tuning.rates: found {rate!r} for {pattern!r}, expected a number of at least 0")

  def of(named):
    for pattern in rates:
      if not fnmatch.filter(named, pattern):
        raise UserError(f"config.tuning.rates: no parameter is called {pattern!r}; the first is {next(iter(named))}")
    fitting = {name: [rate for pattern, rate in rates.items() if fnmatch.fnmatchcase(name, pattern)] for name in named}
    return {name: found[-1] if found else 1.0 for name, found in fitting.items()}

  return Tuning(
    rates=lambda optimizer, named: _scaled(optimizer, of(named)),
    trained=lambda named: [name for name, rate in of(named).items() if rate],
  )


def low_rank(
  *,
  rank: Positive = 8,
  alpha: float = 16.0,
  targets: tuple[str, ...] = ("query", "value"),
  also: tuple[str, ...] = ("head/*/*", "scores/*"),
) -> Tuning:
  """Adapters on frozen kernels (Hu et al. 2021); see `nn/lora.py`.

  Args:
    rank: of the adapters.
    alpha: their output is scaled by alpha / rank, so that one learning rate suits many ranks.
    targets: patterns of the kernels that get one: `query`, `value`, `mlp/layer/*`, `*` for all but `also`.
    also: patterns of parameters that are trained in full; by default those of a head for labels, which is new, but not
      the kernel of a language model's.
  """
  if not targets:
    raise UserError("config.tuning.targets: found none, expected names of kernels, such as query")

  def trained(named):
    own = [f"*/{name}" for name in ADAPTERS]
    return [name for name in named if any(fnmatch.fnmatchcase(name, pattern) for pattern in (*own, *also))]

  adapted = slots.module("lora", nn).adapted
  return Tuning(lambda model, key: adapted(model, targets, rank, alpha, key, also), trained=trained)


TUNINGS = {"all": everything, "head": head, "layer_decay": layer_decay, "by_part": by_part, "lora": low_rank}


def only(optimizer: optax.GradientTransformation, trained: list[str]) -> optax.GradientTransformation:
  """The optimizer of some parameters; it has no state for the others, and takes and gives updates of these alone."""

  def of(named: Named) -> Named:
    return {name: named[name] for name in trained}

  def update(grads: Named, state, params: Named, **extra):
    return optimizer.update(of(grads), state, of(params), **extra)

  return optax.GradientTransformationExtraArgs(lambda params: optimizer.init(of(params)), update)


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
