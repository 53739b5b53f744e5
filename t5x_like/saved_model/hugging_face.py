"""Open a published model: a Hugging Face directory, a name of the Hub, or a GGUF file."""

import functools
import json
import pathlib
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from t5x_like import vocabularies
from t5x_like.abstract_model import model_name, variant_fields
from t5x_like.data import features, task_features
from t5x_like.data.features import Features
from t5x_like.data.images import layout
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.gguf_file import is_gguf
from t5x_like.files.paths import as_path
from t5x_like.interop import field_types, generation_settings, hf, published_images
from t5x_like.interop.tensor_files import read_text
from t5x_like.nn import params
from t5x_like.nn.positions.learned import LearnedPosition
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.saved_model.hub import local_directory
from t5x_like.saved_model.model import GenerationFacts, SavedModel
from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.kinds.labels import LabelVocabulary

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len")  # keys of config.json
_FORCED_TOKENS = ("forced_bos_token_id", "forced_eos_token_id")
_DEFAULT_LENGTH = 2048  # tokens of a model that names no length


class PublishedModel(SavedModel):
  """A model that is read from a Hugging Face directory or a GGUF file.

  Its identity has the keys of a run's identity that can be read from its files. Its features have
  the greatest length that the model reads.

  Args:
    path: the directory, or the name of the Hub.
    identity: see `SavedModel`.
    model: the abstract model, on CPU with unrolled layers; a model of images has the resolution
      that the directory's processor resizes to.
    vocabulary: its tokenizer, or the names of its classes.
    directory: its location on this machine, or the GGUF file.
    generation: the settings of generation in its files.
    stored: the abstract model of the weights, if `model` has another resolution.
    rules: the mesh to restore on; None is all devices.

  Attributes:
    stored: the abstract model of the weights.
  """

  is_published = True

  def __init__(
    self,
    path: str,
    identity: dict[str, Any],
    model: nnx.Module,
    vocabulary: Vocabulary,
    directory: str,
    generation: GenerationFacts,
    stored: nnx.Module | None = None,
    rules: Rules | None = None,
  ):
    self.path = path
    self.identity = identity
    self.config = ConfigDict(identity)
    self.model = model
    self.vocabulary = vocabulary
    self.vocabulary_directory = directory
    self.generation = generation
    self.stored = model if stored is None else stored
    if rules is not None:
      self.rules = rules

  @functools.cached_property
  def rules(self) -> Rules:
    return Rules.make(make_mesh({"data": -1}))

  def restore(
    self, step: int | None = None, folder: str = "checkpoints"
  ) -> tuple[int, dict[str, jax.Array]]:
    """Return (0, parameters by name), float32; raise as `hf.load`."""
    arrays = hf.read_parameters(self.stored, self.rules)
    shapes = params.arrays(self.model)
    for name, array in arrays.items():
      if array.shape != shapes[name].shape:  # positions
        module = _module_of(self.model, name)
        stored = _module_of(self.stored, name)
        arrays[name] = jax.device_put(module.resize(array, stored), array.sharding)
    return 0, arrays


def _module_of(model: nnx.Module, name: str) -> nnx.Module:
  """Return the module of a parameter."""
  return functools.reduce(getattr, name.split("/")[:-1], model)


def find_published_model(path: str, rules: Rules | None, flag: str) -> PublishedModel | None:
  """Open a Hugging Face directory, a name of the Hub or a GGUF file; return None for no such path.

  Args:
    rules: see `PublishedModel`.
    flag: the flag or key that gave the path, for messages.
  Raises:
    UserError: the Hub does not provide the model; there is no tokenizer, or it is another model's;
      for a model of images, as `published_images`; or as `hf.load`.
  """
  directory = local_directory(path, flag)
  main_file = as_path(directory) if is_gguf(directory) else as_path(directory) / "config.json"
  if not main_file.is_file():
    return None
  layers = "loop" if jax.default_backend() == "cpu" else "scan"
  model = hf.load_abstract(directory, layers=layers)
  if "image" in model.REQUIRED_FEATURES:
    return _open_image_model(path, directory, model, layers, rules, flag)
  if not vocabularies.has_tokenizer(as_path(directory)):
    raise UserError(
      f"{flag}: found no tokenizer beside the model in {path}, expected tokenizer.json or its "
      "like; copy it there"
    )
  vocabulary = vocabularies.load(directory)
  size = model.variant.vocab_size
  if vocabulary.size > size:
    raise UserError(
      f"{flag}: {path}: the tokenizer has {vocabulary.size} ids, the model {size} token vectors; "
      "the tokenizer is another model's"
    )
  values = json.loads(model.origin.config)
  features_by_name = _build_features(model, values, vocabulary)
  task = _build_task(model, values, features_by_name)
  identity = _build_identity(model, vocabulary, features_by_name, task)
  identity["model"] |= {"vocab_size": size, "tokens": {}}
  generation = _read_generation(model, values, vocabulary)
  return PublishedModel(path, identity, model, vocabulary, directory, generation, rules=rules)


def _build_task(model, values: dict[str, Any], features_by_name: Features) -> dict[str, Any]:
  """Return the arguments of `config.task` for a classifier of texts; no task for another model.

  A single label is a regression, as in `transformers`. With `independent`, a text may have several
  labels.
  """
  head = getattr(model.variant, "head", None)
  if not isinstance(head, dict):
    head = {"name": head}
  if head.get("name") != "classification":
    return {"name": None}
  number = head.get("labels", 2)
  task = {
    "name": "classification",
    "text": "{text}",
    "length": features_by_name["encoder_input_tokens"].shape[0],
    "labels": None,
  }
  if number > 1:
    names = values.get("id2label") or {}
    task["labels"] = [str(names.get(str(label), f"LABEL_{label}")) for label in range(number)]
    task["independent"] = values.get("problem_type") == "multi_label_classification"
  return task


def _read_generation(model, values: dict[str, Any], vocabulary: Vocabulary) -> GenerationFacts:
  """Return the settings of generation; ids beyond the model's token vectors are left out.

  They are in `generation_config.json` or, without that file, in the config, as in `transformers`.

  Args:
    values: the content of `config.json`.
  """
  size = model.variant.vocab_size
  directory = pathlib.Path(model.origin.path)
  path = directory / generation_settings.FILE
  if path.is_file():
    settings = checked_json.parse_json(
      read_text(path), dict, str(path), "the settings of generation; copy it again"
    )
    names = ("eos_token_id", *_FORCED_TOKENS)
    field_types.check_fields({name: settings.get(name) for name in names}, str(path))
  else:
    path = directory / "config.json"
    settings = values
  ends = {vocabulary.eos_id}
  for content in (values, settings):
    ends.update(_ids_below(size, content.get("eos_token_id")))
  forced = [_ids_below(size, settings.get(name)) for name in _FORCED_TOKENS]
  first, last = [ids[0] if ids else None for ids in forced]
  is_encoder_decoder = "encoder_input_tokens" in model.REQUIRED_FEATURES
  return GenerationFacts(
    ends=tuple(sorted(ends)),
    forced=(first, last),
    options=generation_settings.predict_options(settings, is_encoder_decoder, str(path)),
    banned=frozenset(map(tuple, generation_settings.banned_sequences(settings, size))),
  )


def _ids_below(size: int, ids: Any) -> list[int]:
  """Return the ids below `size` of a field that has an id, a list of ids, or null."""
  if not isinstance(ids, list):
    ids = [ids]
  return [i for i in ids if i is not None and 0 <= i < size]


def _open_image_model(
  path: str, directory: str, model, layers: str, rules: Rules | None, flag: str
) -> PublishedModel:
  if flag.startswith("config.teacher") or "text_input_tokens" in model.REQUIRED_FEATURES:
    raise UserError(
      f"{flag}: {path} is a published model of images, whose classes are numbered as its training "
      "says; make a workdir of it with python -m tools.convert_hf and a recipe of its family"
    )
  variant = model.variant
  values = json.loads(model.origin.config)
  head = getattr(variant, "head", None)
  detects = hasattr(variant, "queries")
  if isinstance(head, dict):
    labels = head.get("labels", 0)
  else:
    labels = getattr(variant, "labels", 0)
  vocabulary = _class_names(values, labels)
  task = published_images.read_image_task(variant, values, directory, flag)
  stored = model
  resolution = task.get("resolution")
  starts_run = flag.startswith("config.init")
  if not detects and resolution != variant.resolution and not starts_run:
    model = hf.load_abstract(directory, layers=layers, resolution=resolution)
    variant = model.variant
  features_by_name = _image_features(variant, task)
  identity = _build_identity(model, vocabulary, features_by_name, task)
  if head:
    _drop_label_count(identity["model"]["variant"])
    identity["model"]["head"] = head
  else:
    identity["model"] |= {"labels": variant.labels, "queries": variant.queries}
  generation = GenerationFacts()
  return PublishedModel(path, identity, model, vocabulary, directory, generation, stored, rules)


def _class_names(values: dict[str, Any], labels: int) -> LabelVocabulary:
  """Return the names of the classes in a config of `transformers` or timm.

  The name of a class without one is its number.
  """
  labels_by_id = values.get("id2label") or dict(enumerate(values.get("label_names") or ()))
  names = {int(i): str(name) for i, name in labels_by_id.items() if str(i).isdecimal()}
  return LabelVocabulary([names.get(number, str(number)) for number in range(labels)])


def _image_features(variant, task: dict[str, Any]) -> Features:
  """Return the features of a model's training."""
  if hasattr(variant, "queries"):
    return task_features.declare({"name": "object_detection", "boxes": variant.queries} | task)
  return layout.describe(task.get("resolution", variant.resolution), variant.channels)


def _drop_label_count(fields: dict[str, Any]) -> None:
  """Leave the number of classes in a variant to the data of a new run."""
  if isinstance(fields.get("head"), dict):
    fields["head"].pop("labels", None)


def _build_features(model, values: dict[str, Any], vocabulary: Vocabulary) -> Features:
  """Return the features of a model of texts, of the greatest length that it reads."""
  inputs = model.encoder_inputs if hasattr(model, "encoder_inputs") else model.inputs
  lengths = [values[key] for key in _LENGTHS if isinstance(values.get(key), int)]
  length = lengths[0] if lengths else _DEFAULT_LENGTH
  if isinstance(inputs.position, LearnedPosition):
    length = inputs.position.length
  if "decoder_input_tokens" not in model.REQUIRED_FEATURES:
    return features.encoder(length, "segment_ids")
  if "encoder_input_tokens" in model.REQUIRED_FEATURES:
    return features.encoder_decoder(length, length, vocabulary)
  return features.decoder(length)


def _build_identity(
  model: nnx.Module, vocabulary: Vocabulary, features_by_name: Features, task: dict[str, Any]
) -> dict[str, Any]:
  """Return a description of a model in the form of a run's `config.json`."""
  return {
    "model": {"name": model_name(type(model)), "variant": variant_fields(model.variant)},
    "fingerprints": {"vocabulary": vocabulary.fingerprint},
    "features": {name: list(feature.shape) for name, feature in features_by_name.items()},
    "task": task,
    "tuning": {},
  }
