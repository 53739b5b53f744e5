"""Measure the training steps for which other systems publish their speed, on one device.

The benchmark builds its models without a recipe or a data set. It needs only jax, flax, optax and
numpy, so a GPU image without TensorFlow is sufficient.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
from typing import Any

from t5x_like.errors import UserError
from t5x_like.files.paths import check_directory
from t5x_like.slots import find

from . import timing

Shapes = dict[str, tuple[tuple[int, ...], str]]


def _decoder(rows: int, length: int) -> Shapes:
  names = ("decoder_input_tokens", "decoder_target_tokens")
  return dict.fromkeys(names, ((rows, length), "int32")) | {
    "decoder_loss_weights": ((rows, length), "float32")
  }


def _encoder_decoder(rows: int, inputs: int, targets: int) -> Shapes:
  return {"encoder_input_tokens": ((rows, inputs), "int32")} | _decoder(rows, targets)


def _encoder(rows: int, length: int) -> Shapes:
  """Return the features of BERT's masked tokens, 15 % of each row, and of its next sentences."""
  names = (
    "encoder_input_tokens",
    "encoder_target_tokens",
    "encoder_token_types",
    "encoder_segment_ids",
  )
  pretraining_features = {
    "encoder_loss_weights": ((rows, length), "float32"),
    "next_sentence_label": ((rows,), "int32"),
  }
  masked = {"encoder_masked_positions": ((rows, length * 15 // 100 + 1), "int32")}
  return dict.fromkeys(names, ((rows, length), "int32")) | pretraining_features | masked


def _images(rows: int, resolution: int) -> Shapes:
  image = {"image": ((rows, resolution, resolution, 3), "float32")}
  return image | {"label": ((rows,), "int32"), "example_weights": ((rows,), "float32")}


@dataclasses.dataclass(frozen=True)
class Mark:
  """A training step with a published speed.

  Attributes:
    family, variant, objective, optimizer: names in `models/`, `objectives/` and `optimizers/`.
    batch: shape and dtype of every feature.
    small: smaller variant and batch, with which the command can be tried on a CPU.
    model: further arguments of the model.
    vocab_size: rows of the token table, if the model has one.
    published: speed of other systems.
  """

  family: str
  variant: str
  objective: str
  optimizer: str
  batch: Shapes
  small: tuple[str, Shapes]
  model: dict[str, Any] = dataclasses.field(default_factory=dict)
  vocab_size: int | None = None
  published: str = ""


MARKS = {
  "decoder of 1.3 B, 2,048": Mark(
    family="gpt",
    variant="gpt3-xl",
    objective="decoder",
    optimizer="adamw",
    batch=_decoder(16, 2048),
    small=("gpt2-micro", _decoder(2, 64)),
    vocab_size=50_304,  # 50,257, rounded up to a multiple of 128
    published="llm.c 1.56 B and nanochat d18 on an H100: 46 to 49 % MFU",
  ),
  "GPT-2 124M, 1,024": Mark(
    family="gpt",
    variant="gpt2",
    objective="decoder",
    optimizer="adamw",
    batch=_decoder(32, 1024),
    small=("gpt2-micro", _decoder(2, 64)),
    vocab_size=50_304,
  ),
  "T5-1.1-large, 512/114": Mark(
    family="t5",
    variant="t5-v1_1-large",
    objective="encoder_decoder",
    optimizer="adafactor",
    batch=_encoder_decoder(64, 512, 114),
    small=("t5-v1_1-micro", _encoder_decoder(2, 64, 16)),
    vocab_size=32_128,
    published="NVIDIA's T5X, 512/128: 158.7 examples/s on an H100 (fp8), 75.8 on an A100",
  ),
  "BERT-large, 512": Mark(
    family="bert",
    variant="bert-large-uncased",
    objective="mlm",
    optimizer="adamw",
    batch=_encoder(64, 512),
    small=("bert-tiny", _encoder(2, 64)),
    model={"head": "pretraining"},
    vocab_size=30_720,
  ),
  "ViT-H/14, 224": Mark(
    family="vit",
    variant="vit-h14",
    objective="classification",
    optimizer="adamw",
    batch=_images(64, 224),
    small=("vit-tiny", _images(2, 32)),
    model={"head": {"name": "image_classification", "labels": 1000}},
  ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument("--only", metavar="TEXT", help="the marks with this in their name")
  parser.add_argument(
    "--small", action="store_true", help="tiny models, to try the command on a CPU"
  )
  parser.add_argument("--steps", type=int, default=20, help="steps to time (default: %(default)s)")
  parser.add_argument(
    "--remat",
    default="minimal",
    help="activations to keep, as config.model.remat (default: %(default)s)",
  )
  parser.add_argument(
    "--quantization", default="none", help="as config.model.design.quantization (default: none)"
  )
  parser.add_argument(
    "--here", action="store_true", help="measure the mark that --only names in this process"
  )
  parser.add_argument(
    "--minutes",
    type=float,
    default=8,
    help="time limit of all marks; later marks are left out (default: 8)",
  )
  kind = functools.partial(check_directory, flag="--output")
  parser.add_argument(
    "--output",
    default="marks",
    type=kind,
    help="directory of figures and traces (default: %(default)s)",
  )


def main(args: argparse.Namespace) -> None:
  """Measure each mark in a separate process and print a table.

  Raises:
    UserError: no mark could be measured.
  """
  chosen = [name for name in MARKS if not args.only or args.only.lower() in name.lower()]
  if not chosen:
    raise UserError(
      f"--only={args.only}: no mark has this in its name; there are {', '.join(MARKS)}"
    )
  if args.steps < 1:
    raise UserError(f"--steps: found {args.steps}, expected at least 1")
  if args.here and len(chosen) > 1:
    raise UserError(f"--here: found {len(chosen)} marks, expected one; name it with --only")
  if args.here:
    return _measure(chosen[0], args)
  print(
    "Method: one training step (forward, backward, optimizer, metrics) as the training loop "
    f"compiles it, on a fixed batch of random numbers, without dropout, remat={args.remat}, "
    f"quantization={args.quantization}. "
    + timing.METHOD.format(warmup=_warmup(args), steps=args.steps)
  )
  end = time.monotonic() + 60 * args.minutes
  figures_by_step = {name: _in_a_process(name, args, end - time.monotonic()) for name in chosen}
  if not any(figures_by_step.values()):
    raise UserError("no step could be measured; the reasons are above")
  print(_table(figures_by_step), flush=True)
  output = pathlib.Path(args.output)
  output.mkdir(parents=True, exist_ok=True)
  (output / "marks.json").write_text(json.dumps(figures_by_step, indent=2) + "\n", encoding="utf-8")
  print(json.dumps(figures_by_step))


def _warmup(args: argparse.Namespace) -> int:
  return 1 if args.small else 3


def _in_a_process(name: str, args: argparse.Namespace, seconds: float) -> dict | None:
  """Measure a mark in a new process and return its figures.

  A process that fails or exceeds `seconds` gives None after its output is printed.
  """
  print(f"\n=== {name}", flush=True)
  if seconds <= 0:
    print("left out: --minutes are over")
    return None
  # JAX takes three quarters of every GPU by default, also of those that it does not use.
  env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92", "CUDA_VISIBLE_DEVICES": "0"} | os.environ
  flags = [
    f"--{flag}={getattr(args, flag)}" for flag in ("steps", "remat", "quantization", "output")
  ]
  if args.small:
    flags.append("--small")
  command = [sys.executable, "-m", __package__, "marks", "--here", f"--only={name}", *flags]
  with tempfile.TemporaryFile("w+") as err:
    try:
      result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=err, text=True, env=env, timeout=seconds
      )
    except subprocess.TimeoutExpired:
      print(f"stopped after {seconds:.0f} s: --minutes are over")
      return None
    print(result.stdout, end="")
    if result.returncode:
      err.seek(0)
      print(f"{err.read()[-3000:]}\nexit code {result.returncode}")
      return None
  return json.loads(result.stdout.splitlines()[-1])


def _measure(name: str, args: argparse.Namespace) -> None:
  """Measure a mark in this process and print its figures, last as a JSON object."""
  import jax

  mark = MARKS[name]
  device = jax.devices()[0]
  variant, shapes = mark.small if args.small else (mark.variant, mark.batch)
  dtype = "float32" if device.platform == "cpu" else "bfloat16"
  design = {"quantization": args.quantization}
  vocabulary = {}
  if mark.vocab_size:
    vocabulary["vocab_size"] = 512 if args.small else mark.vocab_size
  model = (
    mark.model
    | vocabulary
    | {"variant": variant, "dtype": dtype, "remat": args.remat, "design": design}
  )
  parts = _parts(mark, model)
  batch = {
    name: jax.ShapeDtypeStruct(shape, kind, sharding=parts.rules.batch())
    for name, (shape, kind) in shapes.items()
  }

  from t5x_like.nn.cores import describe_cores, record_cores
  from t5x_like.training import compilation, flops
  from t5x_like.training.state import init_state

  start = time.perf_counter()
  with record_cores() as used:
    lowered = compilation.lower_step(
      types.SimpleNamespace(accumulation_steps=1, seed=0), parts, batch
    )
  compiled, _ = compilation.compile_lowered_step(lowered, device)
  seconds = time.perf_counter() - start
  print(f"{variant}, {dtype}, {describe_cores(used)}; compiled in {seconds:.0f} s", flush=True)
  values = {
    name: timing.random_feature(name, x, vocabulary.get("vocab_size", 2))
    for name, x in batch.items()
  }
  values = jax.device_put(values, {name: x.sharding for name, x in batch.items()})
  state = init_state(parts.make_model, parts.optimizer, parts.state, 0)
  flops = flops.step_flops(parts.model, parts.objective, batch)
  folder = pathlib.Path(args.output) / name.partition(",")[0].replace(" ", "_").replace("/", "_")
  options = dict(
    model_flops=flops, dtype=dtype, steps=args.steps, warmup=_warmup(args), trace=str(folder)
  )
  print(
    json.dumps(timing.measure(compiled, state, values, **options) | {"compile_seconds": seconds})
  )


def _parts(mark: Mark, arguments: dict[str, Any]) -> types.SimpleNamespace:
  """Return the parts of `training.build.Parts` that a step needs, on one device."""
  import jax
  from flax import nnx

  import t5x_like.models
  import t5x_like.objectives
  from t5x_like.nn import params
  from t5x_like.parallel.mesh import make_mesh
  from t5x_like.parallel.rules import Rules
  from t5x_like.training.guard import Guard
  from t5x_like.training.optimizer import build_optimizer, update_layerwise
  from t5x_like.training.schedule import SCHEDULES
  from t5x_like.training.state import abstract_state

  family = find("family", mark.family, t5x_like.models, "Model")

  def make_model(key):
    return family(nnx.Rngs(params=key), **arguments)

  model = jax.eval_shape(make_model, jax.random.key(0))
  rules = Rules.make(make_mesh({}, jax.devices()[:1]))
  schedule = SCHEDULES["linear"](learning_rate=1e-4, warmup_steps=10, total_steps=1000)
  axes = {name: p.axes for name, p in params.named_params(model).items()}
  optimizer = update_layerwise(build_optimizer(mark.optimizer, schedule=schedule), axes)
  return types.SimpleNamespace(
    model=model,
    make_model=make_model,
    objective=find("objective", mark.objective, t5x_like.objectives, "Objective")(),
    optimizer=optimizer,
    schedule=schedule,
    rules=rules,
    guard=Guard(),
    trained=None,
    state=abstract_state(model, optimizer, rules),
  )


def _table(figures_by_step: dict[str, dict | None]) -> str:
  """Return the figures as a Markdown table."""
  lines = [
    "| step | s | examples/s | tokens/s | of matmul | MFU | GB | published |",
    "|" + "---|" * 8,
  ]
  for name, figures in figures_by_step.items():
    if figures is None:
      lines.append(f"| {name} | failed |||||| {MARKS[name].published} |")
      continue
    mfu = figures["mfu"]
    memory = figures["peak_gigabytes"]
    tokens = figures["tokens_per_second"]
    cells = [
      f"{figures['seconds_per_step']:.4f}",
      f"{figures['examples_per_second']:.1f}",
      f"{tokens:,.0f}" if tokens else "",
      f"{figures['fraction_of_matmul']:.1%}",
      f"{mfu:.1%}" if mfu else "",
      f"{memory:.1f}" if memory else "",
    ]
    lines.append(f"| {name} | {' | '.join(cells)} | {MARKS[name].published} |")
  return "\n".join(lines)
