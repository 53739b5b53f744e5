"""Check a parametrization by the change of its activations in a few steps, at several widths.

Examples:
  python -m tools.coordinates --config=configs/gpt/my_text.py --widths=32,64,128,256 \\
      --config.optimizer.name=adamw
  python -m tools.coordinates --config=configs/gpt/my_text.py --widths=32,64,128,256 \\
      --config.optimizer.name=adamw \\
    --config.tuning.name=mup --config.tuning.base=32 --output=mup.json

Every width trains --steps steps at one rate. The table has, for every layer and width, the mean
absolute change of the activations of the first batch, and the exponent with which it grows with the
width. Under muP all exponents are near 0 (Yang et al. 2021, appendix D.1); with a standard
parametrization some are larger, and the best rate falls with the width.
"""

import copy
import json
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

import t5x_like.models
from t5x_like import command_line, recipes, slots
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.nn import params
from t5x_like.nn.block import Residual

from .ladder import sizes


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.coordinates")
  parser.add_argument(
    "--config", required=True, metavar="RECIPE", help="its sizes give the proportions"
  )
  parser.add_argument(
    "--widths", required=True, metavar="LIST", help=f"two or more sizes: {sizes.HELP}"
  )
  parser.add_argument("--steps", type=int, default=4, metavar="N", help="of training (default: 4)")
  parser.add_argument(
    "--rate", type=float, metavar="X", help="constant (default: the schedule's learning_rate)"
  )
  parser.add_argument(
    "--seeds", type=int, default=1, metavar="N", help="runs of each width, averaged (default: 1)"
  )
  parser.add_argument("--output", metavar="FILE", help="the table as JSON")
  args, overrides = parser.parse(argv)
  if args.steps < 1 or args.seeds < 1:
    raise UserError("--steps and --seeds: expected 1 or more")
  config = recipes.load(args.config, overrides)
  rate = args.rate if args.rate is not None else config.schedule.get("learning_rate")
  if not rate or rate <= 0:
    raise UserError(
      f"--rate: found {rate}, expected a positive number; the schedule has no learning_rate"
    )
  widths = sizes.parse_list(args.widths, "--widths", str, 2)
  output = outputs.OutputFile(args.output) if args.output else None
  configs = [prepare_config(sizes.at_size(config, width, "--widths"), rate) for width in widths]

  from t5x_like.runtime import process

  process.prepare()
  measurements = [
    _average_over_seeds(width_config, args.steps, args.seeds) for width_config in configs
  ]
  names = [
    name for name in measurements[0][1] if all(name in changes for _, changes in measurements)
  ]
  changes = {name: [values[name] for _, values in measurements] for name in names}
  growth = {
    name: exponent([width for width, _ in measurements], values) for name, values in changes.items()
  }
  print(table(widths, changes, growth), flush=True)
  steepest = max(growth, key=lambda name: abs(growth[name]))
  print(f"the steepest: {steepest}, with the width to the power of {growth[steepest]:+.2f}")
  if output:
    content = {"widths": [width for width, _ in measurements], "steps": args.steps, "rate": rate}
    output.write([json.dumps(content | {"changes": changes, "exponents": growth}, indent=1) + "\n"])


def prepare_config(config: ConfigDict, rate: float) -> ConfigDict:
  """Return the config with a constant rate, without dropout, with its layers in a Python loop."""
  with config.unlocked(), config.model.unlocked(), config.model.ignore_type():
    config.schedule = {"name": "constant", "learning_rate": rate}
    config.evals = {}
    config.selection = {}
    config.phases = {}
    config.trackers = {}
    config.peak_flops = 1.0  # unused, and not measured
    plain_arguments = {"layers": "loop", "remat": "none", "dropout": 0.0, "drop_path": 0.0}
    parameters = slots.argument_names(
      slots.find("config.model.name", config.model.get("name"), t5x_like.models, "Model")
    )
    config.model.update({key: value for key, value in plain_arguments.items() if key in parameters})
  return config


def exponent(widths: list[int], values: list[float]) -> float:
  """Return the slope of the logarithm of values over the logarithm of widths, by least squares."""
  return float(np.polyfit(np.log(widths), np.log(np.maximum(values, 1e-30)), 1)[0])


def table(widths: list[str], changes: dict[str, list[float]], growth: dict[str, float]) -> str:
  """Return the changes as lines of text, a layer each."""
  name_width = max(map(len, changes))
  head = "".join(f"{width:>10}" for width in widths)
  lines = [f"{'change of':{name_width}}{head}  exponent"]
  for name, values in changes.items():
    cells = "".join(f"{value:10.4g}" for value in values)
    lines.append(f"{name:{name_width}}{cells}{growth[name]:+10.2f}")
  return "\n".join(lines)


def _average_over_seeds(config: ConfigDict, steps: int, seeds: int) -> tuple[int, dict[str, float]]:
  """Return (the width, the mean change of every activation over seeds)."""
  runs = []
  for seed in range(seeds):
    config.seed = seed
    width, changes = measure(config, steps)
    runs.append(changes)
  return width, {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


def measure(config: ConfigDict, steps: int) -> tuple[int, dict[str, float]]:
  """Train a config for some steps; return (the width, the mean absolute change by activation)."""
  from t5x_like.parallel.rules import from_local_rows, local_rows
  from t5x_like.training import phases
  from t5x_like.training.build import assemble
  from t5x_like.training.compilation import compile_step
  from t5x_like.training.state import init_state

  with tempfile.TemporaryDirectory() as workdir:
    assembly = assemble(config, workdir)
  config = assembly.config
  parts = assembly.parts
  abstract_batch = parts.rules.abstract_batch(assembly.task.features, config.batch_size)
  step, _ = compile_step(config, parts, abstract_batch)
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  rows = local_rows(parts.rules.batch(), config.batch_size)
  batches = phases.iterate_batches(assembly.phases, 0, rows)
  read = jax.jit(lambda arrays, batch: activations(parts, arrays, batch))
  first_batch = before = None
  for _ in range(steps):
    batch = from_local_rows(parts.rules.batch(), rows, next(batches), config.batch_size)
    if first_batch is None:
      first_batch = batch
      before = read(state.params, batch)
    state, _ = step(state, batch)
  after = read(state.params, first_batch)
  changes = {name: float(jnp.mean(jnp.abs(after[name] - x))) for name, x in before.items()}
  return parts.model.variant.dims.embed, changes


def activations(parts, arrays, batch) -> dict[str, jax.Array]:
  """Return the float32 stream after every sublayer, as `decoder 0 mlp`, and the logits."""
  recorded: dict[str, jax.Array] = {}
  model = _record_residuals(params.with_arrays(parts.model, arrays), recorded)
  with parts.rules.activate():
    outputs = model(parts.objective.model_rows(batch))
  logits = {name: x for name, x in outputs.items() if name.endswith("logits")}
  return {name: x.astype(jnp.float32) for name, x in (recorded | logits).items()}


class _RecordedResidual(nnx.Module):
  """A residual sublayer that also records its output at every call."""

  def __init__(self, layer: Residual, note):
    self.layer = layer
    self.note = note

  def __call__(self, *args):
    out = self.layer(*args)
    self.note(out[0])
    return out


def _record_residuals(
  module: nnx.Module, recorded: dict[str, jax.Array], path: tuple[str, ...] = ()
) -> nnx.Module:
  """Return a copy of a module whose residual sublayers store their outputs in `recorded`."""
  module = copy.copy(module)
  for name, child in list(vars(module).items()):
    if isinstance(child, Residual):
      parts = [part for part in path if part != "blocks"]
      setattr(module, name, _RecordedResidual(child, _recorder(recorded, parts, name)))
    elif isinstance(child, nnx.Module):
      setattr(module, name, _record_residuals(child, recorded, (*path, name)))
  return module


def _recorder(recorded: dict[str, jax.Array], path: list[str], name: str):
  """Return a function that stores an output by its path, the number of the layer and its name."""

  def note(x: jax.Array) -> None:
    layer = sum(
      key.startswith(" ".join([*path, ""])) and key.endswith(f" {name}") for key in recorded
    )
    recorded[" ".join([*path, str(layer), name])] = x

  return note


if __name__ == "__main__":
  sys.exit(main())
