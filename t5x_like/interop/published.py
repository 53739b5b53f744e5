"""Open a published model where a run's checkpoint would serve: a Hugging Face directory with its tokenizer."""

import json

import jax

from t5x_like import vocabularies
from t5x_like.data import features
from t5x_like.errors import UserError
from t5x_like.files.places import place
from t5x_like.interop import hf
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.rows import Opened, Runner

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len")  # keys of config.json
_UNLIMITED = 2048  # tokens of a model that names no length


def opened(directory: str, batch_size: int) -> Opened:
  """Open a directory, its parameters split over all devices.

  Raises:
    UserError: there is no tokenizer, it is another model's, or as `hf.load`.
  """
  if not vocabularies.has_tokenizer(place(directory)):
    raise UserError(
      f"{directory}: found no tokenizer beside the model, expected tokenizer.json or its like; copy it there"
    )
  rules = Rules.make(make_mesh({"data": -1}))
  model = hf.load(directory, rules=rules, layers="loop" if jax.default_backend() == "cpu" else "scan")
  vocabulary = vocabularies.load(directory)
  size = model.variant.vocab_size
  if vocabulary.size > size:
    raise UserError(
      f"{directory}: the tokenizer has {vocabulary.size} ids, the model {size} token vectors; the tokenizer is another"
      " model's"
    )
  values = json.loads(model.origin.config)
  length = next((values[key] for key in _LENGTHS if isinstance(values.get(key), int)), _UNLIMITED)
  both = hasattr(model, "encode")
  described = features.encoder_decoder(length, length, vocabulary) if both else features.decoder(length)
  shapes = {name: list(one.shape) for name, one in described.items()}
  ends = values.get("eos_token_id")
  ends = {vocabulary.eos_id, *(ends if isinstance(ends, list) else [] if ends is None else [ends])}
  run = Runner(jax.eval_shape(lambda: model), rules, params.arrays(model), batch_size)
  return Opened(run, vocabulary, shapes, tuple(sorted(i for i in ends if i < size)))
