"""Lower rates for lower layers."""

import re

import numpy as np

from t5x_like.errors import UserError
from t5x_like.tunings import Tuning
from t5x_like.tunings._scaled import scale_updates

_HEADS = {"head", "scores", "projection"}
_INPUTS = {
  "embed",
  "inputs",
  "encoder_inputs",
  "decoder_inputs",
  "patches",
  "tokens",
  "position",
  "backbone",
}
_INPUTS |= {"registers", "first", "first_norm", "second"}  # the convolutions before the first stage
_NORMS = {"final_norm", "norm", "decoder_norm"}
_RUN = re.compile(
  r"(?P<tower>.*?)"
  r"(?:convolutions/(?P<convolution>\d+)/|(?:stage_(?P<stage>\d+)|(?P<word>third|fourth))/(?P<stacked>stack/blocks/)?"
  r"|(?P<stack>\w+)/blocks/|stages/(?P<convolved>\d+)/(?P<block>\d+)/|merge(?:s|_norms)/(?P<merge>\d+)/)"
)
_BACKBONE = "backbone/"  # of convolutions
_PERIOD_INDEX = re.compile(r"blocks/\w+?_(\d+)/")

Trunk = tuple[str, str]  # the tower, such as "image/", and the stack in it, "" for stages
# in the trunk: after the convolutions, the stage, the block or after its first one
Place = tuple[int, int, int]


def make(*, rate: float = 0.9) -> Tuning:
  """Multiply the learning rate by `rate` for each layer below the heads, which have the schedule's.

  Embeddings, patches, class tokens, registers and positions have the lowest (Clark et al. 2020,
  appendix A: 0.9 to 0.6; He et al. 2022: 0.75).

  Layers are counted through all stages of a model. A norm after the last layer has that layer's
  rate; the merging of patches before a stage has its first layer's.
  """
  if not 0 < rate <= 1:
    raise UserError(f"config.tuning.rate: found {rate}, expected above 0 and at most 1")

  def scale_rates(optimizer, named):
    scales = {name: rate**below for name, below in layers_below_heads(named).items()}
    return scale_updates(optimizer, scales)

  return Tuning(scale_rates=scale_rates)


def layers_below_heads(named: dict) -> dict[str, np.ndarray | float]:
  """Return the layers from every parameter up to the heads: 1 from the last layer, 0 from a head.

  Args:
    named: objects with `.shape` and `.axes`, by name.
  Returns:
    By name, a number, or float32 [L] for a parameter with a leading axis of layers.
  """
  runs = {
    name: run for name in named if not _HEADS & set(name.split("/")) and (run := _find_run(name))
  }
  if len({trunk for trunk, _ in runs.values()}) > 1:  # a network below others is their input
    runs = {name: run for name, run in runs.items() if run[0] != (_BACKBONE, "")}
  periods = {}
  layers = {}
  for name, run in runs.items():
    periods[run] = max(periods.get(run, 1), _index_in_period(name) + 1)
  for name, run in runs.items():
    merging = "/entry/" in name and not any(
      "/mlp/" in other_name for other_name, other_run in runs.items() if other_run == run
    )
    layers[run] = _repeats(named[name]) * periods[run] if not merging else 0
  starts = {}
  depths = {}
  for trunk, place in sorted(layers):
    starts[trunk, place] = depths.get(trunk, 0)
    depths[trunk] = depths.get(trunk, 0) + layers[trunk, place]

  def below(name: str, p) -> np.ndarray | float:
    if run := runs.get(name):
      layer_numbers = (
        np.arange(_repeats(p), dtype=np.float32) * periods[run]
        + _index_in_period(name)
        + starts[run]
      )
      layers_below = depths[run[0]] - layer_numbers
      return layers_below if p.axes[:1] == ("layers",) else float(layers_below[0])
    parts = set(name.split("/"))
    enclosing_tower = max(
      (tower for tower, _ in depths if name.startswith(tower)), key=len, default=""
    )
    depth = max(
      (n for (tower, _), n in depths.items() if tower == enclosing_tower),
      default=max(depths.values(), default=0),
    )
    if _HEADS & parts:
      return 0.0
    if _INPUTS & parts:
      return depth + 1.0
    return 1.0 if _NORMS & parts else 0.0

  return {name: below(name, p) for name, p in named.items()}


def _find_run(name: str) -> tuple[Trunk, Place] | None:
  """Return the trunk of a parameter and its place there; None outside all layers."""
  match = _RUN.match(name)
  if match is None:
    return None
  if match["stack"]:
    return (match["tower"], match["stack"]), (0, 0, 0)
  if match["convolution"]:
    return (match["tower"], ""), (0, int(match["convolution"]), 0)
  if match["merge"] or match["block"]:
    stage, block = (
      (match["convolved"], match["block"]) if match["block"] else (int(match["merge"]) + 1, 0)
    )
    return (match["tower"], ""), (1, int(stage), int(block))
  stage = int(match["stage"] or {"third": 3, "fourth": 4}[match["word"]])
  return (match["tower"], ""), (1, stage, int(bool(match["stacked"])))


def _index_in_period(name: str) -> int:
  """Return the number of a layer in its period."""
  match = _PERIOD_INDEX.search(name)
  return int(match[1]) if match else 0


def _repeats(p) -> int:
  return p.shape[0] if p.axes[:1] == ("layers",) else 1
