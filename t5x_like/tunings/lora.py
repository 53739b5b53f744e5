"""Low-rank adapters."""

import fnmatch

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import ADAPTERS, has_adapters
from t5x_like.nn.lora import add_adapters
from t5x_like.slots import PositiveInt
from t5x_like.tunings import Tuning


def make(
  *,
  rank: PositiveInt = 8,
  alpha: float = 16.0,
  targets: tuple[str, ...] = ("query", "value"),
  also: tuple[str, ...] = ("head/*/*", "scores/*", "value/*"),
) -> Tuning:
  """Train adapters on frozen kernels (Hu et al. 2021); see `nn/lora.py`.

  Args:
    rank: of the adapters.
    alpha: their output is scaled by alpha / rank, so that one learning rate suits many ranks.
    targets: patterns of the kernels that get one: `query`, `value`, `mlp/layer/*`, `*` for all but
      `also`.
    also: patterns of parameters that are trained in full; by default of a head for labels, which is
      new, but not the kernel of a language model's.
  """
  if not targets:
    raise UserError("config.tuning.targets: found none, expected names of kernels, such as query")

  def trained_names(named):
    patterns = [*(f"*/{name}" for name in ADAPTERS), *also]
    return [name for name in named if _matches_any(name, patterns)]

  def adapt(model, key, values):
    return add_adapters(model, targets, rank, alpha, key, also)

  return Tuning(adapt=adapt, trained_names=trained_names)


def _matches_any(name: str, patterns: list[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def trains_adapters_only(model, tuning: Tuning) -> bool:
  """Return whether a model has adapters, and nothing else is trained that its logits depend on.

  The model without its adapters then stays the one that the run began with, and can be the
  reference of an objective.
  """
  trained = tuning.trained_names(params.named_params(model)) if has_adapters(model) else ["all"]
  return all(name.endswith(ADAPTERS) or name.startswith(("scores/", "value/")) for name in trained)
