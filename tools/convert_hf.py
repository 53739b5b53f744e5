"""Converts between Hugging Face model directories and workdirs.

Examples:
  python -m tools.convert_hf --input=t5-v1_1-small --output=runs/tuned --config=configs/t5/base.py:small
  python -m tools.convert_hf --input=runs/small --output=exported

A workdir made from a Hugging Face directory holds step 0 of the recipe's run with those weights, from which training
starts. A Hugging Face directory holds the newest checkpoint of the workdir (or --step) and loads with `transformers`.
"""

import dataclasses
import json
import pathlib
import shutil

from t5x_like import command_line, recipes
from t5x_like.errors import UserError, door
from t5x_like.training.huge_pages import use_huge_pages


@door
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.convert_hf")
  parser.add_argument("--input", required=True, metavar="DIR", help="a Hugging Face directory, or a workdir")
  parser.add_argument("--output", required=True, metavar="DIR", help="the new workdir or Hugging Face directory")
  parser.add_argument("--config", metavar="RECIPE", help="the recipe of a new workdir")
  parser.add_argument("--step", type=int, help="the workdir's checkpoint to convert (default: the newest)")
  parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="dtype of the tensors written")
  args, overrides = parser.parse(argv)
  output = pathlib.Path(args.output)
  if output.exists() and (not output.is_dir() or any(output.iterdir())):
    raise UserError(f"--output={output}: exists and is not empty; give a new directory")
  if _is_workdir(args.input):
    if args.config or overrides:
      raise UserError(f"--config: {args.input} is a workdir, which has its own; leave the flag out")
    _export(args.input, args.output, args.step, args.dtype)
  else:
    if not args.config:
      raise UserError("--config: missing; a new workdir needs the recipe it will be trained with")
    _import(args.input, args.output, args.config, overrides)


def _is_workdir(path: str) -> bool:
  file = pathlib.Path(path) / "config.json"
  try:
    values = json.loads(file.read_text(encoding="utf-8"))
  except OSError as error:
    raise UserError(f"{file}: cannot be read: {error.strerror}; give a workdir or a model directory") from error
  except ValueError as error:
    raise UserError(f"{file}: not JSON; copy it again") from error
  return "fingerprints" in values


def _export(workdir: str, output: str, step: int | None, dtype: str | None) -> None:
  from t5x_like.interop import hf
  from t5x_like.nn import params
  from t5x_like.training import assembly, process, trained

  process.prepare()
  config, _ = trained.open_config(workdir, None, ['mesh={"data": -1}', "batch_size=65536", "accumulation_steps=1"])
  parts = assembly.build(assembly.resolve(config))
  found, arrays = trained.restore_params(workdir, parts, step)
  hf.save(params.with_arrays(parts.model, arrays), output, dtype=dtype)
  vocabulary = pathlib.Path(workdir) / "vocabulary"
  for model_file in vocabulary.glob("*.model"):
    shutil.copyfile(model_file, pathlib.Path(output) / "spiece.model")
  for model_file in vocabulary.glob("tokenizer.json"):
    shutil.copyfile(model_file, pathlib.Path(output) / model_file.name)
  process.say(f"{output}: step {found} of {workdir}")


def _import(directory: str, workdir: str, recipe: str, overrides: list[str]) -> None:
  from t5x_like.data import task as tasks
  from t5x_like.interop import hf
  from t5x_like.nn import params
  from t5x_like.training import assembly, process
  from t5x_like.training import workdir as workdirs
  from t5x_like.training.checkpoint import Checkpoints
  from t5x_like.training.environment import environment
  from t5x_like.training.state import init_state, to_tree

  process.prepare()
  config = assembly.resolve(recipes.load(recipe, overrides))
  parts = assembly.build(config)
  task = tasks.build(split=config.train_split, **({"name": None} | config.task.to_dict()))
  assembly.check_vocabulary(config, task.vocabulary)
  model = hf.load(directory, rules=parts.rules)
  _check_same(model, parts.model, directory, recipe)
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  state = dataclasses.replace(state, params=params.arrays(model))
  identity = workdirs.identity(config, task)
  with Checkpoints(pathlib.Path(workdir) / "checkpoints") as checkpoints:
    checkpoints.save(0, to_tree(state), identity)
    checkpoints.wait()
  workdirs.write(pathlib.Path(workdir), workdirs.FILE, identity)
  workdirs.write(pathlib.Path(workdir), "environment.json", environment())
  task.vocabulary.save(pathlib.Path(workdir) / "vocabulary")
  process.say(f"{workdir}: step 0 with the weights of {directory}; train with --config={recipe} --workdir={workdir}")


def _check_same(theirs, ours, directory: str, recipe: str) -> None:
  """Refuses a recipe whose model would give the file's weights another meaning."""
  from t5x_like.nn import params

  if type(theirs) is not type(ours):
    raise UserError(f"{recipe}: its model is {type(ours).__module__}, {directory} holds {type(theirs).__module__}")
  file, wanted = (
    dict(dataclasses.asdict(m.variant), design=dataclasses.asdict(m.variant.design)) for m in (theirs, ours)
  )
  for name in ("dims", "vocab_size"):
    if file[name] != wanted[name]:
      held = file[name]
      raise UserError(f"{recipe}: its model has {name} {wanted[name]}, {directory} holds {held}; choose the variant")
  for tree in (file, wanted):
    tree["design"]["position"] = _plain(tree["design"]["position"])
  training = ("core", "init_stddev", "residual_init", "embed_init", "mlp_dropout")
  for name, value in file["design"].items():
    if name not in training and wanted["design"][name] != value:
      raise UserError(
        f"{recipe}: its design has {name} {wanted['design'][name]!r}, {directory} holds {value!r}; set "
        f"--config.model.design={json.dumps({name: value})}"
      )
  # Other differences, such as untied heads and tables of other lengths, show in the parameters.
  shapes = [{n: p.shape for n, p in params.named_params(m).items()} for m in (theirs, ours)]
  for name in sorted({*shapes[0], *shapes[1]}):
    if shapes[0].get(name) != shapes[1].get(name):
      raise UserError(
        f"{recipe}: parameter {name} has shape {shapes[1].get(name)}, that of {directory} has {shapes[0].get(name)}"
      )


def _plain(position):
  """A position scheme without arguments that equal their defaults."""
  if isinstance(position, (list, tuple)):
    return [_plain(spec) for spec in position]
  spec = {"name": position} if isinstance(position, str) else dict(position)
  usual = {
    "buckets": 32,
    "max_distance": 128,
    "shared": True,
    "offset": 0,
    "theta": 10_000.0,
    "fraction": 1.0,
    "interleaved": spec["name"] == "sinusoidal",
    "mpt": False,
    "linear": None,
    "llama3": None,
  }
  return {key: value for key, value in spec.items() if key == "name" or usual.get(key, ...) != value}


if __name__ == "__main__":
  use_huge_pages()
  raise SystemExit(main())
