"""PPO follows its formulas token by token, and makes several passes over a rollout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from t5x_like.contrib.feedback.objectives.ppo import Objective
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from tests.refusals import refuses

B = 3
K = 2
N = 4
V = 5
D = 3
PROMPT = 2


class Small:
  """Stand in for a model with hidden states, a token table and a value head."""

  def __init__(self, x_RTD, table_VD, head_D, reference=None):
    self.x_RTD = x_RTD
    self.table_VD = table_VD
    self.head_D = head_D
    self.reference = reference

  def outputs(self, rows, key=None):
    return {"logits": VocabularyLogits(self.x_RTD, self.table_VD, tied=True)}

  def value(self, x_RND):
    return x_RND @ self.head_D


def case():
  """Return (parameters of a model, of the rollout's and of the reference, a batch)."""
  draw = np.random.default_rng(3)
  x = draw.normal(size=(B * K, PROMPT + N, D)).astype(np.float32)
  reference_x = draw.normal(size=(B * K, PROMPT + N, D)).astype(np.float32)
  table = draw.normal(size=(V, D)).astype(np.float32)
  head = draw.normal(size=D).astype(np.float32)
  models = (x, table, head), (x + 0.1 * reference_x, table, head), (reference_x, table, head)
  targets = draw.integers(0, V, (B, K, PROMPT + N)).astype(np.int32)
  lengths = np.array([[1, 4], [3, 2], [4, 4]])[..., None]
  is_completion = (np.arange(N) < lengths).astype(np.float32)
  batch = {
    "decoder_input_tokens": targets,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": np.pad(is_completion, ((0, 0), (0, 0), (PROMPT, 0))),
    "decoder_log_probabilities": np.float32(log_p(models[1], targets) * is_completion),
    "rewards": draw.normal(size=(B, K)).astype(np.float32),
  }
  return models, batch


def log_p(model, targets):
  """Return the log-probabilities [B, K, N] of the last N targets."""
  x, table, _ = model
  all_log_p = log_softmax(np.asarray(x @ table.T, np.float64), axis=-1)
  all_log_p = all_log_p.reshape(B, K, PROMPT + N, V)
  return np.take_along_axis(all_log_p, targets[..., None], -1)[..., PROMPT:, 0]


def value(model):
  x, _, head = model
  return np.asarray(x @ head, np.float64).reshape(B, K, PROMPT + N)[..., PROMPT:]


def expected_sums(o, models, batch):
  """Return sums over tokens by the paper: (loss, policy loss, value loss, clipped tokens)."""
  policy_model, rollout, reference = models
  mask = batch["decoder_loss_weights"][..., PROMPT:]
  p = log_p(policy_model, batch["decoder_target_tokens"])
  r = log_p(reference, batch["decoder_target_tokens"])
  v = value(rollout) * mask
  old = batch["decoder_log_probabilities"]
  is_last = np.arange(N) == mask.sum(-1, keepdims=True) - 1
  rewards = is_last * batch["rewards"][..., None] - o.beta * (old - r)
  next_v = np.pad(v[..., 1:], ((0, 0), (0, 0), (0, 1)))
  deltas = (rewards + o.gamma * next_v - v) * mask
  A = np.zeros((B, K, N))
  for t in range(N):  # equation 11 as it is printed
    for i in range(t, N):
      A[..., t] += (o.gamma * o.gae_lambda) ** (i - t) * deltas[..., i]
  white = (A - A[mask > 0].mean()) / A[mask > 0].std(ddof=1)
  ratio = np.exp(p - old)
  gain = ratio * white
  clipped_gain = np.clip(ratio, 1 - o.clip, 1 + o.clip) * white
  new_v = value(policy_model)
  clipped_v = np.clip(new_v, v - o.value_clip, v + o.value_clip)
  squares = np.maximum((new_v - A - v) ** 2, (clipped_v - A - v) ** 2) / 2
  policy_loss = -(np.minimum(gain, clipped_gain) * mask).sum()
  value_loss = (squares * mask).sum()
  clipped = ((clipped_gain < gain) * mask).sum()
  return policy_loss + o.value_weight * value_loss, policy_loss, value_loss, clipped


def test_loss_and_metrics_follow_the_papers():
  models, batch = case()
  coefficients = dict(gamma=0.9, gae_lambda=0.8, beta=0.2, value_weight=0.3)
  o = Objective("exact", clip=0.1, value_clip=0.05, **coefficients)
  policy, rollout = (Small(*model, Small(*models[2])) for model in models[:2])
  judged = o.estimate_advantages(rollout, batch)
  loss, sums = o(policy, judged)
  names = ("loss", "policy_loss", "value_loss", "clip_fraction")
  expected = expected_sums(o, models, batch)
  np.testing.assert_allclose([sums[name] for name in names], expected, rtol=1e-4)
  assert loss == sums["loss"]
  assert sums["weights"] == sums["completion_length"] == 18
  assert 0 < sums["clip_fraction"] < 18
  assert sums["reward_weights"] == B * K
  assert sums["kl"] > 0
  is_padding = batch["decoder_loss_weights"][..., PROMPT:] == 0
  assert not np.asarray(judged["advantages"])[is_padding].any()


def test_a_first_update_is_the_policy_gradient_and_a_clipped_token_has_none():
  models, batch = case()
  x, table, head = models[1]
  judged = Objective("exact", beta=0.0).estimate_advantages(Small(x, table, head), batch)

  def loss(x, clip):
    objective = Objective("exact", beta=0.0, value_weight=1e-9, clip=clip)
    return objective(Small(x, table, head), judged)[0]

  def policy_loss(x):
    log_p = jax.nn.log_softmax(x @ table.T).reshape(B, K, PROMPT + N, V)
    targets = batch["decoder_target_tokens"][..., None]
    log_p = jnp.take_along_axis(log_p, targets, -1)[..., PROMPT:, 0]
    return -jnp.sum(judged["advantages"] * log_p)

  policy_gradient = jax.grad(policy_loss)(x)
  np.testing.assert_allclose(jax.grad(loss)(x, 0.2), policy_gradient, atol=1e-5)
  moved = x - 0.5 * policy_gradient  # towards better tokens, beyond a narrow bound
  assert np.abs(jax.grad(loss)(moved, 1e-6)).max() < 1e-6
  assert np.abs(jax.grad(loss)(moved, 0.9)).max() > 1e-6


@pytest.mark.parametrize(
  ("option", "value"), [("clip", 1.0), ("gae_lambda", 1.1), ("beta", -0.1), ("value_weight", 0.0)]
)
def test_bad_options_are_refused(option, value):
  with refuses(f"{option} {value}"):
    Objective("exact", **{option: value})
