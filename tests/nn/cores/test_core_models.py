"""Models with each core decode and scan as they compute, and refuse what their core refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import more
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

T = 30
DIMS = Dims(embed=16, heads=4, kv_heads=2, head_dim=4, mlp=32, layers=2)
SPECS = {
  "chunked": {"name": "chunked", "query_chunk": 8, "key_chunk": 8},
  "local": {"name": "local", "window": 6},
  "bigbird": {"name": "bigbird", "block": 4, "random_blocks": 1},
  "linformer": {"name": "linformer", "k": 6, "length": T, "share": "layerwise"},
  "memory_compressed": {"name": "memory_compressed", "stride": 3},
  "turns": ({"name": "local", "window": 4}, {"name": "memory_compressed", "stride": 2}),
}


def model(kind, core, position="rope", **options):
  variant = Variant(DIMS, Design(norm="rmsnorm", position=position), 32)
  return jax.jit(
    lambda key: kind(nnx.Rngs(params=key), variant=variant, design={"core": core}, **options)
  )(jax.random.key(0))


def batch(side):
  tokens = np.random.default_rng(0).integers(2, 32, (2, T)).astype(np.int32)
  tokens[1, 25:] = 0
  return {f"{side}_input_tokens": jnp.asarray(tokens)}


MODELS = [(Encoder, name, "rope") for name in ("bigbird", "linformer", "memory_compressed")]
MODELS += [(Decoder, "memory_compressed", "rope"), (Decoder, "chunked", "relative_bias")]
MODELS += [(Decoder, "local", "relative_bias")]


@pytest.mark.parametrize("kind, name, position", more.beyond(2, MODELS))
def test_scan_has_the_outputs_and_gradients_of_a_loop(kind, name, position):
  """Outputs, and all gradients of cores with parameters or a backward pass of their own,
  rematerialised in the scan; the dense core agrees where the core is exact."""
  features = batch("encoder" if kind is Encoder else "decoder")
  valid = next(iter(features.values()))[..., None] != 0

  def run(core, **options):
    encoder = model(kind, core, position, **options)
    if name in ("local", "bigbird"):
      return jax.jit(lambda m: jnp.where(valid, m(features)["logits"], 0))(encoder), {
        "none": jnp.ones(())
      }
    loss = jax.jit(
      jax.value_and_grad(lambda m: jnp.sum(jnp.where(valid, m(features)["logits"], 0) ** 2))
    )
    value, gradients = loss(encoder)
    return value, params.arrays(gradients)

  scan = run(SPECS[name], remat="full")
  loop = run(SPECS[name], layers="loop")
  exact = run("dense") if name == "chunked" else scan
  scale = max(float(jnp.abs(g).max()) for g in scan[1].values())
  for a, b, c in zip(
    jax.tree.leaves(scan), jax.tree.leaves(loop), jax.tree.leaves(exact), strict=True
  ):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * scale)
    np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-5 * scale)


def test_layerwise_projections_are_one_matrix_in_all_layers():
  """The model is that of key-value sharing whose layers all have the stack's matrix."""
  encoder = model(Encoder, SPECS["linformer"])
  features = batch("encoder")
  arrays = params.arrays(encoder)
  projection = arrays.pop("encoder/projection")
  of_layers = model(Encoder, {**SPECS["linformer"], "share": "kv"})
  keys = {
    name: jnp.stack([projection] * DIMS.layers)
    for name in params.arrays(of_layers).keys() - arrays.keys()
  }
  of_layers = params.with_arrays(of_layers, arrays | keys)
  logits = jax.jit(lambda models: [m(features)["logits"] for m in models])([encoder, of_layers])
  np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)
  sizes = ({"name": "linformer", "k": k, "length": T, "share": "layerwise"} for k in (4, 6))
  with pytest.raises(
    UserError, match="core: found 'layerwise' projections of .6, 30. and .4, 30., expected one size"
  ):
    model(Encoder, tuple(sizes))


DECODING = [
  ("memory_compressed", "rope"),
  ("turns", "rope"),
  ("chunked", "rope"),
  ("local", "relative_bias"),
]
DECODING += [("chunked", "relative_bias"), ("local", "rope")]


@pytest.mark.parametrize("name, position", more.beyond(4, DECODING))
def test_decoding_equals_the_forward_pass(name, position):
  encoder = model(Decoder, SPECS[name], position)
  features = batch("decoder")
  tokens = features["decoder_input_tokens"]
  expected = jax.jit(lambda b: encoder(b)["logits"])(features)
  state = encoder.start_decoding(features, T + 2)
  decode = jax.jit(lambda tokens, state: encoder.decode(tokens, state, tokens != 0))
  # padded anywhere
  prompt = (
    jnp.zeros((2, 22), jnp.int32).at[0, 2:].set(tokens[0, :20]).at[1, :20].set(tokens[1, :20])
  )
  first, state = decode(prompt, state)
  steps = [jnp.stack([first[0, 2:], first[1, :20]])]
  for t in range(20, 25):
    logits, state = decode(tokens[:, t : t + 1], state)
    steps.append(logits)
  np.testing.assert_allclose(jnp.concatenate(steps, axis=1), expected[:, :25], rtol=1e-4, atol=1e-5)


def test_models_refuse_what_their_core_refuses():
  for core in ("linformer", "bigbird"):
    with pytest.raises(UserError, match=f"core '{core}' cannot do causal attention"):
      jax.eval_shape(model(Decoder, SPECS[core]), batch("decoder"))
  with pytest.raises(UserError, match="core 'linformer' cannot do causal attention"):
    jax.eval_shape(model(EncoderDecoder, SPECS["linformer"]), batch("encoder") | batch("decoder"))
  with pytest.raises(UserError, match="core 'bigbird' cannot do a position bias on the logits"):
    jax.eval_shape(model(Encoder, SPECS["bigbird"], "alibi"), batch("encoder"))
