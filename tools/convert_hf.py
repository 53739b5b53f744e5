"""Convert between Hugging Face model directories, GGUF files and workdirs.

Examples:
  python -m tools.convert_hf --input=t5-v1_1-small --output=runs/tuned \\
      --config=configs/t5/base.py:small
  python -m tools.convert_hf --input=runs/small --output=exported
  python -m tools.convert_hf --input=runs/small --output=small.gguf --dtype=q8_0

A workdir made from a Hugging Face directory holds its weights and tokenizer as step 0 of a run,
from which training starts. Sizes and design come from the directory, all else from the recipe. A
Hugging Face directory made from a workdir holds the newest checkpoint (or the one of --step) and
the tokenizer, and loads with `transformers`; adapters are merged.

An --output that ends in .gguf is a file for llama.cpp: matrices are float16 or q8_0, blocks of 32
eight-bit numbers with a scale. It is made from a workdir or a Hugging Face directory. An --input
that ends in .gguf is read like a Hugging Face directory; without --config it becomes one.
"""

import dataclasses
import functools

from t5x_like import command_line, recipes, slots
from t5x_like.errors import UserError, handle_errors
from t5x_like.files import checked_json, outputs
from t5x_like.files.gguf_file import is_gguf
from t5x_like.files.paths import as_path, check_directory
from t5x_like.runtime.huge_pages import use_huge_pages


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.convert_hf")
  parser.add_argument(
    "--input",
    required=True,
    metavar="DIR",
    help="Hugging Face directory or name, a GGUF file, or a workdir",
  )
  kind = functools.partial(check_directory, flag="--output")
  parser.add_argument(
    "--output",
    required=True,
    type=kind,
    metavar="DIR",
    help="new workdir, Hugging Face directory or GGUF file",
  )
  parser.add_argument("--config", metavar="RECIPE", help="recipe of a new workdir")
  parser.add_argument(
    "--sentinels",
    metavar="PATTERN",
    help="pieces of the published tokenizer to use as sentinels, as '<unused{}>' (default: its "
    "<extra_id_{}>, if any)",
  )
  parser.add_argument(
    "--step",
    type=command_line.step_number,
    help="checkpoint of the workdir (default: the newest)",
  )
  parser.add_argument(
    "--dtype",
    choices=("float32", "bfloat16", "float16", "q8_0"),
    help="dtype of the tensors written; a GGUF file has float16 (default) or q8_0",
  )
  args, overrides = parser.parse(argv)
  outputs.check_new(args.output, "--output=")
  from t5x_like.saved_model.hub import local_directory

  args.input = local_directory(args.input, "--input")
  is_workdir = _is_workdir(args.input)
  _check_dtype(args.dtype, args.output)
  if is_workdir and (args.config or overrides):
    raise UserError(f"--config: {args.input} is a workdir, which has its own; leave the flag out")
  if is_gguf(args.output) and args.config:
    raise UserError("--config: a GGUF file has no recipe; leave the flag out")
  if is_workdir or is_gguf(args.output) or (is_gguf(args.input) and not args.config):
    _export(args.input, args.output, args.step, args.dtype)
  elif not args.config:
    raise UserError("--config: missing; a new workdir needs the recipe it will be trained with")
  else:
    _import(args.input, args.output, args.config, overrides, args.sentinels)


def _check_dtype(dtype: str | None, output: str) -> None:
  """Refuse a dtype that the output's format does not have."""
  from t5x_like.saved_model.exports import gguf as gguf_exports
  from t5x_like.saved_model.exports import hf as hf_exports

  dtypes = gguf_exports.DTYPES if is_gguf(output) else hf_exports.DTYPES
  if dtype is not None and dtype not in dtypes:
    raise UserError(
      f"--dtype={dtype}: found the output {output}, which has {' or '.join(dtypes)}; give one of "
      "these"
    )


def _is_workdir(path: str) -> bool:
  if is_gguf(path):
    return False
  file = as_path(path) / "config.json"
  try:
    content = file.read_bytes()
  except FileNotFoundError:
    from t5x_like.saved_model.hub import missing_model_error

    raise missing_model_error(path, "--input") from None
  except OSError as error:
    raise UserError(
      f"{file}: cannot be read: {error.strerror}; give a workdir or a model directory"
    ) from error
  return "fingerprints" in checked_json.parse_json(
    content, dict, str(file), "the file of a workdir or a model; copy it again"
  )


def _export(workdir: str, output: str, step: int | None, dtype: str | None) -> None:
  from t5x_like.library import model as library
  from t5x_like.parallel.mesh import make_mesh
  from t5x_like.parallel.rules import Rules
  from t5x_like.runtime import process

  process.prepare()
  model = library.load(workdir, step=step, rules=Rules.make(make_mesh({"data": -1})))
  if is_gguf(output):
    model.save_gguf(output, dtype)
  else:
    model.save_hf(output, dtype)
  process.log(f"{output}: step {model.step} of {workdir}")


def _import(
  directory: str, workdir: str, recipe: str, overrides: list[str], sentinels: str | None
) -> None:
  from t5x_like.interop import hf, sentence_pooling
  from t5x_like.nn import params
  from t5x_like.runtime import process
  from t5x_like.training import imported_weights
  from t5x_like.training.build import build_parts, with_tokens
  from t5x_like.training.checks import check_vocabulary
  from t5x_like.training.resolve import resolve
  from t5x_like.training.state import init_state, to_tree

  process.prepare()
  config = imported_weights.with_architecture(
    recipes.load(recipe, overrides), *hf.read_architecture(directory), directory
  )
  vocabulary = _vocabulary(config, directory, sentinels)
  config = with_tokens(resolve(config), vocabulary)
  check_vocabulary(config, vocabulary)
  parts = build_parts(config)
  model = hf.load(directory, rules=parts.rules)
  imported_weights.check_parameters(model, parts.model, directory, recipe)
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  state = dataclasses.replace(state, params=params.arrays(model))
  imported_weights.write_imported_workdir(workdir, config, vocabulary, 0, to_tree(state))
  flags = "".join(f" --config.{override}" for override in overrides)
  prepare = ""
  if "vocab_size" in config.model:
    prepare = (
      f" and a vocabulary of {vocabulary.size} ids in a table of {config.model.vocab_size}; "
      f"prepare data with --vocabulary={workdir}/vocabulary"
    )
  command = f"train with --config={recipe} --workdir={workdir}{flags}"
  head = None
  if config.model.get("head"):
    head, _ = slots.name_and_arguments("config.model.head", config.model.head)
  if head == "image_features":
    command = f"train a classifier or a detector with --config.init.workdir={workdir}"
  if head in ("none", "pooled"):  # nothing to pretrain with
    prepare = ""
    command = (
      f"fine-tune with --config=configs/finetune/encoder.py:TASK --config.init.workdir={workdir}"
    )
  process.log(f"{workdir}: step 0 with the weights of {directory}{prepare}; {command}")
  if note := sentence_pooling.pooling_mismatch(directory, "mean"):
    process.log(note)


def _vocabulary(config, directory: str, sentinels: str | None):
  """Return the vocabulary of the directory or, if it has none, of the recipe's data."""
  from t5x_like import vocabularies
  from t5x_like.runtime import process
  from t5x_like.training import imported_weights
  from t5x_like.vocabularies.kinds import published

  name = published.python_class(as_path(directory))
  if name is not None:
    process.log(f"{directory}: its {name} is not read; the recipe's data determine the vocabulary")
  elif vocabularies.has_tokenizer(as_path(directory)):
    return vocabularies.load(directory, sentinels)
  if sentinels is not None:
    raise UserError(
      f"--sentinels={sentinels}: {directory} has no tokenizer to take them from; leave the flag out"
    )
  try:
    return imported_weights.load_task_vocabulary(config)
  except UserError as error:
    raise UserError(
      f"{directory}: found no tokenizer that can be read; copy its files there, or prepare the "
      f"recipe's data: {error}"
    ) from error


if __name__ == "__main__":
  use_huge_pages()
  raise SystemExit(main())
