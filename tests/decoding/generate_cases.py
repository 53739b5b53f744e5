"""Random models, inputs and prompts for tests of generation, and a reference without a cache."""

import functools

import jax
import numpy as np
from flax import nnx

import tiny
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.decoding.generate import sample
from t5x_like.models import t5
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

V = 12  # size of the vocabulary
S = 6  # length of encoder inputs
P = 5  # length of prompts
L = 7  # the maximum number of generated tokens
EOS = 1


@functools.cache
def model(kind, position, vocab=V, eos=EOS, **design):
  """Return a random encoder-decoder or decoder whose rows end at different steps."""
  dims = Dims(
    embed=16, heads=4, kv_heads=4 if kind is EncoderDecoder else 2, head_dim=4, mlp=32, layers=2
  )
  variant = Variant(dims, t5.V1_1, vocab, tokens=Tokens(eos=eos))
  design = {"position": dict(position) if isinstance(position, tuple) else position, **design}
  transformer = jax.jit(lambda key: kind(nnx.Rngs(params=key), variant=variant, design=design))(
    jax.random.key(5)
  )
  transformer = tiny.add_noise(transformer)
  arrays = params.arrays(transformer)
  # Smaller embeddings make the next token depend on the context more than on the last token; a
  # larger head takes the distribution away from uniform.
  arrays |= {"embed/table": arrays["embed/table"] * 0.2, "head/kernel": arrays["head/kernel"] * 4}
  return params.with_arrays(transformer, arrays)


def decoder(position="rope", **options):
  return model(Decoder, position, **options)


def encoder_decoder(position="relative_bias", **options):
  return model(EncoderDecoder, position, **options)


def inputs(rows=5, seed=0):
  """Return encoder inputs of unequal length; the last row is only padding."""
  tokens = tiny.batch(rows, S, 2, vocab=V, seed=seed)["encoder_input_tokens"]
  return {"encoder_input_tokens": np.concatenate([tokens[:-1], np.zeros_like(tokens[:1])])}


def prompts(rows=4, side="right", seed=0, vocab=V):
  """Return prompts of unequal length, padded on one side to P."""
  generator = np.random.default_rng(seed)
  tokens = np.zeros((rows, P), np.int32)
  for row in range(rows):
    length = P - row % (P - 1)
    start = 0 if side == "right" else P - length
    tokens[row, start : start + length] = generator.integers(2, vocab, length)
  return {"decoder_input_tokens": tokens}


@jax.jit
def logits(model, batch):
  return model(batch)["logits"]


def run(function, model, batch, **options):
  """Return the NumPy arrays of `function(model, batch, **options)`, compiled once."""
  compiled = compile_once(function, tuple(options.items()))
  return jax.tree.map(np.asarray, compiled(model, batch))


@functools.cache
def compile_once(function, options):
  return jax.jit(functools.partial(function, **dict(options)))


def draw(m, batch, seed=3, **options):
  return sample(m, batch, jax.random.key(seed), max_length=L, **options)


def rerun_greedily(m, batch, length, prompt_BP, prefix_BP=None, eos=(EOS,)):
  """Return greedy tokens, computed by running the whole model on all tokens at every step.

  Args:
    prompt_BP: ids; negative ones are padding.
    prefix_BP: 1 where attention is bidirectional.
  """
  rows = [[id for id in row if id >= 0] for row in prompt_BP]
  starts = [len(row) for row in rows]
  has_ended = [not row for row in rows]
  if "encoder_input_tokens" in batch:
    has_ended = (batch["encoder_input_tokens"] == 0).all(1).tolist()
  out = np.zeros((len(rows), length), np.int32)
  tokens = np.zeros((len(rows), prompt_BP.shape[1] + length), np.int32)
  for t in range(length):
    segments = np.zeros_like(tokens)
    for i, row in enumerate(rows):
      tokens[i, : len(row)] = row
      segments[i, : len(row)] = 1
    features = {**batch, "decoder_input_tokens": tokens}
    if "encoder_input_tokens" not in batch:
      features["decoder_segment_ids"] = segments
    if prefix_BP is not None:
      features["decoder_causal_attention"] = np.pad(prefix_BP, ((0, 0), (0, length)))
    scores = np.asarray(logits(m, features))
    for i, row in enumerate(rows):
      out[i, t] = 0 if has_ended[i] else scores[i, starts[i] + t - 1].argmax()
      has_ended[i] |= out[i, t] in eos
      row.append(out[i, t])
  return out
