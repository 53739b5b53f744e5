"""Measure greedy decoding, against PyTorch if installed (`python -m tools.benchmark decode`)."""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import metadata, util

import numpy as np

from t5x_like import recipes
from t5x_like.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--config", default="configs/t5/base.py:small", help="recipe (default: %(default)s)"
  )
  parser.add_argument(
    "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
  )
  parser.add_argument(
    "--batch", type=int, default=8, help="texts in a batch (default: %(default)s)"
  )
  parser.add_argument(
    "--inputs", type=int, default=64, help="tokens of a text (default: %(default)s)"
  )
  parser.add_argument(
    "--new", type=int, default=64, help="tokens to generate (default: %(default)s)"
  )
  parser.add_argument("--repeats", type=int, default=7, help="timed calls (default: %(default)s)")
  parser.add_argument(
    "--dtypes",
    default="float32,bfloat16",
    help="compute dtypes of both systems, one after another (default: %(default)s)",
  )


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse a recipe whose model generates nothing."""
  if min(args.batch, args.inputs, args.new, args.repeats) < 1:
    raise UserError("--batch, --inputs, --new, --repeats: expected at least 1 each")
  with_torch = all(map(util.find_spec, ("torch", "transformers")))
  dtypes = args.dtypes.split(",")
  threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
  runs: dict[str, Callable[[], np.ndarray]] = {}
  with tempfile.TemporaryDirectory() as folder:
    for dtype in dtypes:
      config = recipes.load(args.config, [f"model.dtype={dtype}", "model.dropout=0.0", *args.set])
      runs[f"t5x_like {dtype}"], tokens = _prepare_t5x_like(
        config, args, folder if with_torch and dtype == dtypes[0] else None
      )
      if with_torch:
        runs[f"pytorch {dtype}"] = _prepare_pytorch(folder, tokens, args, dtype, threads)
    print(
      f"Method: {args.config} with random weights, {args.dtypes}. A batch of {args.batch} texts "
      f"of {args.inputs} random tokens, {args.new} new ones each, decoded greedily with a cache "
      "and without an end token. Seconds are from the call, with the tokens on the host, until the "
      "new tokens are on the host; loading, casting and compiling come before. The "
      f"{args.repeats} repeats of all "
      "systems and dtypes alternate, and medians are compared. PyTorch is transformers' generate "
      f"on the same weights, with its default attention; both use {threads} threads.",
      flush=True,
    )
    # The first call compiles and allocates.
    first_outputs = {name: run() for name, run in runs.items()}
    seconds, cpu_seconds = _time_calls(runs, args.repeats)
  medians = {name: statistics.median(times) for name, times in seconds.items()}
  cpu_medians = {name: statistics.median(times) for name, times in cpu_seconds.items()}
  figures = {
    "tokens_per_second": {name: args.batch * args.new / median for name, median in medians.items()},
    "seconds": medians,
    "processor_seconds": cpu_medians,
    "fastest_seconds": {name: min(times) for name, times in seconds.items()},
    "all_seconds": {name: [round(s, 4) for s in times] for name, times in seconds.items()},
    "threads": threads,
    "load_average": os.getloadavg()[0],
    "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax")},
  }
  for name, median in medians.items():
    print(f"{name:20} {median:7.3f} s, {cpu_medians[name]:7.3f} processor seconds")
  if with_torch:
    figures |= _compare_with_pytorch(medians, cpu_medians, first_outputs, dtypes)
    figures["versions"] |= {name: metadata.version(name) for name in ("torch", "transformers")}
  else:
    print("torch and transformers are not installed (the extra `parity`)")
  print(json.dumps(figures), flush=True)


def _time_calls(
  runs: dict[str, Callable[[], np.ndarray]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
  """Return the wall seconds and the processor seconds of alternating calls."""
  seconds: dict[str, list[float]] = {name: [] for name in runs}
  cpu_seconds: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      start = time.perf_counter()
      cpu_start = time.process_time()
      run()
      seconds[name].append(time.perf_counter() - start)
      cpu_seconds[name].append(time.process_time() - cpu_start)
  return seconds, cpu_seconds


def _compare_with_pytorch(
  medians: dict[str, float],
  cpu_medians: dict[str, float],
  first_outputs: dict[str, np.ndarray],
  dtypes: list[str],
) -> dict[str, dict[str, float]]:
  """Print and return the ratios of both systems' times, and the share of equal tokens."""
  ratios = _ratios(medians)
  cpu_ratios = _ratios(cpu_medians)
  for name, ratio in ratios.items():
    print(
      f"{name}: {ratio:.2f} times as fast ({cpu_ratios[name]:.2f} in processor seconds, which "
      "other programs disturb less)"
    )
  same_tokens = {}
  for dtype in dtypes:
    is_same = first_outputs[f"t5x_like {dtype}"] == first_outputs[f"pytorch {dtype}"]
    same_tokens[dtype] = float(np.mean(is_same))
  shares = ", ".join(f"{dtype} {share:.1%}" for dtype, share in same_tokens.items())
  print(f"the same tokens: {shares}")
  return {
    "times_pytorch": ratios,
    "times_pytorch_by_processor": cpu_ratios,
    "same_tokens": same_tokens,
  }


def _ratios(times: dict[str, float]) -> dict[str, float]:
  """Return the factors by which t5x_like is faster than PyTorch, for each pair of dtypes."""
  ratios = {}
  for name, seconds in times.items():
    system, dtype = name.split()
    if system == "pytorch":
      continue
    for other_name, other_seconds in times.items():
      other_system, other_dtype = other_name.split()
      if other_system == "pytorch":
        ratios[f"{dtype} against PyTorch's {other_dtype}"] = other_seconds / seconds
  return ratios


def _prepare_t5x_like(
  config, args: argparse.Namespace, folder: str | None
) -> tuple[Callable[[], np.ndarray], np.ndarray]:
  """Return a function that decodes a batch with t5x_like, and the batch's tokens.

  Args:
    folder: directory to save the weights into, or None.
  """
  import jax

  from t5x_like.decoding.generate import greedy
  from t5x_like.decoding.unrolled import prepare_for_decoding
  from t5x_like.interop import hf
  from t5x_like.nn import params
  from t5x_like.planning import steps
  from t5x_like.rows import Runner
  from t5x_like.runtime import process
  from t5x_like.training.build import build_parts

  process.prepare()
  config, _ = steps.resolve(config, jax.default_backend(), None)
  parts = build_parts(config)
  if not hasattr(parts.model, "decode"):
    raise UserError(
      f"--config={args.config}: the model is an encoder, which generates nothing; "
      "give another recipe"
    )
  weights = jax.jit(lambda key: params.arrays(parts.make_model(key)))(jax.random.key(0))
  if folder is not None:
    hf.save(params.with_arrays(parts.model, weights), folder)
  tokens = np.random.default_rng(0).integers(
    10, config.model.vocab_size - 200, (args.batch, args.inputs), np.int32
  )
  side = "encoder" if hasattr(parts.model, "encode") else "decoder"

  runner = Runner(parts.model, parts.rules, weights, args.batch).transform(prepare_for_decoding)

  @jax.jit
  def run(arrays, batch):
    with parts.rules.activate():
      return greedy(params.with_arrays(runner.model, arrays), batch, max_length=args.new, eos=())

  return lambda: np.asarray(run(runner.arrays, {f"{side}_input_tokens": tokens})), tokens


def _prepare_pytorch(
  folder: str, tokens: np.ndarray, args: argparse.Namespace, dtype: str, threads: int
) -> Callable[[], np.ndarray]:
  """Return a function that decodes the tokens with transformers and the weights in a folder."""
  import torch
  import transformers

  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  torch.set_num_threads(threads)
  config = transformers.AutoConfig.from_pretrained(folder)
  if config.is_encoder_decoder:
    model_class = transformers.AutoModelForSeq2SeqLM
    prompt_length = 1
  else:
    model_class = transformers.AutoModelForCausalLM
    prompt_length = tokens.shape[1]
  model = model_class.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
  model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
  inputs = torch.tensor(tokens, dtype=torch.long)
  options = dict(
    attention_mask=torch.ones_like(inputs), max_new_tokens=args.new, do_sample=False, pad_token_id=0
  )

  def run() -> np.ndarray:
    with torch.inference_mode():
      outputs = model.generate(inputs, **options).numpy()
    return outputs[:, prompt_length:]

  return run
