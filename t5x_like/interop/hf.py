"""Hugging Face model directories, timm's among them: `load(path) -> model` and `save(model, path)`.

A directory holds `config.json` and `model.safetensors`, or several files and
`model.safetensors.index.json`. Tensors are read and written one at a time; pickles are never
opened. The known families are the modules of `interop/families`.
"""

import contextlib
import dataclasses
import importlib
import json
import math
import pathlib
import pkgutil
import re
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files import checked_json
from t5x_like.files.file_names import quote_name
from t5x_like.files.local import check_link
from t5x_like.files.mirror import fetch
from t5x_like.interop import families, published_images
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.tensor_files import INDEX, WEIGHTS, TensorFiles, read_text
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.nn import params
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.vocabularies.kinds._shared import PUBLISHED_FILES

SHARD_BYTES = 5 * 10**9


@dataclasses.dataclass(frozen=True)
class Origin:
  """The origin of a loaded model, for `save`.

  Attributes:
    path: the directory.
    config: its config.json, as text.
    dtype: the dtype of its tensors.
  """

  path: str
  config: str
  dtype: str


def load(path: str, *, rules=None, dtype: str = "float32", layers: str = "scan") -> nnx.Module:
  """Load a Hugging Face directory into one of our models.

  Args:
    path: the directory.
    rules: `parallel.rules.Rules` that place each parameter on its devices before the next is read;
      None keeps all parameters on the default device.
    dtype: compute dtype of the model; parameters are float32.
    layers: "scan" or "loop".
  Returns:
    A model called as `model(batch) -> {"logits", …}`.
  Raises:
    UserError: a field or tensor is missing, unknown, unsupported or of another shape; names it and
      the file.
  """
  model = load_abstract(path, dtype=dtype, layers=layers)
  loaded = params.with_arrays(model, read_parameters(model, rules))
  loaded.origin = model.origin
  return loaded


def read_parameters(model: nnx.Module, rules=None) -> dict[str, jax.Array]:
  """Return the parameters of an abstract model by name, float32, from its directory; see `load` for
  `rules`."""
  family, files = _opened(json.loads(model.origin.config), pathlib.Path(model.origin.path))
  mapping = TensorMapping(model)
  family.map_tensors(mapping)
  _check(mapping, files)
  arrays = {}
  for name, holder in params.named_params(model).items():
    array = _assemble(name, holder.shape, mapping, files)
    sharding = rules.sharding(holder.axes) if rules is not None else None
    arrays[name] = jax.device_put(array, sharding)
    jax.block_until_ready(arrays[name])
  return arrays


def load_abstract(
  path: str, *, dtype: str = "float32", layers: str = "scan", **changes
) -> nnx.Module:
  """Return the abstract model of a directory, with `changes` of its variant, without its weights;
  see `load`."""
  directory = fetch(str(path))
  text, files, model_class, arguments = _read(directory)
  arguments |= {"variant": dataclasses.replace(arguments["variant"], **changes)}

  def make(key):
    return model_class(nnx.Rngs(params=key), dtype=dtype, layers=layers, **arguments)

  with _sizes_of(f"{directory}/config.json"):
    model = jax.eval_shape(make, jax.random.key(0))
  model.origin = Origin(str(directory), text, files.dtype)
  return model


def read_architecture(path: str) -> tuple[type, Variant]:
  """Return the class and the variant of a directory's model, without loading its weights; raise as
  `load`."""
  _, _, model_class, arguments = _read(fetch(str(path)))
  return model_class, arguments["variant"]


def _read(directory: pathlib.Path):
  """Return (config.json as text, files, class, arguments) of a directory."""
  text = read_text(directory / "config.json")
  where = f"{directory}/config.json"
  values = checked_json.parse_json(
    text, dict, where, "the config of a Hugging Face model; copy it again"
  )
  family, files = _opened(values, directory)
  fields = Fields(values, where, len(files.names), files.held)
  with _sizes_of(where):
    model_class, arguments = family.read_config(fields, files.names)
  fields.refuse_unused()
  return text, files, model_class, arguments


def model_type_of(values: dict):
  """Return a config's `model_type`; of a config of timm, "timm/" and the first word of its
  architecture."""
  known = values.get("architecture") if "model_type" not in values else None
  return (
    f"timm/{re.match('[a-z]*', known)[0]}" if isinstance(known, str) else values.get("model_type")
  )


def _opened(values: dict, directory: pathlib.Path):
  """Return (family, files) of a directory with the values of its config."""
  family = _family(model_type_of(values), f"{directory}/config.json")
  return family, _files(family, directory, values)


def _files(family, directory: pathlib.Path, values: dict) -> TensorFiles:
  named = values.get("architectures") or ["Model"]
  bare = hasattr(family, "HEADS") and isinstance(named, list) and str(named[0]).endswith("Model")
  return TensorFiles(
    directory, getattr(family, "canonical_name", str), getattr(family, "BODY_PREFIX", ""), bare
  )


@contextlib.contextmanager
def _sizes_of(where: str):
  """Turn errors from contradictory layer sizes into a `UserError` that names the config."""
  try:
    yield
  except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
    raise UserError(
      f"{where}: its sizes make no model ({type(error).__name__}: {one_line(error)[:200]}), "
      "expected sizes that fit "
      "each other; correct the config, or copy it again"
    ) from error


def _labels_of(model: nnx.Module, config: dict[str, Any]) -> int:
  """Return the number of classes whose names a config may have; of texts, two need no names."""
  if "id2label" in config:
    return len(config["id2label"])
  head = getattr(model.variant, "head", None)
  name, arguments = (head.get("name"), head) if isinstance(head, dict) else (head, {})
  return arguments.get("labels", 2) if name == "classification" else 0


def save(
  model: nnx.Module,
  path: str,
  *,
  dtype: str | None = None,
  labels: Sequence[str] = (),
  images: dict[str, Any] | None = None,
) -> None:
  """Save a model as a directory that `transformers` loads, with the tokenizer files of its original
  directory.

  Args:
    path: a new or empty directory.
    dtype: the dtype of the tensors; None for the dtype of the files it was loaded from, or float32.
    labels: the names of the classes, for a config that has them.
    images: for a model of images, the `config.task` that tells how they are prepared.
  Raises:
    UserError: the directory is not empty, the model has no Hugging Face form or a parameter for
      which it has no tensor, or a file cannot be written.
  """
  from safetensors.flax import save_file

  directory = pathlib.Path(path)
  origin = getattr(model, "origin", None)
  old = json.loads(origin.config) if origin else {}
  family, config = _config_of(model, model_type_of(old))
  dtype = dtype or (origin.dtype if origin else "float32")
  config["dtype"] = dtype
  mapping = TensorMapping(model)
  family.map_tensors(mapping)
  if lost := mapping.parameter_names - {
    name for tensor in mapping.tensors for name, _ in tensor.parts
  }:
    raise UserError(
      f"{directory}: {model_type_of(config)} has no tensor for the parameter {min(lost)!r}, without "
      "which it is another model"
    )
  same = False
  if model_type_of(old) == model_type_of(config):
    names = {t.name for t in mapping.tensors}
    same = (
      family.read_config(Fields(old, f"{origin.path}/config.json"), names)[1]["variant"]
      == model.variant
    )
    config = (config | old if same else old | config) | {"dtype": dtype}
  config |= {"torch_dtype": dtype} if "torch_dtype" in config else {}  # of readers before version 5
  if labels and len(labels) == _labels_of(model, config):
    ids = {name: i for i, name in enumerate(labels)}
    config |= {"id2label": {str(i): name for name, i in ids.items()}, "label2id": ids}
  beside = {}
  if images and "pretrained_cfg" in config:  # timm's
    config["pretrained_cfg"] = config["pretrained_cfg"] | published_images.timm_pretrained_config(
      images
    )
    config |= {"label_names": list(labels)} if len(labels) == config["num_classes"] else {}
  elif images and (processor := published_images.processor_config(images)):
    beside[published_images.FILE] = processor
  arrays = params.arrays(model)
  unread = _unread(mapping, pathlib.Path(origin.path), family, old) if same else {}
  named = getattr(family, "file_naming", lambda model: str)(model)
  mapping.tensors = [
    dataclasses.replace(tensor, name=named(tensor.name)) for tensor in mapping.tensors
  ]
  try:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
      raise UserError(f"{directory}: not empty; give another directory, or empty this one")
    shards = _shards(mapping, arrays, jnp.dtype(dtype).itemsize)
    weight_map = {}
    total = 0
    for number, tensors in enumerate(shards, 1):
      file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
      held = {t.name: jnp.asarray(_joined(t, arrays), jnp.dtype(dtype)) for t in tensors}
      if number == len(shards):
        held |= {name: jnp.asarray(x, jnp.dtype(dtype)) for name, x in unread.items()}
      (directory / file).touch()
      # as the umask says; save_file makes a file for its owner alone
      mode = (directory / file).stat().st_mode
      save_file(held, directory / file, metadata={"format": "pt"})
      (directory / file).chmod(mode)
      weight_map |= dict.fromkeys(held, file)
      total += sum(x.nbytes for x in held.values())
    if len(shards) > 1:
      index = {"metadata": {"total_size": total}, "weight_map": weight_map}
      (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    for name in PUBLISHED_FILES if origin else ():
      if (pathlib.Path(origin.path) / name).is_file():
        _check_link(pathlib.Path(origin.path) / name)
        shutil.copyfile(pathlib.Path(origin.path) / name, directory / name)
    for name, content in beside.items():
      (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    # last: without it nothing loads
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
  except OSError as error:
    raise UserError(
      f"{directory}: cannot be written: {error.strerror or one_line(error)}"
    ) from error


def _check_link(file: pathlib.Path) -> None:
  """Raise UserError for a link out of the directory of a model, whose target the copy would
  show."""
  try:
    check_link(file)
  except OSError as error:
    raise UserError(f"{file}: {error.strerror}; copy the file there") from error


def model_types() -> dict[str, str]:
  """Map Hugging Face model types to modules of `interop.families`."""
  names = [module.name for module in pkgutil.iter_modules(families.__path__)]
  return {t: name for name in names for t in _module(name).MODEL_TYPES}


def _module(name: str):
  return importlib.import_module(f"{families.__name__}.{name}")


def _family(model_type: str | None, origin: str):
  known = model_types()
  if not isinstance(model_type, str) or model_type not in known:
    near = did_you_mean(str(model_type), known)
    raise UserError(
      f"{origin}: model_type is {quote_name(model_type)}, expected one of "
      f"{', '.join(sorted(known))}{near}"
    )
  return _module(known[model_type])


def _config_of(model, model_type: str | None) -> tuple:
  """Return (module, config) of the first family that can express the model, trying the family of
  `model_type` first."""
  reasons = []
  known = model_types()
  for name in sorted(set(known.values()), key=lambda name: (name != known.get(model_type), name)):
    family = _module(name)
    if isinstance(model, family.MODELS):
      try:
        return family, family.write_config(model, model_type)
      except UserError as error:
        reasons.append(str(error))
  why = "; ".join(reasons) or "no Hugging Face family matches it"
  raise UserError(f"{type(model).__module__}: this model has no Hugging Face form: {why}")


def _check(mapping: TensorMapping, files: TensorFiles) -> None:
  """Refuse files with missing or unknown tensors, or with tied tensors that differ; a copy may
  stand alone."""
  for copy, name in mapping.tied.items():
    files.lend(copy, name)
  expected = {t.name for t in mapping.tensors}
  for name in sorted(expected - files.names):
    raise UserError(
      f"{files.where}: tensor {name!r} is missing{did_you_mean(name, files.names - expected)}; "
      "the file is of another model or incomplete"
    )
  for name in sorted(files.names - expected - set(mapping.tied)):
    if not name.endswith(mapping.ignored_suffixes + mapping.unread_suffixes):
      near = did_you_mean(name, expected)
      raise UserError(
        f"{files.where}: tensor {name!r} is unknown{near}; this model has no such part"
      )
  for copy, name in mapping.tied.items():
    if copy in files.names and not np.array_equal(files.read(copy), files.read(name)):
      raise UserError(
        f"{files.where}: tensor {copy!r} differs from {name!r}, with which it is tied"
      )


def _unread(
  mapping: TensorMapping, directory: pathlib.Path, family, values: dict
) -> dict[str, np.ndarray]:
  """Read the tensors that the model does not use from the files it was loaded from, if these still
  exist."""
  if not mapping.unread_suffixes or not (directory / "config.json").is_file():
    return {}
  files = _files(family, directory, values)
  return {
    name: files.read(name) for name in sorted(files.names) if name.endswith(mapping.unread_suffixes)
  }


def _assemble(
  name: str, shape: tuple[int, ...], mapping: TensorMapping, files: TensorFiles
) -> np.ndarray:
  """Assemble one parameter, float32, from the tensors that hold its slices."""
  out = None
  filled = 0
  for tensor in mapping.tensors:
    for number, (path, index) in enumerate(tensor.parts):
      if path != name:
        continue
      raw = files.read(tensor.name)
      try:
        part = np.asarray(tensor.split(raw)[number])
      except (ValueError, IndexError, ZeroDivisionError):
        part = raw
      if part.shape != shape[len(index) :]:
        raise UserError(
          f"{files.where}: tensor {tensor.name!r} has shape {list(raw.shape)}, expected a shape "
          f"that fits {name} of {list(shape[len(index) :])}; config.json is of another model"
        )
      if out is None:  # allocate only now that the files are known to hold this much
        out = np.empty(shape, np.float32)
      out[index] = part
      filled += part.size
  assert filled == math.prod(shape), f"{name}: {filled} of {math.prod(shape)} values mapped"
  return out


def _joined(tensor, arrays: dict[str, jax.Array]) -> np.ndarray:
  return np.asarray(
    tensor.join([np.asarray(arrays[name][index]) for name, index in tensor.parts]), order="C"
  )


def _shards(mapping: TensorMapping, arrays: dict[str, jax.Array], itemsize: int) -> list[list]:
  """Return the tensors in order, grouped so that each file holds at most SHARD_BYTES."""
  shards = [[]]
  size = 0
  for tensor in mapping.tensors:
    values = sum(math.prod(arrays[name].shape[len(index) :]) for name, index in tensor.parts)
    if shards[-1] and size + values * itemsize > SHARD_BYTES:
      shards.append([])
      size = 0
    shards[-1].append(tensor)
    size += values * itemsize
  return shards


def exact_cores(design) -> list:
  """Return the values of `design.core` for `only`: its own, if it computes plain attention, or
  those that do."""

  def names(core) -> set[str]:
    if isinstance(core, str) or "name" in core:
      return {core if isinstance(core, str) else core["name"]}
    return set().union(*map(names, core.values() if isinstance(core, dict) else core))

  return [design.core] if names(design.core) <= set(EXACT_CORES) else [*EXACT_CORES]


def require_design(model, **expected) -> None:
  """Refuse a model whose design a Hugging Face model type cannot express.

  Raises:
    UserError: a field of the design has another value than `expected` allows; names it.
  """
  expected = {"layer_scale": None, "latent": None, "dense_layers": 0} | expected
  with contextlib.suppress(AttributeError):
    for name, allowed in expected.items():
      value = getattr(model.variant.design, name)
      allowed = allowed if isinstance(allowed, list) else [allowed]
      if value not in allowed:
        raise UserError(
          f"design.{name} is {value!r}; this model type supports only "
          f"{' or '.join(map(repr, allowed))}"
        )
