"""Convert a checkpoint of T5X into a workdir that continues its training.

Examples:
  python -m tools.convert_t5x --input=t5_1_1_base/checkpoint_1000000 --output=runs/more \\
      --config=configs/t5/base.py --vocabulary=cc_all.32000.100extra/sentencepiece.model \\
      --loss_normalizing_factor=None --target_tokens=14592
  python -m tools.convert_t5x --input=checkpoint_524288 --output=runs/more --config=RECIPE \\
      --vocabulary=bytes --fresh

The tool reads T5X's native checkpoints and T5X's checkpoints in Orbax's format, of the models in
`t5x/examples/t5` and `t5x/examples/scalable_t5`, with and without `scan_layers`: T5 1.0 and 1.1,
mT5, ByT5 and umT5. Sizes and design come from the checkpoint, all else from the recipe. The step
and the state of Adafactor are kept if the checkpoint has them.
"""

import functools

from t5x_like import command_line, recipes
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import outputs
from t5x_like.files.paths import check_directory
from t5x_like.interop import t5x
from t5x_like.runtime.huge_pages import use_huge_pages


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.convert_t5x")
  parser.add_argument(
    "--input",
    required=True,
    metavar="DIR",
    help="checkpoint, or a directory of several, of which the newest is read",
  )
  output_type = functools.partial(check_directory, flag="--output")
  parser.add_argument(
    "--output", required=True, type=output_type, metavar="WORKDIR", help="new workdir"
  )
  parser.add_argument("--config", required=True, metavar="RECIPE", help="recipe of the new workdir")
  parser.add_argument(
    "--vocabulary",
    metavar="PATH",
    help="T5X's SentencePiece model, a directory of a vocabulary, or 'bytes' (default: the "
    "recipe's data have it)",
  )
  parser.add_argument(
    "--mlp_activations",
    choices=t5x.ACTIVATIONS,
    metavar="LIST",
    help="T5X's key of that name, such as silu,linear (default: of T5 1.0 or 1.1)",
  )
  parser.add_argument(
    "--loss_normalizing_factor",
    metavar="N",
    help="T5X's key of that name, which fixes the unit of Adafactor's state: None, a number or "
    "NUM_REAL_TARGET_TOKENS",
  )
  parser.add_argument(
    "--target_tokens",
    type=int,
    metavar="W",
    help="target tokens in a batch of T5X, without padding; needed if the factor is None or a "
    "number",
  )
  parser.add_argument(
    "--fresh", action="store_true", help="convert only the weights: step 0 and a new optimizer"
  )
  args, overrides = parser.parse(argv)
  outputs.check_new(args.output, "--output=")
  _convert(args, overrides)


def _convert(args, overrides: list[str]) -> None:
  """Write the workdir with the checkpoint's weights and, unless `--fresh`, optimizer state."""
  import jax
  import numpy as np

  from t5x_like import vocabularies
  from t5x_like.checkpoints.manifest import nest
  from t5x_like.interop.t5x_files import Checkpoint
  from t5x_like.models import t5
  from t5x_like.nn import params
  from t5x_like.runtime import process
  from t5x_like.training import imported_weights
  from t5x_like.training.build import build_parts, with_tokens
  from t5x_like.training.checks import check_vocabulary
  from t5x_like.training.resolve import resolve

  process.prepare()
  checkpoint = Checkpoint(args.input)
  keeps_optimizer = not args.fresh and t5x.has_optimizer_state(checkpoint)
  scale = _gradient_scale(args, checkpoint.where) if keeps_optimizer else 1.0
  variant = t5x.read_variant(checkpoint, args.mlp_activations)
  config = imported_weights.with_architecture(
    recipes.load(args.config, overrides), t5.Model, variant, checkpoint.where
  )
  if args.vocabulary:
    vocabulary = vocabularies.load(args.vocabulary)
  else:
    vocabulary = imported_weights.load_task_vocabulary(config)
  config = with_tokens(resolve(config), vocabulary)
  check_vocabulary(config, vocabulary)
  parts = build_parts(config)
  abstract = params.named_params(parts.model)
  step = 0 if args.fresh else t5x.read_step(checkpoint) or 0
  named = {"step": jax.device_put(np.int32(step), parts.rules.replicated)}
  for name, array in t5x.read_parameters(checkpoint, parts.model):
    named[f"params/{name}"] = jax.device_put(array, parts.rules.sharding(abstract[name].axes))
  if keeps_optimizer:
    named |= _convert_optimizer_state(checkpoint, parts, step, scale)
  imported_weights.write_imported_workdir(args.output, config, vocabulary, step, nest(named))
  flags = "".join(f" --config.{override}" for override in overrides)
  contents = "weights and Adafactor's state" if keeps_optimizer else "weights"
  reminder = f" (set --config.total_steps above {step})" if step >= config.total_steps else ""
  process.log(
    f"{args.output}: step {step} with {contents} of {checkpoint.where} and {vocabulary.size} ids "
    f"in a table of {variant.vocab_size}; prepare data with --vocabulary={args.output}/vocabulary; "
    f"train with --config={args.config} --workdir={args.output}{flags}{reminder}"
  )


def _convert_optimizer_state(checkpoint, parts, step: int, scale: float) -> dict:
  """Return the named arrays of Adafactor's state and of the guard.

  Args:
    scale: factor from T5X's gradients to this project's gradients.

  Raises:
    UserError: the recipe's optimizer is not Adafactor.
  """
  import jax
  import numpy as np

  from t5x_like.training import guard, optimizer

  optimizer_state = optimizer.to_named(parts.state.opt_state)
  if foreign := [name for name in optimizer_state if not name.startswith("adafactor/")]:
    raise UserError(
      f"config.optimizer: found {foreign[0].partition('/')[0]!r}, but {checkpoint.where} holds "
      "the state of Adafactor; give --fresh for a new optimizer state"
    )
  named = {}
  for name, x in guard.new_loss_record().items():
    named[f"guard/{name}"] = jax.device_put(x, parts.rules.replicated)
  count_sharding = optimizer_state["adafactor/count"].sharding
  named["adafactor/count"] = jax.device_put(np.int32(step), count_sharding)
  shapes = {name: leaf.shape for name, leaf in optimizer_state.items()}
  for name, array in t5x.read_second_moments(checkpoint, parts.model, shapes, scale):
    named[name] = jax.device_put(array, optimizer_state[name].sharding)
  return named


def _gradient_scale(args, where: str) -> float:
  """Return the factor from T5X's gradients to this project's gradients.

  T5X divides a batch's sum of losses by its loss-normalizing factor; this project divides it by the
  number of target tokens.
  """
  factor_text = args.loss_normalizing_factor
  tokens = args.target_tokens
  if factor_text is None:
    raise UserError(
      f"--loss_normalizing_factor: missing, and {where} holds Adafactor's state, whose unit it "
      "fixes; give the one of T5X's gin files (None in most) with --target_tokens, or --fresh for "
      "a new optimizer state"
    )
  if factor_text == "NUM_REAL_TARGET_TOKENS":
    return 1.0
  try:
    factor = 1.0 if factor_text == "None" else float(factor_text)
  except ValueError:
    factor = 0.0
  if not 0 < factor < float("inf"):
    raise UserError(
      f"--loss_normalizing_factor={factor_text}: expected None, a number or "
      "NUM_REAL_TARGET_TOKENS; or --fresh"
    )
  if tokens is None or tokens < 1:
    raise UserError(
      f"--target_tokens={tokens}: expected the target tokens in a batch of T5X, such as 128 x 114 "
      f"= 14592, with --loss_normalizing_factor={factor_text}"
    )
  return factor / tokens


if __name__ == "__main__":
  use_huge_pages()
  raise SystemExit(main())
