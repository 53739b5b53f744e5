"""Published models where a run's would serve: a Hugging Face directory with its tokenizer, or a
name of the Hub."""

import dataclasses
import functools
import json
import pathlib
from typing import Any

import jax
from flax import nnx

from t5x_like import vocabularies
from t5x_like.data import features
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.paths import as_path
from t5x_like.interop import field_types, generation_settings, hf, hub, published_images
from t5x_like.interop.tensor_files import read_text
from t5x_like.nn import params
from t5x_like.nn.positions.learned import LearnedPosition
from t5x_like.parallel.rules import Rules

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len")  # keys of config.json
_FORCED = ("forced_bos_token_id", "forced_eos_token_id")
_UNLIMITED = 2048  # tokens of a model that names no length


@dataclasses.dataclass(frozen=True)
class PublishedModel:
  """A published model, whose parameters can be read.

  Attributes:
    identity: its facts in the form of a run's `config.json`. Beside the keys of a run, `directory`
      is its place on this machine, `ends` has the ids that end a text, and `forced` the id that an
      answer begins with and that it ends with where it is cut off, each or None. `generation` has
      its settings by the names of `predict`'s options, and `banned` the sequences of ids that no
      text has. Features are those of pretraining, as long as the model reads.
    model: abstract, its layers one by one on CPU; of images, for those that the directory's
      processor makes.
    vocabulary: its tokenizer, or the names of its classes.
  """

  identity: dict[str, Any]
  model: nnx.Module
  vocabulary: vocabularies.Vocabulary
  # the abstract model of the weights, if it is for images of another size
  held: nnx.Module | None = None

  def arrays(self, rules: Rules) -> dict[str, jax.Array]:
    """Return the parameters by name, float32, on the mesh of `rules`; raise as `hf.load`."""
    if self.held is None:
      return hf.read_parameters(self.model, rules)
    found = hf.read_parameters(self.held, rules)
    shapes = params.arrays(self.model)
    # positions
    for name in (name for name, array in found.items() if array.shape != shapes[name].shape):
      module, other = (
        functools.reduce(getattr, name.split("/")[:-1], model) for model in (self.model, self.held)
      )
      found[name] = jax.device_put(module.resize(found[name], other), found[name].sharding)
    return found


def find(path: str, flag: str) -> PublishedModel | None:
  """Open a Hugging Face directory or a name of the Hub; return None if the path is neither.

  Args:
    flag: the flag or key that gave the path, for messages.
  Raises:
    UserError: the Hub does not give the model; there is no tokenizer, or it is another model's; of
      a model of images, see `published_images`; or as `hf.load`.
  """
  directory = hub.local_directory(path, flag)
  if not (as_path(directory) / "config.json").is_file():
    return None
  layers = "loop" if jax.default_backend() == "cpu" else "scan"
  model = hf.load_abstract(directory, layers=layers)
  if "image" in model.REQUIRED_FEATURES:
    return _of_images(path, directory, model, flag, layers)
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
  told = _generated(
    values, pathlib.Path(model.origin.path), size, "encoder_input_tokens" in model.REQUIRED_FEATURES
  )
  shapes = {name: list(one.shape) for name, one in _features(model, values, vocabulary).items()}
  identity = {
    "model": {
      "name": _name(type(model)),
      "variant": _plain(model.variant),
      "vocab_size": size,
      "tokens": {},
    },
    "fingerprints": {"vocabulary": vocabulary.fingerprint},
    "features": shapes,
    "task": _task(model, values, shapes),
    "tuning": {},
    "directory": directory,
    **told,
    "ends": sorted({vocabulary.eos_id, *told["ends"]}),
  }
  return PublishedModel(identity, model, vocabulary)


def _task(model, values: dict[str, Any], shapes: dict[str, list[int]]) -> dict[str, Any]:
  """Return the arguments of `config.task` for a classifier of texts; no task for another model.

  A single label is a regression, as in the library. `independent` says that a text may have several
  labels.
  """
  head = getattr(model.variant, "head", None)
  name, arguments = (head.get("name"), head) if isinstance(head, dict) else (head, {})
  if name != "classification":
    return {"name": None}
  number = arguments.get("labels", 2)
  task = {
    "name": name,
    "text": "{text}",
    "length": shapes["encoder_input_tokens"][0],
    "labels": None,
  }
  if number > 1:
    names = values.get("id2label") or {}
    task["labels"] = [str(names.get(str(label), f"LABEL_{label}")) for label in range(number)]
    task["independent"] = values.get("problem_type") == "multi_label_classification"
  return task


def _generated(
  values: dict[str, Any], directory: pathlib.Path, size: int, both: bool
) -> dict[str, Any]:
  """Return the facts of generation for an identity; see `Published`.

  `generation_config.json` tells them; without that file the library takes the config for it.
  """
  path = directory / generation_settings.FILE
  own = values
  if path.is_file():
    own = checked_json.parse_json(
      read_text(path), dict, str(path), "the settings of generation; copy it again"
    )
    field_types.check_fields(
      {name: own.get(name) for name in ("eos_token_id", *_FORCED)}, str(path)
    )

  def ids(found: Any) -> list[int]:
    return [
      i for i in (found if isinstance(found, list) else [found]) if i is not None and 0 <= i < size
    ]

  ends = [*ids(values.get("eos_token_id")), *ids(own.get("eos_token_id"))]
  return {
    "ends": ends,
    "forced": [next(iter(ids(own.get(name))), None) for name in _FORCED],
    "generation": generation_settings.predict_options(
      own, both, str(path if path.is_file() else directory / "config.json")
    ),
    "banned": generation_settings.banned_sequences(own, size),
  }


def _of_images(path: str, directory: str, model, flag: str, layers: str) -> PublishedModel:
  if flag.startswith("config.teacher") or "text_input_tokens" in model.REQUIRED_FEATURES:
    raise UserError(
      f"{flag}: {path} is a published model of images, whose classes are numbered as its training "
      "says; make a workdir of it with python -m tools.convert_hf and a recipe of its family"
    )
  variant = model.variant
  values = json.loads(model.origin.config)
  head = getattr(variant, "head", None)
  detects = hasattr(variant, "queries")
  labels = head.get("labels", 0) if isinstance(head, dict) else getattr(variant, "labels", 0)
  vocabulary = published_images.class_names(values, labels)
  task = published_images.image_task(variant, values, directory, flag)
  described = published_images.image_features(variant, task)
  held = None
  side = task.get("resolution")
  if not detects and side != variant.resolution and not flag.startswith("config.init"):
    held = model
    model = hf.load_abstract(directory, layers=layers, resolution=side)
    variant = model.variant
  own = {"head": head} if head else {"labels": variant.labels, "queries": variant.queries}
  identity = {
    "model": published_images.drop_label_count(
      {"name": _name(type(model)), "variant": _plain(variant)} | own
    ),
    "fingerprints": {"vocabulary": vocabulary.fingerprint},
    "features": {name: list(one.shape) for name, one in described.items()},
    "task": task,
    "tuning": {},
    "directory": directory,
    "ends": [],
  }
  return PublishedModel(identity, model, vocabulary, held)


def _features(model, values: dict[str, Any], vocabulary) -> features.Features:
  inputs = model.encoder_inputs if hasattr(model, "encoder_inputs") else model.inputs
  length = next((values[key] for key in _LENGTHS if isinstance(values.get(key), int)), _UNLIMITED)
  if isinstance(inputs.position, LearnedPosition):
    length = inputs.position.length
  if "decoder_input_tokens" not in model.REQUIRED_FEATURES:
    return features.encoder(length, "segment_ids")
  if "encoder_input_tokens" in model.REQUIRED_FEATURES:
    return features.encoder_decoder(length, length, vocabulary)
  return features.decoder(length)


def _name(model_class: type) -> str:
  """Return the name of a class in `config.model`."""
  module = model_class.__module__
  return (
    module.rpartition(".")[2]
    if model_class.__qualname__ == "Model"
    else f"{module}:{model_class.__qualname__}"
  )


def _plain(variant) -> dict[str, Any]:
  return json.loads(json.dumps(dataclasses.asdict(variant)))
