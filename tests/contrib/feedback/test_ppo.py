"""PPO follows its formulas token by token, and makes several passes over a rollout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from t5x_like.contrib.feedback.objectives.ppo import Objective
from t5x_like.errors import UserError
from t5x_like.nn.vocabulary_logits import VocabularyLogits

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


def case(seed=3):
  """(parameters of a model, of the rollout's and of the reference, a batch): completions of 1 to N
  tokens."""
  draw = np.random.default_rng(seed)
  x = draw.normal(size=(B * K, PROMPT + N, D)).astype(np.float32)
  reference_x = draw.normal(size=(B * K, PROMPT + N, D)).astype(np.float32)
  table = draw.normal(size=(V, D)).astype(np.float32)
  head = draw.normal(size=D).astype(np.float32)
  models = (x, table, head), (x + 0.1 * reference_x, table, head), (reference_x, table, head)
  targets = draw.integers(0, V, (B, K, PROMPT + N)).astype(np.int32)
  weights = np.zeros((B, K, PROMPT + N), np.float32)
  weights[..., PROMPT:] = np.arange(N) < np.array([[1, 4], [3, 2], [4, 4]])[..., None]
  batch = {
    "decoder_input_tokens": targets,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": weights,
    "decoder_log_probabilities": (log_p(models[1], targets) * weights[..., PROMPT:]).astype(
      np.float32
    ),
    "rewards": draw.normal(size=(B, K)).astype(np.float32),
  }
  return models, batch


def log_p(model, targets):
  """Return the log-probabilities [B, K, N] of the last N targets."""
  x, table, _ = model
  every = log_softmax(np.asarray(x @ table.T, np.float64), axis=-1).reshape(B, K, PROMPT + N, V)[
    ..., PROMPT:, :
  ]
  return np.take_along_axis(every, targets[..., PROMPT:, None], -1)[..., 0]


def value(model):
  x, _, head = model
  return np.asarray(x @ head, np.float64).reshape(B, K, PROMPT + N)[..., PROMPT:]


def losses_by_loops(o, models, batch):
  """Return sums over tokens: (loss, policy loss, value loss, clipped tokens)."""
  policy_model, rollout, reference = models
  lengths = batch["decoder_loss_weights"].sum(-1).astype(int)
  p = (log_p(m, batch["decoder_target_tokens"]) for m in (policy_model, reference))
  r = None
  v = value(rollout)
  p, r = p
  old = batch["decoder_log_probabilities"]
  A = {}
  for b, k in np.ndindex(B, K):
    n = lengths[b, k]
    rewards = [
      -o.beta * (old[b, k, t] - r[b, k, t]) + (t == n - 1) * batch["rewards"][b, k]
      for t in range(n)
    ]
    deltas = [
      rewards[t] + o.gamma * (v[b, k, t + 1] if t + 1 < n else 0) - v[b, k, t] for t in range(n)
    ]
    for t in range(n):  # equation 11 as it is printed
      A[b, k, t] = sum((o.gamma * o.gae_lambda) ** (i - t) * deltas[i] for i in range(t, n))
  every = np.array([*A.values()])
  policy = squares = clipped = 0.0
  for (b, k, t), a in A.items():
    white = (a - every.mean()) / every.std(ddof=1)
    returned = a + v[b, k, t]
    ratio = np.exp(p[b, k, t] - old[b, k, t])
    bound = np.clip(ratio, 1 - o.clip, 1 + o.clip)
    now = value(policy_model)[b, k, t]
    near = np.clip(now, v[b, k, t] - o.value_clip, v[b, k, t] + o.value_clip)
    policy += -min(ratio * white, bound * white)
    squares += max((now - returned) ** 2, (near - returned) ** 2) / 2
    clipped += bound * white < ratio * white
  return policy + o.value_weight * squares, policy, squares, clipped


def test_loss_and_metrics_follow_the_papers():
  models, batch = case()
  o = Objective(
    "exact", clip=0.1, value_clip=0.05, value_weight=0.3, gamma=0.9, gae_lambda=0.8, beta=0.2
  )
  policy, rollout = (Small(*m, Small(*models[2])) for m in models[:2])
  judged = o.estimate_advantages(rollout, batch)
  loss, sums = o(policy, judged)
  names = ("loss", "policy_loss", "value_loss", "clip_fraction")
  np.testing.assert_allclose(
    [sums[name] for name in names], losses_by_loops(o, models, batch), rtol=1e-4
  )
  assert loss == sums["loss"]
  assert sums["weights"] == sums["completion_length"] == 18
  assert 0 < sums["clip_fraction"] < 18
  assert sums["reward_weights"] == B * K
  assert sums["kl"] > 0
  assert (
    np.abs(np.asarray(judged["advantages"])[batch["decoder_loss_weights"][..., PROMPT:] == 0]).max()
    == 0
  )
  parts = [{name: x[i : i + 1] for name, x in judged.items()} for i in range(B)]
  token_losses = [
    o(Small(policy.x_RTD[K * i : K * i + K], *models[0][1:]), part)[0]
    for i, part in enumerate(parts)
  ]
  np.testing.assert_allclose(sum(token_losses), loss, rtol=1e-5)


def test_a_first_update_is_the_policy_gradient_and_a_clipped_token_has_none():
  models, batch = case()
  o = Objective("exact", beta=0.0, value_weight=1e-9)
  x, table, head = models[1]
  judged = o.estimate_advantages(Small(x, table, head), batch)

  def loss(x, clip):
    return Objective("exact", beta=0.0, value_weight=1e-9, clip=clip)(
      Small(x, table, head), judged
    )[0]

  def policy(x):  # -A log p
    every = jax.nn.log_softmax(x @ table.T).reshape(B, K, PROMPT + N, V)[..., PROMPT:, :]
    target_log_p = jnp.take_along_axis(
      every, batch["decoder_target_tokens"][..., PROMPT:, None], -1
    )[..., 0]
    return -jnp.sum(judged["advantages"] * target_log_p)

  np.testing.assert_allclose(jax.grad(loss)(x, 0.2), jax.grad(policy)(x), atol=1e-5)
  moved = jnp.asarray(x) - 0.5 * jax.grad(policy)(x)  # towards better tokens, beyond a narrow bound
  assert np.abs(jax.grad(loss)(moved, 1e-6)).max() < 1e-6 < np.abs(jax.grad(loss)(moved, 0.9)).max()


@pytest.mark.parametrize(
  "options", [{"clip": 1.0}, {"gae_lambda": 1.1}, {"beta": -0.1}, {"value_weight": 0.0}]
)
def test_bad_options_are_refused_in_one_line(options):
  with pytest.raises(
    UserError,
    match=f"{next(iter(options))} {next(iter(options.values()))}.*, expected clip between",
  ):
    Objective("exact", **options)
