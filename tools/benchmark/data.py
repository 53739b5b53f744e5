"""Measure the raw tokens per second of the input pipeline (`python -m tools.benchmark data`)."""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time
from typing import Any

import numpy as np

from t5x_like.data import loader, mixture, task
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path
from t5x_like.quiet_tensorflow import tf
from t5x_like.store import ids, writer
from t5x_like.store.tokens import TokenStore
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

_FAR_STEP = 1_000_000_000
_VOCABULARY_SIZE = 32_100
_DOCUMENT_LENGTH = 500
_WARM_UP_BATCHES = 50

# Objective -> description, task and its arguments.
_OBJECTIVES: dict[str, tuple[str, str, dict[str, Any]]] = {
  "span_corruption": ("T5 span corruption", "span_corruption", {"inputs_length": 512}),
  "span_corruption_rolled": (
    "T5 span corruption with noise anywhere",
    "span_corruption",
    {"inputs_length": 512, "random_roll": True},
  ),
  "causal_lm": ("causal language modelling", "causal_lm", {"length": 2048, "documents_end": "any"}),
  "causal_lm_documents": (
    "causal language modelling inside documents",
    "causal_lm",
    {"length": 2048, "document_mask": True, "documents_end": "any"},
  ),
  "prefix_lm": ("prefix language modelling", "prefix_lm", {"length": 512, "documents_end": "any"}),
  "bert_style": (
    "T5's BERT-style denoising",
    "denoising",
    {"style": "bert_style", "inputs_length": 512},
  ),
  "replace_spans": (
    "T5's replaced spans",
    "denoising",
    {"style": "replace_spans", "inputs_length": 512},
  ),
  "drop_tokens": (
    "T5's dropped tokens",
    "denoising",
    {"style": "drop_tokens", "inputs_length": 512},
  ),
  "deshuffling": ("T5's deshuffling", "denoising", {"style": "deshuffling", "inputs_length": 512}),
  "mlm": ("masked language modelling of full sentences", "mlm", {"length": 512}),
  "mlm_words": (
    "masked language modelling of whole words",
    "mlm",
    {"length": 512, "masking": "words"},
  ),
  "mlm_spans": (
    "SpanBERT's spans",
    "mlm",
    {"length": 512, "input_format": "doc_sentences", "masking": "spans"},
  ),
  "nsp": ("BERT's segment pairs", "mlm", {"length": 512, "input_format": "segment_pair"}),
  "electra": ("ELECTRA's rows", "mlm", {"length": 512, "mask_share": 1.0, "random_share": 0.0}),
  "bart": ("BART's text infilling and sentence permutation", "bart", {"length": 512}),
  "ul2": ("UL2's seven denoisers", "ul2", {"length": 512}),
}
# The parts of --objective=mixture, drawn equally often: task and arguments by label.
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
  "span_3": ("span_corruption", {"inputs_length": 512}),
  "span_8": ("span_corruption", {"inputs_length": 512, "mean_noise_span_length": 8.0}),
  "prefix_lm": ("prefix_lm", {"length": 512, "architecture": "encoder_decoder"}),
  "bert_style": ("denoising", {"style": "bert_style", "inputs_length": 512}),
  "replace_spans": ("denoising", {"style": "replace_spans", "inputs_length": 512}),
}
_PERIOD = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--objective",
    default="span_corruption",
    choices=[*_OBJECTIVES, "mixture"],
    help="objective of the pipeline (default: span_corruption); mixture is five of them",
  )
  parser.add_argument(
    "--argument",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="argument of the objective's task, such as inputs_length=1024; repeatable",
  )
  parser.add_argument(
    "--store",
    help="store made by tools.prepare_data (default: a temporary store of random tokens)",
  )
  parser.add_argument("--split", default="train", help="split of --store (default: train)")
  parser.add_argument(
    "--tokens",
    type=int,
    default=100_000_000,
    help="tokens of the synthetic store (default: %(default)s)",
  )
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument(
    "--steps", type=int, default=2000, help="batches measured in each repeat (default: 2000)"
  )
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--start_step", type=int, default=0)


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse a store that cannot be used."""
  if min(args.steps, args.repeats, args.tokens) < 1:
    raise UserError("--steps, --repeats and --tokens: expected at least 1 each")
  with tempfile.TemporaryDirectory() as directory:
    if args.store is None:
      synthetic_store(pathlib.Path(directory, args.split), args.tokens)
    store = args.store or directory
    begin = time.perf_counter()
    if args.objective == "mixture":
      _measure_mixture(args, store)
      return
    description, name, arguments = _OBJECTIVES[args.objective]
    measured_task = task.build(name, args.split, store=store, **arguments | _changes(args.argument))
    _measure(
      args,
      measured_task,
      description,
      _raw_tokens(args, store, measured_task),
      time.perf_counter() - begin,
    )


def _changes(arguments: list[str]) -> dict[str, Any]:
  changes = {}
  for argument in arguments:
    key, equals, text = argument.partition("=")
    if not equals:
      raise UserError(f"--argument={argument}: found no value, expected KEY=VALUE")
    try:
      changes[key] = json.loads(text)
    except ValueError:
      changes[key] = text
  return changes


def _raw_tokens(args: argparse.Namespace, store: str, measured_task: task.Task) -> float:
  """Return the number of the store's tokens that each example of a task reads."""
  tokens = TokenStore.open(os.path.join(store, args.split), verify="size")
  return round(tokens.num_tokens / measured_task.num_examples)


def _measure_rates(
  args: argparse.Namespace, measured_task: task.Task, raw_tokens: float
) -> tuple[list[float], list[float]]:
  """Return raw tokens per second of each repeat, and MB of memory in use before and after each."""
  batches = loader.train_batches(
    measured_task, batch_size=args.batch_size, seed=0, start_step=args.start_step
  )
  for _ in range(_WARM_UP_BATCHES):
    next(batches)
  rates = []
  memory = [_megabytes()]
  for _ in range(args.repeats):
    begin = time.perf_counter()
    for _ in range(args.steps):
      next(batches)
    rates.append(args.steps * args.batch_size * raw_tokens / (time.perf_counter() - begin))
    memory.append(_megabytes())
  return rates, memory


def _megabytes() -> float | None:
  """Return the memory of this process without mapped files, which the page cache can reclaim."""
  try:
    status = pathlib.Path("/proc/self/status").read_text()
  except OSError:
    return None
  _, _, anonymous = status.partition("RssAnon:")
  kilobytes = int(anonymous.split()[0])
  return round(kilobytes / 1e3, 1)


def _measure(
  args: argparse.Namespace,
  measured_task: task.Task,
  description: str,
  raw_tokens: float,
  open_seconds: float,
  **figures: Any,
) -> None:
  """Measure a task's pipeline; print the method and the figures as JSON.

  Args:
    description: the task in words.
    raw_tokens: number of tokens of the store that an example reads.
    open_seconds: seconds that opening the store took.
    figures: further figures to print.
  """
  _first_batch(measured_task, args.batch_size, 0)  # excludes the start-up of TensorFlow
  near_seconds = []
  far_seconds = []
  for _ in range(args.repeats):
    near_seconds.append(_first_batch(measured_task, args.batch_size, 0))
    far_seconds.append(_first_batch(measured_task, args.batch_size, _FAR_STEP))
  load = os.getloadavg()[0]
  rates, memory = _measure_rates(args, measured_task, raw_tokens)
  _print_method(args, measured_task, description, raw_tokens, open_seconds, load)
  median = statistics.median(rates)
  if "weighted_rate" in figures:
    figures["of_weighted_rate"] = round(median / figures["weighted_rate"], 3)
    figures["of_slowest_part"] = round(median / min(figures["parts"].values()), 3)
  print(
    json.dumps(
      {
        "objective": args.objective,
        "raw_tokens_per_second": round(median),
        "raw_tokens_per_second_repeats": [round(rate) for rate in rates],
        "anonymous_megabytes": memory,
        "batches_per_second": round(median / (args.batch_size * raw_tokens), 2),
        "open_seconds_step_0": round(statistics.median(near_seconds), 4),
        "open_seconds_step_1e9": round(statistics.median(far_seconds), 4),
        "store_open_seconds": round(open_seconds, 4),
        **figures,
        "features": {name: list(feature.shape) for name, feature in measured_task.features.items()},
        "window": raw_tokens,
        "batch_size": args.batch_size,
        "steps": args.steps,
        "start_step": args.start_step,
        "cpu_count": os.cpu_count(),
        "load_average": round(load, 2),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "tensorstore": importlib.metadata.version("tensorstore"),
      }
    ),
    flush=True,
  )


def _print_method(
  args: argparse.Namespace,
  measured_task: task.Task,
  description: str,
  raw_tokens: float,
  open_seconds: float,
  load: float,
) -> None:
  """Print how the figures of `_measure` were obtained."""
  store = args.store or f"a synthetic store of {args.tokens:,} random tokens"
  shapes = ", ".join(
    f"{name} {'x'.join(map(str, feature.shape))}"
    for name, feature in measured_task.features.items()
  )
  print(
    f"Method: {description} from {store}, windows of {raw_tokens:g} raw tokens to {shapes}; "
    f"shuffled, batches of {args.batch_size} as numpy arrays on the host, consumed as fast as they "
    f"come by one process. After {_WARM_UP_BATCHES} batches of warm-up, {args.repeats} repeats of "
    f"{args.steps} batches; the figure is the median repeat. Raw tokens are tokens of the store, "
    f"{args.batch_size} * {raw_tokens:g} a batch."
  )
  print(
    f"Opening is the time from the request of a step to its batch, median of {args.repeats}; "
    f"the store itself was opened and checked in {open_seconds:.2f} s."
  )
  print(
    f"Load average when measuring began: {load:.2f} on {os.cpu_count()} cores; the figure "
    "needs idle cores."
  )


def _measure_mixture(args: argparse.Namespace, store: str) -> None:
  """Measure each part alone, then the mixture.

  The rate of the mixture is compared with the rate of parts that alternate without a cost.
  """
  begin = time.perf_counter()
  parts = {
    label: task.build(name, args.split, store=store, **arguments | _changes(args.argument))
    for label, (name, arguments) in _PARTS.items()
  }
  mixed = mixture.mix(parts, dict.fromkeys(parts, 1.0), period=_PERIOD, name="mixture")
  open_seconds = time.perf_counter() - begin
  raw_tokens = {label: _raw_tokens(args, store, part) for label, part in parts.items()}
  rates = {
    label: statistics.median(_measure_rates(args, part, raw_tokens[label])[0])
    for label, part in parts.items()
  }
  mean_tokens = statistics.mean(raw_tokens.values())
  mean_seconds = statistics.mean(raw_tokens[label] / rates[label] for label in parts)
  print(
    "Parts alone, raw tokens a second: "
    + ", ".join(f"{label} {rate:,.0f}" for label, rate in rates.items())
  )
  print(f"Weighted: {mean_tokens / mean_seconds:,.0f} raw tokens a second if mixing cost nothing")
  _measure(
    args,
    mixed,
    f"a mixture of {', '.join(parts)}, equally often,",
    mean_tokens,
    open_seconds,
    parts={label: round(rate) for label, rate in rates.items()},
    weighted_rate=round(mean_tokens / mean_seconds),
  )


def _first_batch(measured_task: task.Task, batch_size: int, step: int) -> float:
  begin = time.perf_counter()
  next(loader.train_batches(measured_task, batch_size=batch_size, seed=0, start_step=step))
  return time.perf_counter() - begin


def synthetic_store(path: pathlib.Path, tokens: int) -> None:
  """Write a store of random bytes in documents of 500, with as many ids as T5's vocabulary."""
  vocabulary = ByteVocabulary(extra_ids=_VOCABULARY_SIZE - ByteVocabulary(extra_ids=0).size)
  generator = np.random.default_rng(0)
  work = as_path(f"{path}.incomplete")
  arrays = [ids.array(vocabulary)]
  shards = []
  for start in range(0, tokens, 10_000_000):
    count = min(10_000_000, tokens - start)
    # Only ids of bytes: span corruption would not mask others, which are not text.
    tokens_N = generator.integers(3, 3 + 256, count, dtype=np.uint16)
    lengths = np.full(-(-count // _DOCUMENT_LENGTH), _DOCUMENT_LENGTH)
    lengths[-1] -= lengths.sum() - count
    shards.append(
      writer.write_shard(work, f"{len(shards):08d}", arrays, {arrays[0].name: (tokens_N, lengths)})
    )
  metadata = writer.build_metadata(
    shards,
    arrays=arrays,
    name="synthetic",
    split=path.name,
    facts=ids.facts(vocabulary, False),
    skipped={},
    source={},
  )
  writer.publish(work, path, metadata, vocabulary)
