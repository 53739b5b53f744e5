"""Token losses equal scipy's, computed token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import tiny
from t5x_like.objectives._losses import token_losses
from t5x_like.objectives.encoder_decoder import Objective

B = 3
T = 5
V = 11
RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.standard_normal((B, T, V))).astype(np.float32)
TARGETS = RNG.integers(0, V, (B, T)).astype(np.int32)
WEIGHTS = RNG.choice([0.0, 0.5, 1.0, 2.0], (B, T)).astype(np.float32)


def compute_losses(logits=LOGITS, targets=TARGETS, weights=WEIGHTS, smoothing=0.0, z_loss=0.0):
  loss, sums = token_losses(*map(jnp.asarray, (logits, targets, weights)), smoothing, z_loss)
  return float(loss), {name: float(value) for name, value in sums.items()}


@pytest.mark.parametrize("smoothing, z_loss", [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.3, 1e-2)])
def test_loss_and_sums_equal_scipy(smoothing, z_loss):
  loss, sums = compute_losses(smoothing=smoothing, z_loss=z_loss)
  log_p = special.log_softmax(LOGITS.astype(np.float64), axis=-1)
  log_z = special.logsumexp(LOGITS.astype(np.float64), axis=-1)
  total = entropy = z = correct = 0.0
  for b, t in np.ndindex(B, T):
    target_distribution = np.full(V, smoothing / (V - 1))
    target_distribution[TARGETS[b, t]] = 1 - smoothing
    w = float(WEIGHTS[b, t])
    # Cross-entropy with the smoothed target less that target's own entropy: their Kullback-Leibler
    # divergence.
    total += w * stats.entropy(target_distribution, np.exp(log_p[b, t]))
    entropy -= w * log_p[b, t, TARGETS[b, t]]
    z += w * z_loss * log_z[b, t] ** 2
    correct += w * (LOGITS[b, t].argmax() == TARGETS[b, t])
  np.testing.assert_allclose(loss, total + z, rtol=1e-5)
  # The reported loss is the plain cross-entropy, without smoothing or z-loss.
  np.testing.assert_allclose(sums["loss"], entropy, rtol=1e-5)
  np.testing.assert_allclose(sums["z_loss"], z, rtol=1e-5)
  np.testing.assert_allclose([sums["correct"], sums["weights"]], [correct, WEIGHTS.sum()])


@pytest.mark.parametrize("smoothing", [0.05, 0.1, 0.5])
def test_perfect_prediction_has_zero_loss_and_zero_gradient(smoothing):
  p = np.full((1, 1, V), smoothing / (V - 1), np.float32)
  p[0, 0, 4] = 1 - smoothing
  arguments = dict(
    targets=np.full((1, 1), 4, np.int32), weights=np.ones((1, 1), np.float32), smoothing=smoothing
  )
  assert abs(compute_losses(logits=np.log(p), **arguments)[0]) < 1e-6
  assert compute_losses(logits=np.log(p) + 0.3 * LOGITS[:1, :1], **arguments)[0] > 1e-3
  gradient = jax.grad(
    lambda x: token_losses(x, arguments["targets"], arguments["weights"], smoothing, 0.0)[0]
  )
  assert np.abs(gradient(jnp.log(p))).max() < 1e-6


def test_gradients_are_probabilities_minus_targets():
  smoothing = 0.1
  z_loss = 1e-2
  gradient = jax.grad(lambda x: token_losses(x, TARGETS, WEIGHTS, smoothing, z_loss)[0])(
    jnp.asarray(LOGITS)
  )
  logits = LOGITS.astype(np.float64)
  p = special.softmax(logits, axis=-1)
  log_z = special.logsumexp(logits, axis=-1, keepdims=True)
  target_distribution = np.where(
    np.arange(V) == TARGETS[..., None], 1 - smoothing, smoothing / (V - 1)
  )
  expected = WEIGHTS[..., None] * (p - target_distribution + 2 * z_loss * log_z * p)
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_tokens_without_weight_are_ignored():
  changed_logits = LOGITS.copy()
  changed_targets = TARGETS.copy()
  changed_logits[WEIGHTS == 0] = 10000.0
  changed_targets[WEIGHTS == 0] = 0
  np.testing.assert_allclose(
    compute_losses(changed_logits, changed_targets, smoothing=0.1, z_loss=1e-3)[0],
    compute_losses(smoothing=0.1, z_loss=1e-3)[0],
  )
  assert compute_losses(weights=np.zeros((B, T), np.float32)) == (
    0.0,
    dict(loss=0.0, z_loss=0.0, correct=0.0, weights=0.0),
  )


def test_large_logits_are_finite_and_bfloat16_logits_lose_no_precision():
  loss, _ = compute_losses(logits=LOGITS * 1e4)
  assert np.isfinite(loss)
  low = token_losses(jnp.asarray(LOGITS, jnp.bfloat16), TARGETS, WEIGHTS, 0.0, 0.0)[0]
  rounded = compute_losses(np.asarray(jnp.asarray(LOGITS, jnp.bfloat16), np.float32))[0]
  assert low.dtype == jnp.float32
  assert abs(float(low) - rounded) < 1e-4 * rounded


def test_objective_runs_the_model_on_the_batch():
  model = tiny.model(tiny.sizes("1.1"), dropout=0.2)
  batch = tiny.batch(2, 6, 5)
  objective = Objective(label_smoothing=0.1, z_loss=1e-3)
  evaluate = jax.jit(lambda model, batch: (objective(model, batch), model(batch)["logits"]))
  (loss, sums), logits = evaluate(model, batch)
  expected, expected_sums = compute_losses(
    logits, batch["decoder_target_tokens"], batch["decoder_loss_weights"], 0.1, 1e-3
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  np.testing.assert_allclose(
    [sums[n] for n in expected_sums], list(expected_sums.values()), rtol=1e-6
  )
  dropped, _ = jax.jit(objective)(model, batch, jax.random.key(0))
  assert abs(float(dropped) - float(loss)) > 1e-3
