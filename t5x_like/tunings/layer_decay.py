"""`layer_decay`: learning rates that decrease by a factor from each layer to the one below."""

import dataclasses
import re

import numpy as np

from t5x_like.errors import UserError
from t5x_like.tunings import BaseTuning
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
# The beginning of the name of a parameter in a layer: the tower, then one of the forms below.
_RUN = re.compile(
  r"(?P<tower>.*?)"
  r"(?:convolutions/(?P<convolution>\d+)/"
  r"|(?:stage_(?P<stage>\d+)|(?P<word>third|fourth))/(?P<stacked>stack/blocks/)?"
  r"|(?P<stack>\w+)/blocks/"
  r"|stages/(?P<convolved>\d+)/(?P<block>\d+)/"
  r"|merge(?:s|_norms)/(?P<merge>\d+)/)"
)
_STAGE_WORDS = {"third": 3, "fourth": 4}
_BACKBONE = "backbone/"  # the tower of a convolutional network below a Transformer
_PERIOD_INDEX = re.compile(r"blocks/\w+?_(\d+)/")

# The tower, such as "image/", and the name of the stack in it, "" for stages.
Trunk = tuple[str, str]
# The position in the trunk: 0 for convolutions and 1 after them; the number of the convolution or
# stage; the number of the block, or whether it follows the first block. They sort as layers do.
Position = tuple[int, int, int]
# Layers that are counted together, such as a stack.
Run = tuple[Trunk, Position]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(BaseTuning):
  """Multiply the learning rate by `rate` for each layer below the heads.

  Heads have the learning rate of the schedule. Embeddings, patches, class tokens, registers and
  positions have the lowest rate (Clark et al. 2020, appendix A: 0.9 to 0.6; He et al. 2022: 0.75).

  Layers are counted through all stages of a model. A norm after the last layer has that layer's
  rate; the merging of patches before a stage has its first layer's.

  Attributes:
    rate: the factor from each layer to the one below.
  """

  rate: float = 0.9

  def __post_init__(self):
    if not 0 < self.rate <= 1:
      raise UserError(f"config.tuning.rate: found {self.rate}, expected above 0 and at most 1")

  def scale_rates(self, optimizer, named):
    scales = {name: self.rate**below for name, below in layers_below_heads(named).items()}
    return scale_updates(optimizer, scales)


def layers_below_heads(named: dict) -> dict[str, np.ndarray | float]:
  """Return the layers from every parameter up to the heads: 1 from the last layer, 0 from a head.

  Args:
    named: objects with `.shape` and `.axes`, by name.
  Returns:
    By name, a number, or float32 [L] for a parameter with a leading axis of layers.
  """
  runs = _find_runs(named)
  periods = {}
  for name, run in runs.items():
    periods[run] = max(periods.get(run, 1), _index_in_period(name) + 1)
  num_layers = _count_layers(named, runs, periods)
  starts = {}  # the number of layers before each run in its trunk
  depths = {}  # the number of layers of each trunk
  for trunk, position in sorted(num_layers):
    starts[trunk, position] = depths.get(trunk, 0)
    depths[trunk] = depths.get(trunk, 0) + num_layers[trunk, position]

  layers_below = {}
  for name, p in named.items():
    run = runs.get(name)
    if run is None:
      layers_below[name] = _below_heads_outside_layers(name, depths)
      continue
    repeats = np.arange(_repeats(p), dtype=np.float32)
    layer_numbers = repeats * periods[run] + _index_in_period(name) + starts[run]
    below_L = depths[run[0]] - layer_numbers
    layers_below[name] = below_L if _is_stacked(p) else float(below_L[0])
  return layers_below


def _find_runs(named: dict) -> dict[str, Run]:
  """Return the run of each parameter that is in a layer."""
  runs = {}
  for name in named:
    run = _find_run(name)
    if run is not None and not _HEADS & set(name.split("/")):
      runs[name] = run
  if len({trunk for trunk, _ in runs.values()}) > 1:
    # A convolutional network below other layers counts as their input.
    runs = {name: run for name, run in runs.items() if run[0] != (_BACKBONE, "")}
  return runs


def _count_layers(named: dict, runs: dict[str, Run], periods: dict[Run, int]) -> dict[Run, int]:
  """Return the number of layers of each run."""
  runs_with_mlp = {run for name, run in runs.items() if "/mlp/" in name}
  num_layers = {}
  for name, run in runs.items():
    only_merges_patches = "/entry/" in name and run not in runs_with_mlp
    num_layers[run] = 0 if only_merges_patches else _repeats(named[name]) * periods[run]
  return num_layers


def _below_heads_outside_layers(name: str, depths: dict[Trunk, int]) -> float:
  """Return the layers up to the heads from a parameter that is in no layer."""
  parts = set(name.split("/"))
  if _HEADS & parts:
    return 0.0
  if _INPUTS & parts:
    return _depth_of_tower(name, depths) + 1.0
  if _NORMS & parts:
    return 1.0
  return 0.0


def _depth_of_tower(name: str, depths: dict[Trunk, int]) -> int:
  """Return the depth of the deepest trunk in the innermost tower that contains a parameter."""
  towers = [tower for tower, _ in depths if name.startswith(tower)]
  innermost = max(towers, key=len, default="")
  tower_depths = [depth for (tower, _), depth in depths.items() if tower == innermost]
  return max(tower_depths or depths.values(), default=0)


def _find_run(name: str) -> Run | None:
  """Return the run that a parameter belongs to; None outside all layers."""
  match = _RUN.match(name)
  if match is None:
    return None
  tower = match["tower"]
  if match["stack"]:
    return (tower, match["stack"]), (0, 0, 0)
  stages = (tower, "")
  if match["convolution"]:
    return stages, (0, int(match["convolution"]), 0)
  if match["block"]:
    return stages, (1, int(match["convolved"]), int(match["block"]))
  if match["merge"]:
    return stages, (1, int(match["merge"]) + 1, 0)
  stage = int(match["stage"]) if match["stage"] else _STAGE_WORDS[match["word"]]
  follows_first_block = 1 if match["stacked"] else 0
  return stages, (1, stage, follows_first_block)


def _index_in_period(name: str) -> int:
  """Return the index of a layer in the period of layers that the stack repeats."""
  match = _PERIOD_INDEX.search(name)
  return int(match[1]) if match else 0


def _repeats(p) -> int:
  """Return how many layers a parameter holds."""
  return p.shape[0] if _is_stacked(p) else 1


def _is_stacked(p) -> bool:
  """Return whether the leading axis of a parameter is the layers axis."""
  return p.axes[:1] == ("layers",)
