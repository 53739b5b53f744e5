"""PaLM's Adafactor (Chowdhery et al. 2022, section 5): whole second moments and relative steps."""

import dataclasses

import optax

from t5x_like.slots import NonNegativeFloat, PositiveFloat, Rate
from t5x_like.training.optimizer import OptimizerArguments, at_rate, decay_mask
from t5x_like.training.schedule import Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(OptimizerArguments):
  """The arguments of PaLM's Adafactor, with momentum and steps relative to the size of a tensor.

  Attributes:
    decay_rate: the second moment of update t (from 1) decays by `1 - t**-decay_rate`.
    momentum: decay of the average of updates.
    clipping_threshold: root mean square above which an update is scaled down, as in `adafactor`;
      None for no clipping.
    decay_power: a step subtracts the share `rate**decay_power` of each matrix; None for none.
  """

  decay_rate: PositiveFloat = 0.8
  momentum: Rate = 0.9
  clipping_threshold: PositiveFloat | None = None
  decay_power: NonNegativeFloat | None = 2.0

  def build(self, schedule):
    moments = optax.scale_by_factored_rms(factored=False, decay_rate=self.decay_rate)
    clip = optax.identity()
    if self.clipping_threshold:
      clip = optax.clip_by_block_rms(self.clipping_threshold)
    average = optax.chain(optax.scale(1.0 - self.momentum), optax.trace(self.momentum))
    sizes = optax.scale_by_param_block_rms()
    decay = optax.identity()
    if self.decay_power is not None:
      decay = _decay_schedule(schedule, self.decay_power)
    return optax.chain(moments, clip, sizes, at_rate(schedule), average, decay)


def _decay_schedule(schedule: Schedule, power: float) -> optax.GradientTransformationExtraArgs:
  def update(updates, state, params, *, step, **_):
    share = schedule(step) ** power
    decays = decay_mask(params)
    decayed_updates = {}
    for name, u in updates.items():
      decayed_updates[name] = u - share * params[name] if decays[name] else u
    return decayed_updates, state

  return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
