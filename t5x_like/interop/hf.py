"""Load and save the model directories of Hugging Face and of timm, and load GGUF files.

A directory holds `config.json` and `model.safetensors`, or several files and
`model.safetensors.index.json`. Tensors are read and written one at a time; pickles are never
opened. The known families are the modules of `interop/families`. A GGUF file is read as the
directory that it was made from: `gguf_config` returns the config, `gguf_tensors` the tensors.
"""

import dataclasses
import functools
import json
import math
import pathlib
import re
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files import checked_json
from t5x_like.files.file_names import quote_name
from t5x_like.files.gguf_file import is_gguf, open_gguf
from t5x_like.files.local import check_link
from t5x_like.files.mirror import fetch
from t5x_like.interop import families, gguf_config, published_images
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import ModelType, refuse_contradictory_sizes
from t5x_like.interop.gguf_tensors import GgufTensors
from t5x_like.interop.tensor_files import INDEX, WEIGHTS, TensorFiles, read_text
from t5x_like.interop.tensor_mapping import Tensor, TensorMapping
from t5x_like.nn import params
from t5x_like.vocabularies.kinds._shared import PUBLISHED_FILES

SHARD_BYTES = 5 * 10**9


@dataclasses.dataclass(frozen=True)
class Origin:
  """The directory that a model was loaded from, which `save` reads again.

  Attributes:
    path: the directory, or the GGUF file.
    config: its config.json, as text; for a GGUF file, the config.json of the same model.
    dtype: the dtype of its tensors.
  """

  path: str
  config: str
  dtype: str


def load(path: str, *, rules=None, dtype: str = "float32", layers: str = "scan") -> nnx.Module:
  """Load a Hugging Face directory or a GGUF file into one of our models.

  Args:
    path: the directory or file.
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
  """Return the parameters of an abstract model by name, float32, from its directory.

  Args:
    rules: see `load`.
  """
  directory = pathlib.Path(model.origin.path)
  model_type, files = _open_files(json.loads(model.origin.config), directory)
  mapping = TensorMapping(model)
  model_type.map_tensors(mapping)
  _check_tensors(mapping, files)
  arrays = {}
  for name, parameter in params.named_params(model).items():
    array = _assemble(name, parameter.shape, mapping, files)
    sharding = None if rules is None else rules.sharding(parameter.axes)
    arrays[name] = jax.device_put(array, sharding)
    jax.block_until_ready(arrays[name])
  return arrays


def load_abstract(
  path: str, *, dtype: str = "float32", layers: str = "scan", **changes
) -> nnx.Module:
  """Return the abstract model of a directory, without its weights.

  Args:
    path, dtype, layers: see `load`.
    changes: replace fields of the model's variant.
  """
  directory = _local_path(path)
  text, files, model_class, arguments = _read_config(directory)
  arguments |= {"variant": dataclasses.replace(arguments["variant"], **changes)}

  def create(key):
    return model_class(nnx.Rngs(params=key), dtype=dtype, layers=layers, **arguments)

  with refuse_contradictory_sizes(_config_name(directory)):
    model = jax.eval_shape(create, jax.random.key(0))
  model.origin = Origin(str(directory), text, files.dtype)
  return model


def read_architecture(path: str) -> tuple[type, Variant]:
  """Return the class and the variant of a directory's model, without loading its weights.

  Raises:
    UserError: as `load`.
  """
  _, _, model_class, arguments = _read_config(_local_path(path))
  return model_class, arguments["variant"]


def _local_path(path: str) -> pathlib.Path:
  """Return the local directory of a model, or the path of its GGUF file."""
  return pathlib.Path(open_gguf(path).path) if is_gguf(path) else fetch(str(path))


def _config_name(directory: pathlib.Path) -> str:
  """Return the file with a model's config, for messages."""
  return str(directory) if is_gguf(directory) else f"{directory}/config.json"


def _read_config(
  directory: pathlib.Path,
) -> tuple[str, TensorFiles | GgufTensors, type, dict[str, Any]]:
  """Return (config.json as text, files, class, arguments) of a directory or a GGUF file."""
  where = _config_name(directory)
  if is_gguf(directory):
    text = json.dumps(gguf_config.read_config(open_gguf(directory)))
  else:
    text = read_text(directory / "config.json")
  values = checked_json.parse_json(
    text, dict, where, "the config of a Hugging Face model; copy it again"
  )
  model_type, files = _open_files(values, directory)
  fields = Fields(values, where, files.names, len(files.names), files.parameter_count)
  model_class, arguments = model_type.read(fields)
  fields.refuse_unused()
  return text, files, model_class, arguments


def model_type_of(values: dict) -> Any:
  """Return the `model_type` of a config.

  For a config of timm, it is "timm/" and the first word of the architecture.
  """
  architecture = values.get("architecture")
  if "model_type" not in values and isinstance(architecture, str):
    return f"timm/{re.match('[a-z]*', architecture)[0]}"
  return values.get("model_type")


def _open_files(
  values: dict, directory: pathlib.Path
) -> tuple[ModelType, TensorFiles | GgufTensors]:
  """Return (model type, files) of a directory or a GGUF file with the values of its config."""
  model_type = find_model_type(model_type_of(values), _config_name(directory))
  if is_gguf(directory):
    return model_type, GgufTensors(open_gguf(directory))
  return model_type, _tensor_files(model_type, directory, values)


def _tensor_files(model_type: ModelType, directory: pathlib.Path, values: dict) -> TensorFiles:
  """Open the tensors of a directory, of which a class such as `BertModel` has only the body's."""
  class_names = values.get("architectures") or ["Model"]
  is_body = isinstance(class_names, list) and str(class_names[0]).endswith("Model")
  return TensorFiles(
    directory,
    model_type.canonical_name,
    model_type.body_prefix or "",
    strip_common_prefix=is_body and model_type.body_prefix is None,
  )


def save(
  model: nnx.Module,
  path: str,
  *,
  dtype: str | None = None,
  labels: Sequence[str] = (),
  images: dict[str, Any] | None = None,
) -> None:
  """Save a model as a directory that `transformers` loads.

  The tokenizer files of the directory that it was loaded from are copied.

  Args:
    path: a new or empty directory.
    dtype: the dtype of the tensors; None for the dtype of the files it was loaded from, or float32.
    labels: the names of the classes, for a config that has them.
    images: for a model of images, the `config.task` that says how they are prepared.
  Raises:
    UserError: the directory is not empty, the model has no Hugging Face form or a parameter for
      which it has no tensor, or a file cannot be written.
  """
  directory = pathlib.Path(path)
  origin = getattr(model, "origin", None)
  old_config = json.loads(origin.config) if origin else {}
  model_type, config = write_config(model, model_type_of(old_config))
  if dtype is None:
    dtype = origin.dtype if origin else "float32"
  mapping = TensorMapping(model)
  model_type.map_tensors(mapping)
  require_all_mapped(mapping, f"{directory}: {model_type.name}")
  unread = {}
  if model_type_of(old_config) == model_type_of(config):
    if _has_original_variant(model, model_type, mapping, old_config):
      config = config | old_config
      unread = _read_unread_tensors(mapping, pathlib.Path(origin.path), model_type, old_config)
    else:
      config = old_config | config
  config["dtype"] = dtype
  if "torch_dtype" in config:  # read by transformers before version 5
    config["torch_dtype"] = dtype
  if labels and len(labels) == _count_labels(model, config):
    config["id2label"] = {str(i): name for i, name in enumerate(labels)}
    config["label2id"] = {name: i for i, name in enumerate(labels)}
  json_files = _describe_images(config, images, labels) if images else {}
  file_name = model_type.file_naming(model)
  mapping.tensors = [
    dataclasses.replace(tensor, name=file_name(tensor.name)) for tensor in mapping.tensors
  ]
  json_files["config.json"] = config  # last: without it nothing loads
  try:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
      raise UserError(f"{directory}: not empty; give another directory, or empty this one")
    _write_tensors(directory, mapping, params.arrays(model), unread, jnp.dtype(dtype))
    if origin:
      _copy_tokenizer(pathlib.Path(origin.path), directory)
    for name, content in json_files.items():
      (directory / name).write_text(json.dumps(content, indent=2) + "\n")
  except OSError as error:
    raise UserError(
      f"{directory}: cannot be written: {error.strerror or one_line(error)}"
    ) from error


def _describe_images(
  config: dict[str, Any], images: dict[str, Any], labels: Sequence[str]
) -> dict[str, dict[str, Any]]:
  """Return further files, by name, that state how images are prepared.

  A config of timm states it itself, with the names of the classes, and is changed in place.
  """
  if "pretrained_cfg" in config:  # timm
    timm_config = published_images.timm_pretrained_config(images)
    config["pretrained_cfg"] = config["pretrained_cfg"] | timm_config
    if len(labels) == config["num_classes"]:
      config["label_names"] = list(labels)
    return {}
  processor = published_images.processor_config(images)
  return {published_images.FILE: processor} if processor else {}


def can_save(model: nnx.Module) -> bool:
  """Return whether `save` can express a model, which may be abstract."""
  try:
    model_type, _ = write_config(model, None)
    mapping = TensorMapping(model)
    model_type.map_tensors(mapping)
    require_all_mapped(mapping, model_type.name)
  except UserError:
    return False
  return True


def require_all_mapped(mapping: TensorMapping, where: str) -> None:
  """Raise UserError for a parameter that no tensor contains."""
  mapped = {path for tensor in mapping.tensors for path, _ in tensor.parts}
  unmapped = mapping.parameter_names - mapped
  if unmapped:
    raise UserError(
      f"{where} has no tensor for the parameter {min(unmapped)!r}, without which it is another "
      "model"
    )


def _has_original_variant(
  model: nnx.Module, model_type: ModelType, mapping: TensorMapping, old_config: dict
) -> bool:
  """Return whether a model still has the variant that its original config describes."""
  tensor_names = {tensor.name for tensor in mapping.tensors}
  fields = Fields(old_config, f"{model.origin.path}/config.json", tensor_names)
  _, arguments = model_type.read(fields)
  return arguments["variant"] == model.variant


def _count_labels(model: nnx.Module, config: dict[str, Any]) -> int:
  """Return the number of classes that a config may name.

  A classifier of texts names its classes unless they are two.
  """
  if "id2label" in config:
    return len(config["id2label"])
  head = getattr(model.variant, "head", None)
  if head == "classification":
    return 2
  if isinstance(head, dict) and head.get("name") == "classification":
    return head.get("labels", 2)
  return 0


def _write_tensors(
  directory: pathlib.Path,
  mapping: TensorMapping,
  arrays: dict[str, jax.Array],
  unread: dict[str, np.ndarray],
  dtype: jnp.dtype,
) -> None:
  """Write the tensors to one file, or to several with an index."""
  from safetensors.flax import save_file

  shards = _split_into_shards(mapping, arrays, dtype.itemsize)
  weight_map = {}
  total_bytes = 0
  for number, tensors in enumerate(shards, 1):
    file = WEIGHTS
    if len(shards) > 1:
      file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
    contents = {tensor.name: jnp.asarray(join_parts(tensor, arrays), dtype) for tensor in tensors}
    if number == len(shards):
      contents |= {name: jnp.asarray(array, dtype) for name, array in unread.items()}
    (directory / file).touch()
    # keep the permissions of the umask: save_file makes a file that only its owner can read
    mode = (directory / file).stat().st_mode
    save_file(contents, directory / file, metadata={"format": "pt"})
    (directory / file).chmod(mode)
    weight_map |= dict.fromkeys(contents, file)
    total_bytes += sum(array.nbytes for array in contents.values())
  if len(shards) > 1:
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_tokenizer(source: pathlib.Path, destination: pathlib.Path) -> None:
  for name in PUBLISHED_FILES:
    if (source / name).is_file():
      _check_link(source / name)
      shutil.copyfile(source / name, destination / name)


def _check_link(file: pathlib.Path) -> None:
  """Raise UserError for a link out of a model's directory, whose target the copy would disclose."""
  try:
    check_link(file)
  except OSError as error:
    raise UserError(f"{file}: {error.strerror}; copy the file there") from error


def model_types() -> dict[str, ModelType]:
  """Return the model types of all modules of `interop.families` by name."""
  types = {}
  for name in slots.names(families):
    for model_type in _module_types(name):
      types[model_type.name] = model_type
  return types


@functools.cache
def _module_types(name: str) -> tuple[ModelType, ...]:
  """Return the model types of a module of `interop.families`."""
  return slots.module(name, families).TYPES


def find_model_type(name: str | None, origin: str) -> ModelType:
  """Return the model type of a name; raise UserError if there is none."""
  types = model_types()
  if not isinstance(name, str) or name not in types:
    suggestion = did_you_mean(str(name), types)
    raise UserError(
      f"{origin}: model_type is {quote_name(name)}, expected one of "
      f"{', '.join(sorted(types))}{suggestion}"
    )
  return types[name]


def write_config(model, original_type: str | None) -> tuple[ModelType, dict[str, Any]]:
  """Return (model type, config) of the first type that can express the model.

  The original type is tried first, then its family.
  """
  original = []
  family = []
  others = []
  for name in slots.names(families):
    types = _module_types(name)
    is_family = any(model_type.name == original_type for model_type in types)
    for model_type in types:
      if model_type.name == original_type:
        original.append(model_type)
      elif is_family:
        family.append(model_type)
      else:
        others.append(model_type)
  refusals = []
  for model_type in [*original, *family, *others]:
    if not isinstance(model, model_type.classes):
      continue
    try:
      config = model_type.write(model, original_type)
      return find_model_type(model_type_of(config), "config.json"), config
    except UserError as error:
      refusals.append(str(error))
  reasons = "; ".join(dict.fromkeys(refusals)) or "no Hugging Face family matches it"
  raise UserError(f"{type(model).__module__}: this model has no Hugging Face form: {reasons}")


def _check_tensors(mapping: TensorMapping, files: TensorFiles | GgufTensors) -> None:
  """Refuse files with missing or unknown tensors, or with tied tensors that differ.

  A file may contain a tied tensor, its original, or both.
  """
  for copy, name in mapping.tied.items():
    files.add_alias(copy, name)
  expected = {tensor.name for tensor in mapping.tensors}
  missing = sorted(expected - files.names)
  if missing:
    name = missing[0]
    suggestion = did_you_mean(name, files.names - expected)
    raise UserError(
      f"{files.where}: tensor {files.name_in_file(name)!r} is missing{suggestion}; the file is of "
      "another model or incomplete"
    )
  for name in sorted(files.names - expected - set(mapping.tied)):
    if not name.endswith(mapping.ignored_suffixes + mapping.unread_suffixes):
      suggestion = did_you_mean(name, expected)
      raise UserError(
        f"{files.where}: tensor {files.name_in_file(name)!r} is unknown{suggestion}; this model "
        "has no such part"
      )
  for copy, name in mapping.tied.items():
    if copy in files.names and not np.array_equal(files.read(copy), files.read(name)):
      raise UserError(
        f"{files.where}: tensor {copy!r} differs from {name!r}, with which it is tied"
      )


def _read_unread_tensors(
  mapping: TensorMapping, directory: pathlib.Path, model_type: ModelType, values: dict
) -> dict[str, np.ndarray]:
  """Read the tensors that the model does not use from its original files, if these still exist."""
  suffixes = mapping.unread_suffixes
  if not suffixes or not (directory / "config.json").is_file():
    return {}
  files = _tensor_files(model_type, directory, values)
  return {name: files.read(name) for name in sorted(files.names) if name.endswith(suffixes)}


def _assemble(
  path: str, shape: tuple[int, ...], mapping: TensorMapping, files: TensorFiles | GgufTensors
) -> np.ndarray:
  """Assemble one parameter, float32, from the tensors that contain its slices."""
  assembled = None
  filled = 0
  for tensor in mapping.tensors:
    for number, (part_path, index) in enumerate(tensor.parts):
      if part_path != path:
        continue
      array = files.read(tensor.name)
      try:
        part = np.asarray(tensor.split(array)[number])
      except (ValueError, IndexError, ZeroDivisionError):
        part = array  # its shape is refused below
      part_shape = shape[len(index) :]
      if part.shape != part_shape:
        raise UserError(
          f"{files.where}: tensor {files.name_in_file(tensor.name)!r} has shape "
          f"{list(array.shape)}, expected a shape that fits {path} of {list(part_shape)}; the "
          "config is of another model"
        )
      if assembled is None:  # allocate only now that the files are known to be as large
        assembled = np.empty(shape, np.float32)
      assembled[index] = part
      filled += part.size
  assert filled == math.prod(shape), f"{path}: {filled} of {math.prod(shape)} values mapped"
  return assembled


def join_parts(tensor: Tensor, arrays: dict[str, jax.Array]) -> np.ndarray:
  """Return a tensor of a file from the parameters that it contains."""
  parts = [np.asarray(arrays[path][index]) for path, index in tensor.parts]
  return np.asarray(tensor.join(parts), order="C")


def _split_into_shards(
  mapping: TensorMapping, arrays: dict[str, jax.Array], itemsize: int
) -> list[list[Tensor]]:
  """Return the tensors in order, grouped so that each file has at most SHARD_BYTES."""
  shards = [[]]
  shard_bytes = 0
  for tensor in mapping.tensors:
    size = sum(math.prod(arrays[path].shape[len(index) :]) for path, index in tensor.parts)
    if shards[-1] and shard_bytes + size * itemsize > SHARD_BYTES:
      shards.append([])
      shard_bytes = 0
    shards[-1].append(tensor)
    shard_bytes += size * itemsize
  return shards
