"""Change files of encoders, and shrink variants of them."""

import dataclasses
import json

from safetensors.numpy import load_file, save_file

from t5x_like.nn.dims import Dims


def rewrite(directory, tensors=None, **config):
  """Changes to the directory of a case: tensors -> tensors, and fields of config.json (None
  removes)."""
  path = directory / "model.safetensors"
  if tensors:
    save_file(tensors(load_file(path)), path)
  values = json.loads((directory / "config.json").read_text()) | config
  (directory / "config.json").write_text(
    json.dumps({k: v for k, v in values.items() if v is not None})
  )


def shrunk(variant):
  dims = Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=3)
  return dataclasses.replace(variant, dims=dims, vocab_size=64, embed=8 if variant.embed else None)
