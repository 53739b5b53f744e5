"""Low-rank adapters."""

import dataclasses
import fnmatch

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS, has_adapters
from t5x_like.nn.lora import add_adapters
from t5x_like.slots import PositiveInt
from t5x_like.tunings import BaseTuning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(BaseTuning):
  """Train adapters on frozen kernels (Hu et al. 2021); see `nn/lora.py`.

  Attributes:
    rank: rank of the adapters.
    alpha: an adapter's output is scaled by alpha / rank, so that one learning rate suits many
      ranks.
    targets: patterns of the kernels that get an adapter: `query`, `value`, `mlp/layer/*`, `*` for
      all but `also`.
    also: patterns of parameters that are trained in full; by default a head for labels, which is
      new, but not the kernel of a language model's head.
  """

  rank: PositiveInt = 8
  alpha: float = 16.0
  targets: tuple[str, ...] = ("query", "value")
  also: tuple[str, ...] = ("head/*/*", "scores/*", "value/*")

  def __post_init__(self):
    if not self.targets:
      raise UserError("config.tuning.targets: found none, expected names of kernels, such as query")

  def trained_names(self, named):
    patterns = [*(f"*/{name}" for name in ADAPTERS), *self.also]
    return [name for name in named if _matches_any(name, patterns)]

  def adapt(self, model, key, values):
    return add_adapters(model, self.targets, self.rank, self.alpha, key, self.also)


def _matches_any(name: str, patterns: list[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def trains_adapters_only(model, tuning: BaseTuning) -> bool:
  """Return whether a model has adapters, and nothing else is trained that its logits depend on.

  The model without its adapters then stays the one that the run began with, and can be the
  reference of an objective.
  """
  trained = tuning.trained_names(params.named_params(model)) if has_adapters(model) else ["all"]
  return all(name.endswith(ADAPTERS) or name.startswith(("scores/", "value/")) for name in trained)
