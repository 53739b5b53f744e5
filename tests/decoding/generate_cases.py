"""What the tests of generation share: random models, inputs and prompts, and the model run again at
every step."""

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

V = 12
S = 6
P = 5
L = 7
EOS = 1


@functools.cache
def model(kind, position, vocab=V, eos=EOS, **design):
  """A random encoder-decoder or decoder whose rows end at different steps."""
  dims = Dims(
    embed=16, heads=4, kv_heads=4 if kind is EncoderDecoder else 2, head_dim=4, mlp=32, layers=2
  )
  variant = Variant(dims, t5.V1_1, vocab, tokens=Tokens(eos=eos))
  design = {"position": dict(position) if isinstance(position, tuple) else position, **design}
  made = jax.jit(lambda key: kind(nnx.Rngs(params=key), variant=variant, design=design))(
    jax.random.key(5)
  )
  made = tiny.add_noise(made)
  arrays = params.arrays(made)
  # More of the context and less of the last token in what comes next, and far from uniform.
  arrays |= {"embed/table": arrays["embed/table"] * 0.2, "head/kernel": arrays["head/kernel"] * 4}
  return params.with_arrays(made, arrays)


def decoder(position="rope", **options):
  return model(Decoder, position, **options)


def encoder_decoder(position="relative_bias", **options):
  return model(EncoderDecoder, position, **options)


def inputs(rows=5, seed=0):
  """Encoder inputs of unequal length; the last row is padding only."""
  tokens = tiny.batch(rows, S, 2, vocab=V, seed=seed)["encoder_input_tokens"]
  return {"encoder_input_tokens": np.concatenate([tokens[:-1], np.zeros_like(tokens[:1])])}


def prompts(rows=4, side="right", seed=0, vocab=V):
  """Prompts of unequal length, padded on one side to P."""
  generator = np.random.default_rng(seed)
  tokens = np.zeros((rows, P), np.int32)
  for row in range(rows):
    n = P - row % (P - 1)
    tokens[row, slice(0, n) if side == "right" else slice(P - n, P)] = generator.integers(
      2, vocab, n
    )
  return {"decoder_input_tokens": tokens}


@jax.jit
def logits(model, batch):
  return model(batch)["logits"]


def run(function, model, batch, **options):
  return jax.tree.map(np.asarray, program(function, tuple(options.items()))(model, batch))


@functools.cache
def program(function, options):
  return jax.jit(functools.partial(function, **dict(options)))


def draw(m, batch, seed=3, **options):
  return sample(m, batch, jax.random.key(seed), max_length=L, **options)


def rerun_greedily(m, batch, length, prompt_BP, prefix_BP=None, eos=(EOS,)):
  """The whole model on prompt and tokens so far, at every step, row by row padded right."""
  rows = [[id for id in row if id >= 0] for row in prompt_BP]
  starts = [len(row) for row in rows]
  ends = [not row for row in rows]
  if "encoder_input_tokens" in batch:
    ends = (batch["encoder_input_tokens"] == 0).all(1).tolist()
  out = np.zeros((len(rows), length), np.int32)
  fed = np.zeros((len(rows), prompt_BP.shape[1] + length), np.int32)
  for t in range(length):
    segments = np.zeros_like(fed)
    for i, row in enumerate(rows):
      fed[i, : len(row)], segments[i, : len(row)] = row, 1
    features = {**batch, "decoder_input_tokens": fed}
    if "encoder_input_tokens" not in batch:
      features["decoder_segment_ids"] = segments
    if prefix_BP is not None:
      features["decoder_causal_attention"] = np.pad(prefix_BP, ((0, 0), (0, length)))
    best = np.asarray(logits(m, features))
    for i, row in enumerate(rows):
      out[i, t] = 0 if ends[i] else best[i, starts[i] + t - 1].argmax()
      ends[i] |= out[i, t] in eos
      row.append(out[i, t])
  return out
