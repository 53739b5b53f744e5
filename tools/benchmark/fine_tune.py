"""Measure a fine-tuning step of BERT, against PyTorch if it is installed."""

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np

from t5x_like import recipes
from t5x_like.errors import UserError
from t5x_like.models import bert
from t5x_like.nn.dims import Dims

from . import step

_DIMS = Dims(embed=384, heads=12, kv_heads=12, head_dim=32, mlp=1536, layers=6)  # MiniLM-L6-H384
_UNTIMED_STEPS = 3
_RATE = 3e-5
_DECAY = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--shapes", default="32x64,12x192", help="examples x tokens of a step (default: 32x64,12x192)"
  )
  parser.add_argument("--steps", type=int, default=15, help="steps to time (default: 15)")
  parser.add_argument(
    "--threads", type=int, default=2, help="cores to run on (default: 2, or all if there are fewer)"
  )
  parser.add_argument("--dropout", type=float, default=0.1, help="dropout rate (default: 0.1)")


def _parse_shapes(text: str) -> list[tuple[int, int]]:
  """Return the (examples, tokens) of `32x64,12x192`, or [] if a pair is malformed."""
  shapes = []
  for pair in text.split(","):
    examples, _, tokens = pair.partition("x")
    if not (examples.isdecimal() and tokens.isdecimal() and int(examples) and int(tokens)):
      return []
    shapes.append((int(examples), int(tokens)))
  return shapes


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse shapes or numbers that cannot be used."""
  shapes = _parse_shapes(args.shapes)
  if not shapes or min(args.steps, args.threads) < 1:
    raise UserError(
      "--shapes: expected pairs such as 32x64,12x192, and --steps and --threads of at least 1"
    )
  cores = sorted(os.sched_getaffinity(0))[: args.threads]
  os.sched_setaffinity(0, cores)  # before jax and torch start their threads
  # Threads of torch would otherwise spin while they wait, which counts as processor time.
  os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
  from t5x_like.runtime import process

  process.prepare()
  print(
    "Method: MiniLM-L6-H384 with a classifier of two classes, float32, full rows of random "
    f"tokens, dropout {args.dropout:g}, gradient clipped at 1, AdamW, on {len(cores)} cores in "
    f"one process. Steps of each in turns: {_UNTIMED_STEPS} untimed, then {args.steps}; medians of "
    "the process's CPU seconds and of wall seconds. PyTorch's threads wait without spinning.",
    flush=True,
  )
  peers = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
  if not peers:
    print(
      "torch and transformers are not installed (the extra `parity`), so ours is timed alone",
      flush=True,
    )
  results = {
    f"{batch}x{length}": _compare(args, batch, length, len(cores), bool(peers))
    for batch, length in shapes
  }
  names = ("jax", "jaxlib", *(("torch", "transformers") if peers else ()))
  versions = {name: metadata.version(name) for name in names}
  print(
    json.dumps(
      {
        "shapes": results,
        "cores": len(cores),
        "load_average": os.getloadavg()[0],
        "versions": versions,
      }
    )
  )


def _compare(
  args: argparse.Namespace, batch: int, length: int, threads: int, peers: bool
) -> dict[str, float]:
  """Return the median times of both systems and the ratio of t5x_like's to PyTorch's."""
  runs = {"t5x_like": _prepare_t5x_like(args, batch, length)}
  if peers:
    runs["pytorch"] = _prepare_pytorch(args, batch, length, threads)
  times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
  for number in range(args.steps + _UNTIMED_STEPS):
    for name, run in runs.items():
      wall = time.perf_counter()
      cpu = time.process_time()
      run()
      if number >= _UNTIMED_STEPS:
        times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
  result = {}
  for number, kind in enumerate(("cpu_seconds", "seconds")):
    medians = {
      name: statistics.median(seconds[number] for seconds in measurements)
      for name, measurements in times.items()
    }
    result |= {f"{name}_{kind}": round(value, 4) for name, value in medians.items()}
    if peers:
      result[f"ratio_{kind}"] = round(medians["t5x_like"] / medians["pytorch"], 3)
  summary = (
    f"{batch} x {length}: {result['t5x_like_cpu_seconds']:.3f} CPU s a step, "
    f"{result['t5x_like_seconds']:.3f} s"
  )
  if peers:
    summary += (
      f"; {result['ratio_cpu_seconds']:.2f} of PyTorch's CPU seconds, "
      f"{result['ratio_seconds']:.2f} of its time"
    )
  print(summary, flush=True)
  return result


def _prepare_t5x_like(args: argparse.Namespace, batch: int, length: int) -> Callable[[], None]:
  """Return a function that runs a training step of t5x_like."""
  import jax

  variant = dataclasses.asdict(dataclasses.replace(bert.VARIANTS["bert-base-uncased"], dims=_DIMS))
  changes = [
    f"batch_size={batch}",
    f"task.length={length}",
    f"model.dropout={args.dropout}",
    "model.dtype=float32",
  ]
  changes += ["model.vocab_size=30522", f"model.variant={json.dumps(variant)}"]
  changes += [f"schedule.learning_rate={_RATE}", f"optimizer.weight_decay={_DECAY}"]
  _, compiled, state, arrays, *_ = step._compile(
    recipes.load("configs/finetune/encoder.py:glue/cola", changes), args
  )
  states = [state]

  def run() -> None:
    states[0], metrics = compiled(states[0], arrays)
    jax.block_until_ready((states[0], metrics))

  return run


def _prepare_pytorch(
  args: argparse.Namespace, batch: int, length: int, threads: int
) -> Callable[[], None]:
  """Return a function that runs a training step of PyTorch and transformers."""
  import torch
  import transformers

  torch.set_num_threads(threads)
  sizes = {
    "hidden_size": _DIMS.embed,
    "num_hidden_layers": _DIMS.layers,
    "intermediate_size": _DIMS.mlp,
  }
  rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), args.dropout)
  config = transformers.BertConfig(**sizes, **rates, num_attention_heads=_DIMS.heads, num_labels=2)
  model = transformers.BertForSequenceClassification(config).train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY)
  tokens = torch.tensor(np.random.default_rng(0).integers(1, config.vocab_size, (batch, length)))
  inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
  labels = torch.zeros(batch, dtype=torch.long)

  def run() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(**inputs, labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  return run
