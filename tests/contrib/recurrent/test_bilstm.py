"""The head on a bidirectional LSTM reads any hidden states of an encoder."""

import dataclasses
import types
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import more
import tiny
from t5x_like.errors import UserError
from t5x_like.models import albert, bert, deberta, gpt
from t5x_like.nn import params
from tests.models.families import shrink

B = 4
T = 10


def batch() -> dict[str, jax.Array]:
  tokens = np.random.default_rng(0).integers(3, 64, (B, T)).astype(np.int32)
  tokens[1, 7:] = 0
  return {"encoder_input_tokens": jnp.asarray(tokens)}


@pytest.mark.parametrize("family", [bert, more.later(albert), more.later(deberta)])
def test_a_hidden_state_is_the_output_of_an_encoder_of_as_many_layers(family):
  """Of a post-norm encoder: state 1 is the output of the encoder of one layer."""
  variant = shrink(next(iter(family.VARIANTS.values())))
  one_layer = dataclasses.replace(variant, dims=dataclasses.replace(variant.dims, layers=1))

  def states(variant, *numbers):
    model = tiny.abstract(
      variant, family=family, head={"name": "bilstm", "states": numbers, "hidden": 4}
    )
    drawn = {name: noise(name, x.shape) for name, x in params.named_params(model).items()}
    return jax.jit(lambda model: model.encode(batch())[0])(params.with_arrays(model, drawn))

  def noise(name, shape):  # the first layer is the same in both
    full_shape = (2, *shape[1:]) if "/blocks/" in name else shape
    drawn = (
      np.random.default_rng(zlib.crc32(name.encode()))
      .standard_normal(full_shape)
      .astype(np.float32)
      / 4
    )
    return jnp.asarray(drawn[: shape[0]])

  layer_states = states(variant, 0, 1, -1)
  assert layer_states.shape == (B, T, 48)
  assert len({float(layer_states[..., i].sum()) for i in (0, 16, 32)}) == 3
  np.testing.assert_allclose(layer_states[..., 16:32], states(one_layer, -1), atol=1e-5)
  np.testing.assert_allclose(layer_states[..., 32:], states(variant, -1), atol=1e-5)
  with pytest.raises(
    UserError, match="config.model.head.states: found .0, 3., expected numbers from -3 to 2"
  ):
    states(variant, 0, 3)


def test_a_reader_sees_later_tokens_through_a_bilstm():
  variant = shrink(gpt.VARIANTS["gpt1"])
  tokens = batch()["encoder_input_tokens"]
  changed = tokens.at[0, 4].set(2)
  head = {"name": "bilstm", "hidden": 4}
  model = tiny.model(variant, family=types.SimpleNamespace(Model=gpt.Reader), head=head)
  run = jax.jit(lambda model, x: model({"encoder_input_tokens": x})["logits"][0])
  original = run(model, tokens)
  after_change = run(model, changed)
  assert (original[4:] != after_change[4:]).any(axis=-1).all()
  assert (original[:4] != after_change[:4]).any()
