"""LAMB: AdamW with updates as long as their tensors."""

from typing import Unpack

import optax

from t5x_like.slots import NonNegativeFloat, Rate
from t5x_like.training.optimizer import Decay, at_rate
from t5x_like.training.schedule import Schedule


def make(
  schedule: Schedule,
  *,
  b1: Rate = 0.9,
  b2: Rate = 0.999,
  eps: NonNegativeFloat = 1e-6,
  **decay: Unpack[Decay],
) -> optax.GradientTransformation:
  """LAMB (You et al. 2020, algorithm 2): AdamW, with the update of each tensor as long as the
  tensor times the rate.

  Tensors that do not decay keep AdamW's updates, as in the code of ALBERT and in Apex, with which
  DeiT III was trained.
  """
  adam = optax.scale_by_adam(b1, b2, eps)
  decayed = Decay(**decay)
  ratio = optax.masked(optax.scale_by_trust_ratio(), decayed.mask)
  return optax.chain(adam, decayed.transformation(), ratio, at_rate(schedule))
