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
from t5x_like.errors import UserError
from t5x_like.nn.feed_forward import Experts
from t5x_like.objectives import denominator

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


def loss_by_loops(objective, policy, base, batch):
  """Return (loss sum, sum of KL, sum of the clipped shares) by loops over tokens."""
  p = log_p(policy, batch["decoder_target_tokens"])
  r = log_p(base, batch["decoder_target_tokens"])
  old = batch["decoder_log_probabilities"]
  loss = 0.0
  kl = 0.0
  clipped = 0.0
  for b, k in itertools.product(range(B), range(K)):
    group = batch["rewards"][b]
    positions = range(int(batch["decoder_loss_weights"][b, k].sum()))
    if isinstance(objective, rloo.Objective):
      lowered = []
      for j in range(K):
        is_counted = batch["decoder_loss_weights"][b, j][PROMPT:] > 0
        lowered.append(group[j] - objective.beta * sum((old - r)[b, j][is_counted]))
      A = lowered[k] - np.mean([lowered[j] for j in range(K) if j != k])
      loss += -A * sum(p[b, k, n] for n in positions)
    else:
      A = group[k] - group.mean()
      A = A if objective.form == "dr_grpo" else A / (group.std(ddof=1) + 1e-4)
      ratios = [np.exp(p[b, k, n] - old[b, k, n]) for n in positions]
      if objective.form == "gspo":
        ratios = [np.prod(ratios) ** (1 / len(ratios))] * len(ratios)
      bound = [
        np.clip(ratio, 1 - objective.clip, 1 + (objective.clip_high or objective.clip))
        for ratio in ratios
      ]
      k3 = [np.exp(r[b, k, n] - p[b, k, n]) - (r[b, k, n] - p[b, k, n]) - 1 for n in positions]
      token_losses = [-min(a * A, c * A) + objective.beta * x for a, c, x in zip(ratios, bound, k3)]
      loss += (
        sum(token_losses)
        / {"grpo": len(token_losses), "gspo": len(token_losses), "dr_grpo": N, "dapo": 1}[
          objective.form
        ]
      )
      clipped += np.mean([c * A < a * A for a, c in zip(ratios, bound)])
    kl += np.mean(
      [np.exp(r[b, k, n] - p[b, k, n]) - (r[b, k, n] - p[b, k, n]) - 1 for n in positions]
    )
  return loss, kl, clipped


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
  expected, kl, clipped = loss_by_loops(objective, policy, base, batch)
  np.testing.assert_allclose([loss, sums["loss"], sums["kl"]], [expected, expected, kl], rtol=1e-4)
  by_token = getattr(objective, "form", None) == "dapo"
  assert sums["weights"] == (17 if by_token else B * K)
  assert sums["completion_length"] == 17
  assert sums["reward"] == 5.5
  assert sums["groups_with_signal"] == K
  for name in (
    "reward",
    "kl",
    "groups_with_signal",
    "completion_length",
    *{"clip_fraction"} & set(objective.reported_sums),
  ):
    assert sums[denominator(name, sums)] == B * K, name
  if "clip_fraction" in objective.reported_sums:
    np.testing.assert_allclose(sums["clip_fraction"], clipped, rtol=1e-5)
    assert 0 < clipped < B * K
  padded = {name: np.concatenate([x, np.zeros_like(x[:1])]) for name, x in batch.items()}
  wide = [jnp.asarray(np.concatenate([x, np.zeros_like(x[:K])])) for x in (policy, base)]
  again = objective(Table(wide[0], Table(wide[1])), padded)[1]
  for name, value in sums.items():
    np.testing.assert_allclose(again[name], value, rtol=1e-5, err_msg=f"{name}: padding counts")


@pytest.mark.parametrize("objective", [grpo.Objective("exact"), rloo.Objective("exact")])
def test_padding_after_a_completion_stays_finite(objective, random_rollout):
  """The model may find padding possible and its reference not: their ratio is no number."""
  policy, base, batch = random_rollout
  behind = batch["decoder_loss_weights"].reshape(B * K, -1) == 0
  sure = np.where(np.eye(V)[batch["decoder_target_tokens"].reshape(B * K, -1)] > 0, 200.0, 0.0)
  policy = np.where(behind[..., None], -1 * sure, policy)
  base = np.where(behind[..., None], 1 * sure, base)

  def loss(logits):
    return objective(Table(logits, Table(jnp.asarray(base))), batch)

  gradient, sums = jax.grad(loss, has_aux=True)(jnp.asarray(policy))
  assert np.isfinite(gradient).all()
  assert not gradient[behind].any()
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
    logp_2 = jax.lax.stop_gradient(jax.nn.log_softmax(theta_V))[pair]
    batch = {
      name: pair[None, :, None] for name in ("decoder_input_tokens", "decoder_target_tokens")
    }
    batch |= {
      "decoder_loss_weights": jnp.ones((1, 2, 1)),
      "decoder_log_probabilities": logp_2[None, :, None],
    }
    batch |= {"rewards": jnp.asarray(reward_V, jnp.float32)[pair][None]}
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


def of_experts(factor: float):
  """Return a model of 8 experts, 2 for each token, with the given capacity factor."""
  design = Design(
    experts=Experts(experts=8, top_k=2, dispatch="capacity", eval_capacity_factor=factor)
  )
  return types.SimpleNamespace(variant=types.SimpleNamespace(design=design))


REWARDS = {"rewards": np.zeros(4)}


def test_experts_that_drop_no_token_learn_from_rewards():
  grpo.Objective("exact").check(of_experts(4.0), REWARDS)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (
      lambda: grpo.Objective("exact", clip=1.0),
      "found clip 1.0 and beta 0.04, expected clip between 0 and 1",
    ),
    (lambda: rloo.Objective("exact", beta=-1.0), "config.objective.beta: found -1.0"),
    (
      lambda: grpo.Objective("exakt"),
      "config.objective.reward: found 'exakt', expected one of exact, model, number",
    ),
    (
      lambda: grpo.Objective("exact").check(None, {"rewards": np.zeros(1)}),
      "config.task.completions: found 1, exp",
    ),
    (
      lambda: grpo.Objective("exact").check(of_experts(1.25), REWARDS),
      "eval_capacity_factor to 4 or more",
    ),
  ],
)
def test_bad_options_are_refused_in_one_line(make, message):
  with pytest.raises(UserError, match=message):
    make()
