"""Measure the memory of a training step with its loss in chunks, and with all logits at once."""

import argparse
import dataclasses
import json

from t5x_like import recipes
from t5x_like.errors import UserError

_OVERRIDES = ("model.layers=scan", "model.remat=full", "model.dropout=0.0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--config", default="configs/t5/base.py:small", help="recipe (default: %(default)s)"
  )
  parser.add_argument(
    "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
  )
  parser.add_argument(
    "--batch", type=int, default=32, help="examples in a step (default: %(default)s)"
  )
  parser.add_argument(
    "--vocabularies",
    type=int,
    nargs="+",
    default=[32_128, 128_256],
    metavar="N",
    help="sizes of the vocabulary (default: %(default)s)",
  )


class _Delegate:
  """Forwards every attribute to another object."""

  def __init__(self, delegate):
    self._delegate = delegate

  def __getattr__(self, name):
    return getattr(self._delegate, name)


class _AllLogits(_Delegate):
  """A model that computes all logits before its objective reads them."""

  def outputs(self, *arguments):
    from t5x_like.nn.vocabulary_logits import materialise_logits

    return materialise_logits(self._delegate.outputs(*arguments))


class _AllLogitsObjective(_Delegate):
  """An objective that reads all logits of its model at once."""

  def __call__(self, model, *arguments):
    return self._delegate(_AllLogits(model), *arguments)


def main(args: argparse.Namespace) -> None:
  """Compile the step, and print a table and the figures.

  Raises:
    UserError: the recipe cannot be used.
  """
  if min(args.batch, *args.vocabularies) < 1:
    raise UserError("--batch, --vocabularies: expected at least 1 each")
  print(
    f"Method: the training step of {args.config} with {' '.join(_OVERRIDES)} is compiled for this "
    "machine and not run: once as it is, once with a loss that reads all logits of the batch at "
    "once. Gigabytes are the compiler's temporaries, without parameters and optimizer state.\n\n"
    "| vocabulary | chunks | all logits | an array of them |\n" + "|---" * 4 + "|",
    flush=True,
  )
  gigabytes = {}
  for vocab in args.vocabularies:
    chunks, all_logits, logits = _measure_vocabulary(args, vocab)
    gigabytes[vocab] = {"chunks": chunks, "all_logits": all_logits, "logits": logits}
    print(f"| {vocab:,} | {chunks:.2f} GB | {all_logits:.2f} GB | {logits:.2f} GB |", flush=True)
  print(json.dumps(gigabytes))


def _measure_vocabulary(args: argparse.Namespace, vocab: int) -> tuple[float, float, float]:
  """Return gigabytes of temporaries with chunks, of temporaries with all logits, and of all logits.

  The last is the size of a float32 array of all logits.
  """
  import jax

  from t5x_like.planning import steps
  from t5x_like.training.build import build_parts

  changes = [*_OVERRIDES, *args.set, f"batch_size={args.batch}", f"model.vocab_size={vocab}"]
  config, task = steps.resolve(recipes.load(args.config, changes), jax.default_backend(), None)
  parts = build_parts(config)
  temporaries = []
  for objective in (parts.objective, _AllLogitsObjective(parts.objective)):
    step = steps.make("train", config, dataclasses.replace(parts, objective=objective), task)
    temporaries.append(step.lower().compile().memory_analysis().temp_size_in_bytes / 1e9)
  tokens = max(x.size for name, x in step.batch.items() if name.endswith("target_tokens"))
  return (*temporaries, 4 * tokens * vocab / 1e9)
