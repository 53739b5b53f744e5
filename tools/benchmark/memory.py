"""`python -m tools.benchmark memory`: memory of a step with its loss in chunks, and with an array
of all logits."""

import argparse
import dataclasses
import json

from t5x_like import recipes
from t5x_like.errors import UserError

_OVERRIDES = ("model.layers=scan", "model.remat=full", "model.dropout=0.0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--config", default="configs/t5/base.py:small", help="a recipe (default: %(default)s)"
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
    help="sizes (default: %(default)s)",
  )


class _Delegate:
  """Pass every attribute on to `of`."""

  def __init__(self, of):
    self._of = of

  def __getattr__(self, name):
    return getattr(self._of, name)


class _AllLogits(_Delegate):
  """A model whose logits are computed before the objective sees them."""

  def outputs(self, *arguments):
    from t5x_like.nn.vocabulary_logits import materialise_logits

    return materialise_logits(self._of.outputs(*arguments))


class _OfAllLogits(_Delegate):
  """An objective of such a model."""

  def __call__(self, model, *arguments):
    return self._of(_AllLogits(model), *arguments)


def main(args: argparse.Namespace) -> None:
  """Compile, and print a table and the figures; raise UserError for a recipe that cannot be
  used."""
  if min(args.batch, *args.vocabularies) < 1:
    raise UserError("--batch, --vocabularies: expected at least 1 each")
  print(
    f"Method: the training step of {args.config} with {' '.join(_OVERRIDES)} is compiled for this "
    "machine, not run: as"
    " it is, and with a loss that gets all logits of the batch at once. Gigabytes are "
    "temporaries, as the compiler"
    " counts them: neither parameters nor the optimizer's state.\n\n"
    "| vocabulary | chunks | all logits | an array of them |\n" + "|---" * 4 + "|",
    flush=True,
  )
  gigabytes = {}
  for vocab in args.vocabularies:
    chunks, all_logits, logits = gigabytes[vocab] = _measure_vocabulary(args, vocab)
    print(f"| {vocab:,} | {chunks:.2f} GB | {all_logits:.2f} GB | {logits:.2f} GB |", flush=True)
  print(
    json.dumps(
      {
        vocab: dict(zip(("chunks", "all_logits", "logits"), row))
        for vocab, row in gigabytes.items()
      }
    )
  )


def _measure_vocabulary(args: argparse.Namespace, vocab: int) -> tuple[float, float, float]:
  """Return gigabytes of temporaries with chunks and with all logits, and of one float32 array of
  all logits."""
  import jax

  from t5x_like.planning import steps
  from t5x_like.training.build import build_parts

  changes = [*_OVERRIDES, *args.set, f"batch_size={args.batch}", f"model.vocab_size={vocab}"]
  config, task = steps.resolve(recipes.load(args.config, changes), jax.default_backend(), None)
  parts = build_parts(config)
  temporaries = []
  for objective in (parts.objective, _OfAllLogits(parts.objective)):
    step = steps.make("train", config, dataclasses.replace(parts, objective=objective), task)
    temporaries.append(step.lower().compile().memory_analysis().temp_size_in_bytes / 1e9)
  tokens = max(x.size for name, x in step.batch.items() if name.endswith("target_tokens"))
  return (*temporaries, 4 * tokens * vocab / 1e9)
