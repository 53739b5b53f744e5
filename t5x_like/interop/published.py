"""Published models where a run's would serve: a Hugging Face directory with its tokenizer, or a name of the Hub."""

import dataclasses
import json
from typing import Any

import jax

from t5x_like import vocabularies
from t5x_like.data import features
from t5x_like.errors import UserError
from t5x_like.files.places import place
from t5x_like.interop import hf, hub
from t5x_like.nn import params
from t5x_like.nn.positions.learned import LearnedPosition

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len")  # keys of config.json
_UNLIMITED = 2048  # tokens of a model that names no length


def identity(path: str) -> dict[str, Any] | None:
  """Return a model's facts in the form of a run's `config.json`, or None if the path is neither a model nor a name.

  Beside the keys of a run, `directory` is the model's place on this machine, and `ends` has the ids that end a text.
  The features are those that pretraining has, as long as the model reads.

  Raises:
    UserError: the Hub does not give the model; it is one of images; there is no tokenizer, or it is another model's; or
      as `hf.load`.
  """
  directory = hub.directory(path)
  if not (place(directory) / "config.json").is_file():
    return None
  model = abstract(directory)
  if not hasattr(model.variant, "vocab_size"):
    raise UserError(
      f"{path}: a published model of images, which are prepared as its training says; make a workdir of it with python"
      " -m tools.convert_hf and a recipe of its family"
    )
  if not vocabularies.has_tokenizer(place(directory)):
    raise UserError(f"{path}: found no tokenizer beside the model, expected tokenizer.json or its like; copy it there")
  vocabulary = vocabularies.load(directory)
  size = model.variant.vocab_size
  if vocabulary.size > size:
    raise UserError(
      f"{path}: the tokenizer has {vocabulary.size} ids, the model {size} token vectors; the tokenizer is another"
      " model's"
    )
  values = json.loads(model.origin.config)
  ends = values.get("eos_token_id")
  ends = {vocabulary.eos_id, *(ends if isinstance(ends, list) else [ends])} - {None}
  shapes = {name: list(one.shape) for name, one in _features(model, values, vocabulary).items()}
  return {
    "model": {"name": _name(type(model)), "variant": _plain(model.variant), "vocab_size": size, "tokens": {}},
    "fingerprints": {"vocabulary": vocabulary.fingerprint},
    "features": shapes,
    "task": {"name": None},
    "tuning": {},
    "directory": directory,
    "ends": sorted(i for i in ends if i < size),
  }


def abstract(directory: str):
  """Return the abstract model of a directory, its layers one by one on CPU."""
  return hf.abstract(directory, layers="loop" if jax.default_backend() == "cpu" else "scan")


def arrays(directory: str, rules) -> dict[str, jax.Array]:
  """Return the parameters of a directory's model by name, float32, on the mesh of `rules`."""
  return params.arrays(hf.load(directory, rules=rules))


def _features(model, values: dict[str, Any], vocabulary) -> features.Features:
  inputs = model.encoder_inputs if hasattr(model, "encoder_inputs") else model.inputs
  length = next((values[key] for key in _LENGTHS if isinstance(values.get(key), int)), _UNLIMITED)
  if isinstance(inputs.position, LearnedPosition):
    length = inputs.position.length
  if "decoder_input_tokens" not in model.NEEDS:
    return features.encoder(length, "segment_ids")
  if "encoder_input_tokens" in model.NEEDS:
    return features.encoder_decoder(length, length, vocabulary)
  return features.decoder(length)


def _name(model_class: type) -> str:
  """Return the name of a class in `config.model`."""
  module = model_class.__module__
  return module.rpartition(".")[2] if model_class.__qualname__ == "Model" else f"{module}:{model_class.__qualname__}"


def _plain(variant) -> dict[str, Any]:
  return json.loads(json.dumps(dataclasses.asdict(variant)))
