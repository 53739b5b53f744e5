"""Lower rates for lower layers."""

import re

import numpy as np

from t5x_like.errors import UserError
from t5x_like.training.tunings import Tuning
from t5x_like.training.tunings._scaled import scale_updates

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
_TURN = re.compile(r"blocks/\w+?_(\d+)/")

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

  def rates(optimizer, named):
    return scale_updates(
      optimizer, {name: rate**below for name, below in layers_below_heads(named).items()}
    )

  return Tuning(scale_rates=rates)


def layers_below_heads(named: dict) -> dict[str, np.ndarray | float]:
  """Return the layers from every parameter up to the heads: 1 from the last layer, 0 from a head.

  Args:
    named: objects with `.shape` and `.axes`, by name.
  Returns:
    By name, a number, or float32 [L] for a parameter with a leading axis of layers.
  """
  runs = {name: run for name in named if not _HEADS & set(name.split("/")) and (run := _run(name))}
  if len({trunk for trunk, _ in runs.values()}) > 1:  # a network below others is their input
    runs = {name: run for name, run in runs.items() if run[0] != (_BACKBONE, "")}
  periods = {}
  layers = {}
  for name, run in runs.items():
    periods[run] = max(periods.get(run, 1), _turn(name) + 1)
  for name, run in runs.items():
    merging = "/entry/" in name and not any(
      "/mlp/" in other for other, its in runs.items() if its == run
    )
    layers[run] = _repeats(named[name]) * periods[run] if not merging else 0
  starts = {}
  depths = {}
  for trunk, place in sorted(layers):
    starts[trunk, place] = depths.get(trunk, 0)
    depths[trunk] = depths.get(trunk, 0) + layers[trunk, place]

  def below(name: str, p) -> np.ndarray | float:
    if run := runs.get(name):
      each = np.arange(_repeats(p), dtype=np.float32) * periods[run] + _turn(name) + starts[run]
      found = depths[run[0]] - each
      return found if p.axes[:1] == ("layers",) else float(found[0])
    parts = set(name.split("/"))
    inside = max((tower for tower, _ in depths if name.startswith(tower)), key=len, default="")
    depth = max(
      (n for (tower, _), n in depths.items() if tower == inside),
      default=max(depths.values(), default=0),
    )
    return (
      0.0 if _HEADS & parts else depth + 1.0 if _INPUTS & parts else float(bool(_NORMS & parts))
    )

  return {name: below(name, p) for name, p in named.items()}


def _run(name: str) -> tuple[Trunk, Place] | None:
  """Return the trunk of a parameter and the place in it, None for a parameter outside all
  layers."""
  found = _RUN.match(name)
  if found is None:
    return None
  if found["stack"]:
    return (found["tower"], found["stack"]), (0, 0, 0)
  if found["convolution"]:
    return (found["tower"], ""), (0, int(found["convolution"]), 0)
  if found["merge"] or found["block"]:
    stage, block = (
      (found["convolved"], found["block"]) if found["block"] else (int(found["merge"]) + 1, 0)
    )
    return (found["tower"], ""), (1, int(stage), int(block))
  stage = int(found["stage"] or {"third": 3, "fourth": 4}[found["word"]])
  return (found["tower"], ""), (1, stage, int(bool(found["stacked"])))


def _turn(name: str) -> int:
  """Return the number of a layer in its period."""
  found = _TURN.search(name)
  return int(found[1]) if found else 0


def _repeats(p) -> int:
  return p.shape[0] if p.axes[:1] == ("layers",) else 1
