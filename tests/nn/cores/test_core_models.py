"""Models with each core give the same results in a scan, in a loop and in decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import more
from arrays import assert_trees_close
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.encoder import Encoder
from t5x_like.nn import params
from tests import topics
from tests.nn.cores.core_models import T, batch, build_model

SPECS = {
  "chunked": {"name": "chunked", "query_chunk": 8, "key_chunk": 8},
  "local": {"name": "local", "window": 6},
  "turns": ({"name": "local", "window": 4}, {"name": "chunked", "query_chunk": 8, "key_chunk": 8}),
} | topics.cases("CORES")

MODELS = [(Decoder, "chunked", "relative_bias"), (Decoder, "local", "relative_bias")]
MODELS += [(Encoder, name, "rope") for name in topics.cases("CORES_OF_ENCODERS")]
MODELS += [(Decoder, name, "rope") for name in topics.cases("CORES_OF_DECODERS")]
# Cores that have no parameters, and no hand-written backward pass either.
CORES_WITHOUT_PARAMETERS = {"local", *topics.cases("CORES_WITHOUT_PARAMETERS")}


@pytest.mark.parametrize("kind, name, position", more.beyond(2, MODELS))
def test_scan_has_the_outputs_and_gradients_of_a_loop(kind, name, position):
  """The scan rematerialises its layers. The chunked core is also compared with the dense core.

  Gradients are compared for cores that have parameters or a hand-written backward pass.
  """
  features = batch("encoder" if kind is Encoder else "decoder")
  valid = next(iter(features.values()))[..., None] != 0

  def logits(m):
    return jnp.where(valid, m(features)["logits"], 0)

  def loss(m):
    return jnp.sum(logits(m) ** 2)

  def run(core, **options):
    m = build_model(kind, core, position, **options)
    if name in CORES_WITHOUT_PARAMETERS:
      return {"logits": jax.jit(logits)(m)}
    value, gradients = jax.jit(jax.value_and_grad(loss))(m)
    return {"loss": value} | params.arrays(gradients)

  scan = run(SPECS[name], remat="full")
  references = [run(SPECS[name], layers="loop")]
  if name == "chunked":
    references.append(run("dense"))
  scale = max(float(jnp.abs(x).max()) for x in scan.values() if x.ndim)
  for reference in references:
    assert_trees_close(scan, reference, rtol=1e-3, atol=1e-5 * scale)


DECODING = [
  ("turns", "rope"),
  ("local", "relative_bias"),
  *((name, "rope") for name in topics.cases("CORES_OF_DECODERS")),
  ("chunked", "relative_bias"),
]


@pytest.mark.parametrize("name, position", more.beyond(3, DECODING))
def test_decoding_equals_the_forward_pass(name, position):
  decoder = build_model(Decoder, SPECS[name], position)
  features = batch("decoder")
  tokens = features["decoder_input_tokens"]
  expected = jax.jit(lambda b: decoder(b)["logits"])(features)
  state = decoder.start_decoding(features, T + 2)
  decode = jax.jit(lambda tokens, state: decoder.decode(tokens, state, tokens != 0))
  prompt = np.zeros((2, 22), np.int32)
  prompt[0, 2:] = tokens[0, :20]  # padding may be on either side
  prompt[1, :20] = tokens[1, :20]
  first, state = decode(prompt, state)
  steps = [jnp.stack([first[0, 2:], first[1, :20]])]
  for t in range(20, 25):
    logits, state = decode(tokens[:, t : t + 1], state)
    steps.append(logits)
  np.testing.assert_allclose(jnp.concatenate(steps, axis=1), expected[:, :25], rtol=1e-4, atol=1e-5)
