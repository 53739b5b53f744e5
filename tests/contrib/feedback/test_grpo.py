"""GRPO, Dr. GRPO, DAPO, GSPO and RLOO follow their formulas, and their expected gradients."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from t5x_like.architectures.design import Design
from t5x_like.contrib.feedback.objectives import grpo, rloo
from t5x_like.nn.feed_forward import Experts
from t5x_like.objectives import denominator
from tests.refusals import refuses

B = 2
K = 4
N = 3
V = 5
PROMPT = 2


class Table:
  """Stand in for a model whose logits are its only parameter."""

  def __init__(self, logits_RTV, reference=None):
    self.logits_RTV = logits_RTV
    self.reference = reference

  def outputs(self, rows, key=None):
    return {"logits": self.logits_RTV}


@pytest.fixture(scope="module")
def random_rollout():
  """Return (logits of a model, of its reference, a batch of two groups, one without signal)."""
  generator = np.random.default_rng(3)
  policy = generator.normal(size=(B * K, PROMPT + N, V))
  reference = generator.normal(size=(B * K, PROMPT + N, V))
  targets = generator.integers(0, V, (B, K, PROMPT + N)).astype(np.int32)
  lengths = np.array([[1, 3, 2, 3], [2, 2, 1, 3]])
  weights = np.zeros((B, K, PROMPT + N), np.float32)
  weights[..., PROMPT:] = np.arange(N) < lengths[..., None]
  old = log_p(policy, targets) + generator.normal(0, 0.4, (B, K, N))
  batch = {
    "decoder_input_tokens": targets,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": weights,
    "decoder_log_probabilities": (old * weights[..., PROMPT:]).astype(np.float32),
    "rewards": np.array([[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]], np.float32),
  }
  return policy, reference, batch


def log_p(logits, targets):
  """Return the log-probabilities [B, K, N] of the last N targets."""
  every = log_softmax(logits, axis=-1).reshape(B, K, PROMPT + N, V)[..., PROMPT:, :]
  return np.take_along_axis(every, targets[..., PROMPT:, None], -1)[..., 0]


def expected_sums(objective, policy, base, batch):
  """Return (loss, KL divergence, clipped share), summed over completions, by the papers."""
  p = log_p(policy, batch["decoder_target_tokens"])
  r = log_p(base, batch["decoder_target_tokens"])
  old = batch["decoder_log_probabilities"]
  mask = batch["decoder_loss_weights"][..., PROMPT:]
  lengths = mask.sum(-1)
  rewards = batch["rewards"].astype(np.float64)
  k3 = np.exp(r - p) - (r - p) - 1
  kl = ((k3 * mask).sum(-1) / lengths).sum()
  if isinstance(objective, rloo.Objective):
    returns = rewards - objective.beta * ((old - r) * mask).sum(-1)
    advantages = returns - (returns.sum(1, keepdims=True) - returns) / (K - 1)
    return -(advantages * (p * mask).sum(-1)).sum(), kl, None
  advantages = rewards - rewards.mean(1, keepdims=True)
  if objective.form != "dr_grpo":
    advantages /= rewards.std(1, keepdims=True, ddof=1) + 1e-4
  log_ratio = (p - old) * mask
  if objective.form == "gspo":
    log_ratio = (log_ratio.sum(-1) / lengths)[..., None]
  ratio = np.exp(log_ratio)
  clip_high = objective.clip_high or objective.clip
  gain = ratio * advantages[..., None]
  clipped_gain = np.clip(ratio, 1 - objective.clip, 1 + clip_high) * advantages[..., None]
  token_losses = (objective.beta * k3 - np.minimum(gain, clipped_gain)) * mask
  divisor = {"grpo": lengths, "gspo": lengths, "dr_grpo": N, "dapo": 1}[objective.form]
  clipped = (((clipped_gain < gain) * mask).sum(-1) / lengths).sum()
  return (token_losses.sum(-1) / divisor).sum(), kl, clipped


@pytest.mark.parametrize(
  "objective",
  [
    grpo.Objective("exact", clip=0.2, beta=0.3),
    grpo.Objective("exact", form="dr_grpo", clip=0.1, beta=0.2),
    grpo.Objective("exact", form="dapo", clip=0.1, clip_high=0.3, beta=0.2),
    grpo.Objective("exact", form="gspo", clip=0.01, beta=0.2),
    rloo.Objective("exact", beta=0.25),
  ],
  ids=["grpo", "dr_grpo", "dapo", "gspo", "rloo"],
)
def test_loss_and_metrics_follow_the_papers(objective, random_rollout):
  policy, base, batch = random_rollout
  loss, sums = objective(Table(jnp.asarray(policy), Table(jnp.asarray(base))), batch)
  expected, kl, clipped = expected_sums(objective, policy, base, batch)
  np.testing.assert_allclose([loss, sums["loss"], sums["kl"]], [expected, expected, kl], rtol=1e-4)
  by_token = getattr(objective, "form", None) == "dapo"
  assert sums["weights"] == (17 if by_token else B * K)
  assert sums["completion_length"] == 17
  assert sums["reward"] == 5.5
  assert sums["groups_with_signal"] == K
  means = {"reward", "kl", "groups_with_signal", "completion_length", "clip_fraction"}
  for name in means & set(objective.reported_sums):
    assert sums[denominator(name, sums)] == B * K, name
  if clipped is not None:
    np.testing.assert_allclose(sums["clip_fraction"], clipped, rtol=1e-5)
    assert 0 < clipped < B * K


@pytest.mark.parametrize("objective", [grpo.Objective("exact"), rloo.Objective("exact")])
def test_padding_after_a_completion_stays_finite(objective, random_rollout):
  """The model may find padding possible and its reference not: their ratio is no number."""
  policy, base, batch = random_rollout
  is_padding = batch["decoder_loss_weights"].reshape(B * K, -1) == 0
  sure = 200.0 * np.eye(V)[batch["decoder_target_tokens"].reshape(B * K, -1)]
  policy = np.where(is_padding[..., None], -sure, policy)
  base = np.where(is_padding[..., None], sure, base)

  def loss(logits):
    return objective(Table(logits, Table(jnp.asarray(base))), batch)

  gradient, sums = jax.grad(loss, has_aux=True)(jnp.asarray(policy))
  assert np.isfinite(gradient).all()
  assert not gradient[is_padding].any()
  assert np.isfinite(list(sums.values())).all()


@pytest.mark.parametrize(
  ("objective", "share"),
  [
    (rloo.Objective("exact", beta=0.0), 1.0),
    (grpo.Objective("exact", form="dr_grpo", beta=0.0), 1 / 2),
  ],
  ids=["rloo", "dr_grpo"],
)
def test_the_mean_gradient_is_the_expected_rewards(objective, share):
  """On a bandit of three arms all pairs of draws are averaged; Dr. GRPO's has 1 - 1/K of it."""
  reward_V = np.array([0.3, 1.0, -0.5])
  theta_V = jnp.asarray([0.2, -0.4, 0.5])
  pairs = np.array(list(itertools.product(range(3), repeat=2)), np.int32)

  def loss(theta_V, pair):
    log_p_2 = jax.lax.stop_gradient(jax.nn.log_softmax(theta_V))[pair]
    batch = {
      "decoder_input_tokens": pair[None, :, None],
      "decoder_target_tokens": pair[None, :, None],
      "decoder_loss_weights": jnp.ones((1, 2, 1)),
      "decoder_log_probabilities": log_p_2[None, :, None],
      "rewards": jnp.asarray(reward_V, jnp.float32)[pair][None],
    }
    total, sums = objective(Table(jnp.broadcast_to(theta_V, (2, 1, 3))), batch)
    return total / sums["weights"]

  gradients = jax.vmap(jax.grad(loss), (None, 0))(theta_V, jnp.asarray(pairs))
  p_V = np.asarray(jax.nn.softmax(theta_V))
  mean_gradient = (p_V[pairs].prod(axis=1)[:, None] * gradients).sum(axis=0)
  expected = -jax.grad(lambda theta_V: jax.nn.softmax(theta_V) @ reward_V)(theta_V)
  np.testing.assert_allclose(mean_gradient, share * expected, atol=1e-6)


def test_equal_rewards_give_no_advantage():
  """Their mean in float32 may be another number, by up to 1e-4 for rewards of a thousand."""
  reward_BK = np.repeat(np.random.default_rng(0).normal(0, 1e3, (64, 1)), 7, axis=1)
  assert not np.any(grpo.Objective("exact").advantages(jnp.asarray(reward_BK, jnp.float32)))


def test_without_beta_there_is_no_reference():
  assert not grpo.Objective("exact", beta=0.0).needs_reference
  assert rloo.Objective("exact").needs_reference


def model_of_experts(factor: float):
  """Return a model of 8 experts, 2 for each token, with a capacity factor."""
  experts = Experts(experts=8, top_k=2, dispatch="capacity", eval_capacity_factor=factor)
  variant = types.SimpleNamespace(design=Design(experts=experts))
  return types.SimpleNamespace(variant=variant)


def test_only_experts_that_drop_no_token_learn_from_rewards():
  objective = grpo.Objective("exact")
  objective.check(model_of_experts(4.0), {"rewards": np.zeros(4)})
  with refuses("eval_capacity_factor", "4"):
    objective.check(model_of_experts(1.25), {"rewards": np.zeros(4)})


def test_one_completion_is_refused():
  with refuses("config.task.completions", "1"):
    grpo.Objective("exact").check(None, {"rewards": np.zeros(1)})


@pytest.mark.parametrize(
  ("module", "options", "words"),
  [
    (grpo, {"reward": "exact", "clip": 1.0}, ("clip 1.0", "beta 0.04")),
    (grpo, {"reward": "exakt"}, ("config.objective.reward", "'exakt'", "exact, model, number")),
    (rloo, {"reward": "exact", "beta": -1.0}, ("config.objective.beta", "-1.0")),
  ],
)
def test_bad_options_are_refused(module, options, words):
  with refuses(*words):
    module.Objective(**options)
