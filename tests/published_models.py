"""Small random models in Hugging Face directories, each with a tokenizer of its kind."""

import dataclasses
import pathlib

import jax
from flax import nnx

import published
from t5x_like.architectures.design import Tokens
from t5x_like.interop import hf
from t5x_like.models import bert, gpt, t5
from t5x_like.nn.dims import Dims

DIMS = Dims(embed=16, heads=2, kv_heads=2, head_dim=8, mlp=32, layers=1)
LEARNED = {"name": "learned", "length": 64}
# kind: family, variant like it, rows of the table of tokens, cells of the design, special ids
FAMILIES = {
  "gpt2": (gpt, "gpt2", 360, {"position": LEARNED}, Tokens(None, 0, 0)),
  "t5": (t5, "t5-v1_1-small", 256, {}, Tokens(0, 0, 1)),
  "bert": (bert, "bert-base-uncased", 150, {"position": LEARNED}, Tokens(0, 2, 3)),
}
HEADS = {"bert": "mlm"}


def write(directory: pathlib.Path, kind: str, **fields) -> pathlib.Path:
  """Write a model and its tokenizer; `fields` replace those of its variant."""
  family, name, table, design, tokens = FAMILIES[kind]
  like = family.VARIANTS[name]
  fields = ({"head": HEADS[kind]} if kind in HEADS else {}) | fields
  design = dataclasses.replace(like.design, **design)
  variant = dataclasses.replace(
    like, dims=DIMS, vocab_size=table, design=design, tokens=tokens, **fields
  )
  model = jax.jit(lambda key: family.Model(nnx.Rngs(params=key), variant=variant))(
    jax.random.key(0)
  )
  hf.save(model, str(directory))
  return published.write(directory, kind)
