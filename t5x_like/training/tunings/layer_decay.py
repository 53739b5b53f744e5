"""Lower rates for lower layers."""

import numpy as np

from t5x_like.errors import UserError
from t5x_like.training.tunings import Tuning
from t5x_like.training.tunings._scaled import scaled


def make(*, rate: float = 0.9) -> Tuning:
  """Multiply the learning rate by `rate` for each layer below the top; heads have the schedule's rate, embeddings the
  lowest (Clark et al. 2020, appendix A: 0.9 to 0.6)."""
  if not 0 < rate <= 1:
    raise UserError(f"config.tuning.rate: found {rate}, expected above 0 and at most 1")

  def rates(optimizer, named):
    depth = max((p.shape[0] for p in named.values() if p.axes[:1] == ("layers",)), default=0)
    return scaled(optimizer, {name: _of_depth(name, p, depth, rate) for name, p in named.items()})

  return Tuning(rates=rates)


def _of_depth(name: str, p, depth: int, rate: float) -> np.ndarray | float:
  if name.startswith(("embed/", "inputs/", "decoder_inputs/", "encoder_inputs/")) or "/position/" in name:
    return rate ** (depth + 1)
  if p.axes[:1] != ("layers",):
    return 1.0
  layers = p.shape[0]
  return (rate ** (layers - np.arange(layers, dtype=np.float64))).astype(np.float32)
