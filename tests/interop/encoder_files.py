"""Change files of models, and shrink variants of encoders."""

import dataclasses
import json

from safetensors.numpy import load_file, save_file

from t5x_like.nn.dims import Dims


def rewrite(directory, tensors=None, **config):
  """Apply a function to the tensors of a directory, and change its config; None removes a field."""
  path = directory / "model.safetensors"
  if tensors:
    save_file(tensors(load_file(path)), path)
  file = directory / "config.json"
  values = json.loads(file.read_text()) | config
  file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def shrunk(variant):
  dims = Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=3)
  return dataclasses.replace(variant, dims=dims, vocab_size=64, embed=8 if variant.embed else None)
