"""The decoder objective weighs every target, packed or not, except the targets in the prefix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from t5x_like.architectures.design import Variant
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.models import gpt, t5_lm
from t5x_like.nn.dims import Dims
from t5x_like.objectives import decoder
from t5x_like.objectives._losses import token_losses
from t5x_like.quiet_tensorflow import tf

DIMS = Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=2)
MODELS = {
  "gpt": (gpt, Variant(DIMS, gpt.VARIANTS["gpt2-tiny"].design, tiny.VOCAB)),
  "prefix": (t5_lm, Variant(DIMS, t5_lm.VARIANTS["prefix-tiny"].design, tiny.VOCAB)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
  family, variant = MODELS[request.param]
  return tiny.model(variant, family=family, layers="loop")


def make_batch(targets, *arguments, **named):
  batch = decoder_only(tf.constant(targets, tf.int32), 1, *arguments, **named)
  return {name: jnp.asarray(value.numpy()) for name, value in batch.items()}


TARGETS = np.random.default_rng(0).integers(2, tiny.VOCAB, (3, 12))
OBJECTIVE = decoder.Objective(z_loss=1e-3, label_smoothing=0.1)
compute_loss = jax.jit(lambda model, batch: OBJECTIVE(model, batch))


def test_loss_and_sums_equal_token_losses(model):
  batch = make_batch(TARGETS, prefix_B=tf.constant([1, 6, 11]))
  loss, sums = compute_loss(model, batch)
  logits = jax.jit(lambda model, batch: model(batch))(model, batch)["logits"]
  expected = token_losses(
    logits, batch["decoder_target_tokens"], batch["decoder_loss_weights"], 0.1, 1e-3
  )
  np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
  assert set(sums) == set(expected[1])
  assert sums["weights"] == 11 + 6 + 1
  for name, value in expected[1].items():
    np.testing.assert_allclose(sums[name], value, rtol=1e-5)


def test_packed_documents_have_the_loss_of_separate_rows(model):
  documents = np.array([[1] * 5 + [2] * 7, [1] * 12, [1] + [2] * 3 + [3] * 8])
  packed, _ = compute_loss(model, make_batch(TARGETS, tf.constant(documents, tf.int32)))
  separate = 0.0
  for row in range(3):
    for number in np.unique(documents[row]):
      targets = TARGETS[row][documents[row] == number]
      padded = np.pad(targets, (0, 12 - len(targets)))
      batch = make_batch(padded[None])
      batch["decoder_loss_weights"] = batch["decoder_loss_weights"] * (
        jnp.arange(12) < len(targets)
      )
      separate += compute_loss(model, batch)[0]
  np.testing.assert_allclose(packed, separate, rtol=1e-5)
  unmasked, _ = compute_loss(model, make_batch(TARGETS))
  assert abs(unmasked - packed) > 1e-3 * packed


def test_targets_in_the_prefix_cost_nothing(model):
  batch = make_batch(TARGETS, prefix_B=tf.constant([5] * 3))
  changed_batch = dict(batch, decoder_target_tokens=batch["decoder_target_tokens"].at[:, :5].set(3))
  loss, _ = compute_loss(model, batch)
  changed_loss, _ = compute_loss(model, changed_batch)
  np.testing.assert_array_equal(loss, changed_loss)
