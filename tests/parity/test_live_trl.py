"""Learning from feedback against TRL on fixed rollouts and pairs: the loss and the gradient of
every tensor.

Where TRL has the loss as a method, the method itself is run, on a stand-in for its trainer. PPO's
is a part of `PPOTrainer.train` (TRL 0.24, `trainer/ppo_trainer.py`; later versions have none) and
written here after it. There, a completion that ends early is rewarded one place behind its end, and
this place has a value too; so the completions of PPO fill all of theirs here.
"""

import collections
import contextlib
import importlib.util
import types

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from parity import cases, reference
from t5x_like.interop import hf
from t5x_like.nn import params
from t5x_like.objectives import grpo, ppo, reward, rloo

pytestmark = [
  pytest.mark.parity,
  pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed"),
]
B = 2
K = 3
M = 4
N = 5
R = B * K


class Both:
  """A small Llama, a policy that departs from it, and both in PyTorch."""

  def __init__(self, folder):
    self.case = cases.CASES["llama"]
    self.folder = folder
    self.theirs = reference.make(self.case, folder / "theirs").eval()
    self.model = hf.load(str(folder / "theirs"))
    self.arrays = {n: x * 1.2 for n, x in params.arrays(self.model).items()}
    hf.save(params.with_arrays(self.model, self.arrays), str(folder / "policy"))
    self.policy = reference.read(self.case, folder / "policy").eval()

  def check(self, gradients):
    """Compare gradients of our parameters with those of the policy."""
    hf.save(params.with_arrays(self.model, gradients), str(self.folder / "gradients"))
    read = load_file(self.folder / "gradients" / "model.safetensors")
    for n, p in self.policy.named_parameters():
      if p.grad is not None:
        distance = np.abs(read[n] - p.grad.numpy()).max()
        print(f"{n}: {distance:.1e} of {p.grad.abs().max():.2g}")
        assert distance <= 1e-5 * max(1.0, float(p.grad.abs().max())), n


@pytest.fixture
def both(tmp_path):
  return Both(tmp_path)


def rollout(both, lengths):
  """(our batch, TRL's inputs): prompts padded on the left, completions of these lengths."""
  import torch

  draw = np.random.default_rng(0)
  tokens = draw.integers(3, cases.VOCAB, (R, M + N))
  prompts = np.repeat(np.arange(M) >= np.array([0, 2])[:, None], K, axis=0)
  ended = np.arange(N) < np.array(lengths)[:, None]
  mask = np.concatenate([prompts, ended], axis=1).astype(np.int32)
  rows = {
    "decoder_input_tokens": (tokens * mask)[:, :-1].astype(np.int32),
    "decoder_target_tokens": tokens[:, 1:].astype(np.int32),
    "decoder_segment_ids": mask[:, :-1],
    "decoder_positions": np.maximum(np.cumsum(mask[:, :-1], axis=1) - 1, 0),
    "decoder_loss_weights": np.concatenate([0 * prompts[:, 1:], ended], axis=1).astype(np.float32),
  }
  ids = torch.tensor(tokens * mask)
  torch_mask = torch.tensor(mask)
  inputs = {"prompt_ids": ids[:, :M], "prompt_mask": torch_mask[:, :M]}
  inputs |= {"completion_ids": ids[:, M:], "completion_mask": torch_mask[:, M:]}
  noise = torch.tensor(draw.normal(0, 0.3, (R, N)), dtype=torch.float32) * inputs["completion_mask"]
  with torch.no_grad():
    inputs["old_per_token_logps"] = log_p(both.policy, inputs) * inputs["completion_mask"] + noise
    inputs["ref_per_token_logps"] = log_p(both.theirs, inputs)
  batch = {name: x.reshape(B, K, -1) for name, x in rows.items()}
  batch["decoder_log_probabilities"] = inputs["old_per_token_logps"].numpy().reshape(B, K, N)
  return batch | {"rewards": draw.normal(size=(B, K)).astype(np.float32)}, inputs


def log_p(model, inputs):
  import torch

  ids, mask = (
    torch.cat([inputs[f"{side}_{n}"] for side in ("prompt", "completion")], 1)
    for n in ("ids", "mask")
  )
  logits = model(input_ids=ids, attention_mask=mask).logits[:, M - 1 : -1]
  return logits.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]


def trainer(**values):
  """A stand-in for one of TRL's trainers in evaluation, on one process."""
  import torch

  same = lambda x, reduction="sum": x  # noqa: E731
  accelerator = types.SimpleNamespace(
    gather=same,
    gather_for_metrics=same,
    reduce=same,
    autocast=contextlib.nullcontext,
    num_processes=1,
  )
  off = dict(
    top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False, aux_loss_enabled=False
  )
  args = types.SimpleNamespace(
    use_bias_correction_kl=False, delta=None, center_rewards_coefficient=0.1
  )
  off |= dict(
    _entropy_bonus_enabled=False,
    importance_sampling_level="token",
    args=args,
    accelerator=accelerator,
  )
  off |= dict(
    _metrics=collections.defaultdict(lambda: collections.defaultdict(list)), _total_train_tokens=0
  )
  off |= dict(
    model=types.SimpleNamespace(training=False),
    max_completion_length=N,
    epsilon_low=0.1,
    epsilon_high=0.1,
  )

  def log_probabilities(model, input_ids, attention_mask, kept, **_):
    sides = {"prompt_ids": input_ids[:, :M], "prompt_mask": attention_mask[:, :M]}
    sides |= {"completion_ids": input_ids[:, M:], "completion_mask": attention_mask[:, M:]}
    return log_p(model, sides), torch.zeros(R, N), None

  return types.SimpleNamespace(_get_per_token_logps_and_entropies=log_probabilities, **off | values)


def ours(both, objective, batch):
  """(mean loss, gradients by name) of our objective, with the reference beside the model."""

  @jax.jit
  def loss(arrays):
    model = params.with_arrays(both.model, arrays)
    model.reference = both.model
    total, sums = objective(model, batch)
    return total / sums["weights"]

  return jax.value_and_grad(loss)(both.arrays)


@pytest.mark.parametrize("form", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_grpo(form, both):
  import torch
  from trl.trainer.grpo_trainer import GRPOTrainer, nanstd

  batch, inputs = rollout(both, [5, 2, 3, 1, 5, 4])
  rewards = torch.tensor(batch["rewards"])
  A = rewards - rewards.mean(1, keepdim=True)
  A = A if form == "dr_grpo" else A / (nanstd(rewards, dim=1)[:, None] + 1e-4)
  stand_in = trainer(loss_type=form, beta=0.3, epsilon_high=0.2)
  if form == "gspo":
    vars(stand_in).update(loss_type="grpo", importance_sampling_level="sequence")
  given = inputs | {
    "advantages": A.reshape(-1),
    "num_items_in_batch": inputs["completion_mask"].sum(),
  }
  expected = GRPOTrainer._compute_loss(stand_in, both.policy, given)
  expected.backward()
  found, gradients = ours(
    both, grpo.Objective("exact", form=form, clip=0.1, clip_high=0.2, beta=0.3), batch
  )
  np.testing.assert_allclose(found, expected.item(), rtol=1e-5, atol=1e-6)
  both.check(gradients)


def test_the_gradient_of_rloo(both):
  """TRL's loss is a clipped ratio of sequences, whose gradient in the first update is that of -A
  log p."""
  import torch
  from trl.trainer.rloo_trainer import RLOOTrainer

  batch, inputs = rollout(both, [5, 2, 3, 1, 5, 4])
  batch["decoder_log_probabilities"] = (
    (log_p(both.policy, inputs) * inputs["completion_mask"]).detach().numpy()
  )
  batch["decoder_log_probabilities"] = batch["decoder_log_probabilities"].reshape(B, K, N)
  old = torch.tensor(batch["decoder_log_probabilities"]).reshape(R, N)
  cost = 0.2 * ((old - inputs["ref_per_token_logps"]) * inputs["completion_mask"]).sum(1).reshape(
    B, K
  )
  lowered = torch.tensor(batch["rewards"]) - cost
  A = lowered - (lowered.sum(1, keepdim=True) - lowered) / (K - 1)
  given = inputs | {"advantages": A.reshape(-1), "old_logps": old.sum(1)}
  RLOOTrainer._compute_loss(trainer(), both.policy, given).backward()
  both.check(ours(both, rloo.Objective("exact", beta=0.2), batch)[1])


def test_ppo(both):
  import torch

  batch, inputs = rollout(both, [N] * R)
  objective = ppo.Objective(
    "exact", clip=0.1, value_clip=0.1, value_weight=0.3, gamma=0.98, gae_lambda=0.9, beta=0.2
  )
  head = np.random.default_rng(1).normal(size=(both.model.variant.dims.embed, 1)).astype(np.float32)
  old_head = head * 0.8

  def values(head):
    ids, mask = (
      torch.cat([inputs[f"{side}_{n}"] for side in ("prompt", "completion")], 1)
      for n in ("ids", "mask")
    )
    return (both.policy.model(input_ids=ids, attention_mask=mask).last_hidden_state @ head)[
      :, M - 1 : -1, 0
    ]

  def masked_whiten(x):
    return (x - x.mean()) * torch.rsqrt(x.var() + 1e-8)

  weight = torch.tensor(head, requires_grad=True)
  with torch.no_grad():
    old_values = values(torch.tensor(old_head))
    old = inputs["old_per_token_logps"]
    rewards = -objective.beta * (old - inputs["ref_per_token_logps"])
    rewards[:, -1] += torch.tensor(batch["rewards"]).reshape(-1)
    last = 0
    made = []
    for t in reversed(range(N)):
      after = old_values[:, t + 1] if t < N - 1 else 0.0
      last = (
        rewards[:, t]
        + objective.gamma * after
        - old_values[:, t]
        + objective.gamma * objective.gae_lambda * last
      )
      made.append(last)
    A = torch.stack(made[::-1], 1)
    returns = A + old_values
    A = masked_whiten(A)
  now = values(weight)
  near = torch.clamp(now, old_values - objective.value_clip, old_values + objective.value_clip)
  value_loss = 0.5 * torch.max((now - returns) ** 2, (near - returns) ** 2).mean()
  ratio = torch.exp(log_p(both.policy, inputs) - old)
  policy_loss = torch.max(
    -A * ratio, -A * torch.clamp(ratio, 1 - objective.clip, 1 + objective.clip)
  ).mean()
  expected = policy_loss + objective.value_weight * value_loss
  expected.backward()

  def with_head(arrays):
    model = params.with_arrays(
      objective.extend_model(hf.load(str(both.folder / "theirs")), jax.random.key(0)), arrays
    )
    model.reference = both.model
    return model

  flat = {"value/bias": np.zeros(1, np.float32)}
  judged = objective.judged(with_head(both.arrays | flat | {"value/kernel": old_head}), batch)
  np.testing.assert_allclose(judged["advantages"].reshape(R, N), A, rtol=1e-4, atol=1e-5)

  def loss(arrays):
    total, sums = objective(with_head(arrays), judged)
    return total / sums["weights"]

  found, gradients = jax.value_and_grad(loss)(both.arrays | flat | {"value/kernel": head})
  np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
  np.testing.assert_allclose(gradients["value/kernel"], weight.grad, rtol=1e-4, atol=1e-5)
  both.check({n: g for n, g in gradients.items() if n in both.arrays})


def test_the_reward_model(both):
  import torch
  from trl.trainer.reward_trainer import RewardTrainer

  draw = np.random.default_rng(2)
  last = draw.integers(3, 9, (R, 2))
  T = 9
  tokens = draw.integers(3, cases.VOCAB, (R, 2, T))
  mask = (np.arange(T) < last[..., None]).astype(np.int32)
  kind = type(both.model)
  scoring = kind(nnx.Rngs(0), variant=both.model.variant, scores=1, layers="loop")
  head = draw.normal(size=(both.model.variant.dims.embed, 1)).astype(np.float32)
  weight = torch.tensor(head, requires_grad=True)

  def rewarded(input_ids, attention_mask, **_):
    x = both.policy.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    return types.SimpleNamespace(
      logits=(x @ weight)[torch.arange(2 * R), attention_mask.sum(1) - 1]
    )

  sides = [torch.tensor(x.swapaxes(0, 1).reshape(2 * R, T)) for x in (tokens, mask)]
  margin = np.array([0.5, 0.0, 1.0, -0.2, 0.3, 2.0], np.float32)
  given = dict(zip(("input_ids", "attention_mask"), sides)) | {"margin": torch.tensor(margin)}
  expected = RewardTrainer.compute_loss(trainer(), rewarded, given)
  expected.backward()
  batch = {
    "decoder_input_tokens": tokens.astype(np.int32),
    "decoder_target_tokens": tokens.astype(np.int32),
  }
  batch |= {
    "decoder_segment_ids": mask,
    "decoder_loss_weights": mask.astype(np.float32),
    "margin": margin,
  }

  def loss(arrays):
    total, sums = reward.Objective(centre=0.1)(params.with_arrays(scoring, arrays), batch)
    return total / sums["weights"]

  made = both.arrays | {"scores/out/kernel": head, "scores/out/bias": np.zeros(1, np.float32)}
  found, gradients = jax.value_and_grad(loss)(made)
  np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
  np.testing.assert_allclose(gradients["scores/out/kernel"], weight.grad, rtol=1e-4, atol=1e-5)
  both.check({n: g for n, g in gradients.items() if n in both.arrays})
