"""Layers that share parameters equal a stack of separate layers with equal parameters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import more
import tiny
from t5x_like.architectures.encoder import Encoder
from t5x_like.errors import UserError
from t5x_like.models import albert
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

LAYERS = 3
VARIANT = dataclasses.replace(
  albert.VARIANTS["albert-tiny"], dims=Dims(16, 4, 4, 4, 32, LAYERS), embed=8, vocab_size=tiny.VOCAB
)


@pytest.mark.parametrize(
  "form", [dict(layers="scan", remat="full"), more.later(dict(layers="loop"))], ids=["scan", "loop"]
)
def test_shared_layers_equal_separate_layers_whose_gradients_are_summed(form):
  shared = jax.jit(lambda: albert.Model(nnx.Rngs(params=0), variant=VARIANT, **form))()
  separate = jax.eval_shape(lambda: Encoder(nnx.Rngs(params=0), variant=VARIANT, **form))
  tokens = np.random.default_rng(0).integers(4, tiny.VOCAB, (2, 7)).astype(np.int32)
  batch = {"encoder_input_tokens": tokens}
  shared_arrays = params.arrays(shared)
  repeated_arrays = {
    n: jnp.repeat(x, LAYERS, axis=0) if "blocks" in n else x for n, x in shared_arrays.items()
  }
  assert params.count(separate) > params.count(shared)

  def value(arrays, model):
    out = params.with_arrays(model, arrays)(batch)
    return jnp.sum(jnp.sin(out["logits"])) + jnp.sum(out["next_sentence_logits"])

  actual = jax.jit(jax.value_and_grad(value))(shared_arrays, shared)
  expected = jax.jit(jax.value_and_grad(value))(repeated_arrays, separate)
  np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
  largest = max(np.abs(g).max() for g in expected[1].values())
  for name, gradient in actual[1].items():
    expected_gradient = expected[1][name]
    if "blocks" in name:
      expected_gradient = expected_gradient.sum(0, keepdims=True)
    atol = 1e-5 * largest
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=atol, err_msg=name)


def test_groups_split_over_stages_are_refused():
  variant = dataclasses.replace(VARIANT, groups=3)
  stack = jax.eval_shape(lambda: albert.Model(nnx.Rngs(params=0), variant=variant)).encoder
  blocks = jax.tree.map(lambda leaf: leaf.update(shape=(1, *leaf.shape[1:])), (stack.blocks, None))
  with pytest.raises(UserError, match="config.mesh.stage"):
    stack._run(blocks, None, None, None, None)


@pytest.mark.parametrize(
  "layers, groups, times",
  [(12, 1, (12,)), (5, 2, (3, 2)), (12, 5, (3, 2, 3, 2, 2)), (2, 3, (1, 1, 0))],
)
def test_groups_run_as_many_times_as_in_the_released_code(layers, groups, times):
  dims = dataclasses.replace(VARIANT.dims, layers=layers)
  assert dataclasses.replace(VARIANT, dims=dims, groups=groups).times == times


def test_dropout_changes_the_output_with_the_key():
  model = jax.jit(lambda: albert.Model(nnx.Rngs(params=0), variant=VARIANT, dropout=0.5))()
  batch = {"encoder_input_tokens": np.full((2, 7), 5, np.int32)}
  run = jax.jit(lambda key: model.encode(batch, key)[0])
  assert float(jnp.abs(run(jax.random.key(0)) - run(jax.random.key(1))).max()) > 0.1
