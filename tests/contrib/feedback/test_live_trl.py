"""Compare objectives of learning from feedback with TRL: the loss and the gradient of every tensor.

The rollouts and pairs are fixed. If TRL has a loss as a method, the test runs this method on a
stand-in for the trainer. PPO's loss is a part of `PPOTrainer.train` (TRL 0.24,
`trainer/ppo_trainer.py`; later versions do not have it), so the test repeats its computation. TRL
rewards a completion that ends early one position after its end, and gives this position a value.
The completions of PPO in this test fill all positions, where both agree.
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
from t5x_like.contrib.feedback.objectives import grpo, ppo, reward, rloo
from t5x_like.interop import hf
from t5x_like.nn import params

pytestmark = [
  pytest.mark.parity,
  pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed"),
]
B = 2  # prompts
K = 3  # completions of each prompt
R = B * K  # rows
M = 4  # tokens of a prompt
N = 5  # tokens of a completion


class ModelPair:
  """A small Llama and a policy that departs from it, each in JAX and in PyTorch.

  Attributes:
    torch_reference: the Llama in PyTorch.
    model: the Llama in JAX.
    arrays: the parameters of the policy in JAX.
    torch_policy: the policy in PyTorch.
  """

  def __init__(self, folder):
    self.case = cases.CASES["llama"]
    self.folder = folder
    self.torch_reference = reference.make(self.case, folder / "reference").eval()
    self.model = hf.load(str(folder / "reference"))
    self.arrays = {name: x * 1.2 for name, x in params.arrays(self.model).items()}
    hf.save(params.with_arrays(self.model, self.arrays), str(folder / "policy"))
    self.torch_policy = reference.read(self.case, folder / "policy").eval()

  def check_gradients(self, gradients):
    """Compare our gradients with those that PyTorch has left in the policy."""
    # Saved as a model, the gradients get the names and the layout of PyTorch.
    hf.save(params.with_arrays(self.model, gradients), str(self.folder / "gradients"))
    named_gradients = load_file(self.folder / "gradients" / "model.safetensors")
    for name, parameter in self.torch_policy.named_parameters():
      if parameter.grad is not None:
        distance = np.abs(named_gradients[name] - parameter.grad.numpy()).max()
        largest = float(parameter.grad.abs().max())
        print(f"{name}: {distance:.1e} of {largest:.2g}")
        assert distance <= 1e-5 * max(1.0, largest), name


@pytest.fixture
def pair(tmp_path):
  return ModelPair(tmp_path)


def make_rollout(pair, lengths):
  """Return (our batch, TRL's inputs): prompts padded on the left, completions of these lengths."""
  import torch

  generator = np.random.default_rng(0)
  tokens = generator.integers(3, cases.VOCAB, (R, M + N))
  prompt_mask = np.repeat(np.arange(M) >= np.array([0, 2])[:, None], K, axis=0)
  completion_mask = np.arange(N) < np.array(lengths)[:, None]
  mask = np.concatenate([prompt_mask, completion_mask], axis=1).astype(np.int32)
  weights = np.concatenate([np.zeros((R, M - 1)), completion_mask], axis=1)
  rows = {
    "decoder_input_tokens": (tokens * mask)[:, :-1].astype(np.int32),
    "decoder_target_tokens": tokens[:, 1:].astype(np.int32),
    "decoder_segment_ids": mask[:, :-1],
    "decoder_positions": np.maximum(np.cumsum(mask[:, :-1], axis=1) - 1, 0),
    "decoder_loss_weights": weights.astype(np.float32),
  }
  ids = torch.tensor(tokens * mask)
  torch_mask = torch.tensor(mask)
  inputs = split_completions(ids, torch_mask)
  noise = torch.tensor(generator.normal(0, 0.3, (R, N)), dtype=torch.float32)
  with torch.no_grad():
    policy_log_p = log_probabilities(pair.torch_policy, inputs)
    inputs["old_per_token_logps"] = (policy_log_p + noise) * inputs["completion_mask"]
    inputs["ref_per_token_logps"] = log_probabilities(pair.torch_reference, inputs)
  batch = {name: x.reshape(B, K, -1) for name, x in rows.items()}
  batch["decoder_log_probabilities"] = inputs["old_per_token_logps"].numpy().reshape(B, K, N)
  batch["rewards"] = generator.normal(size=(B, K)).astype(np.float32)
  return batch, inputs


def split_completions(ids, mask):
  """Return TRL's inputs: prompts and completions of rows, each with its mask."""
  return {
    "prompt_ids": ids[:, :M],
    "prompt_mask": mask[:, :M],
    "completion_ids": ids[:, M:],
    "completion_mask": mask[:, M:],
  }


def join_completions(inputs):
  """Return (ids, mask) of the rows in TRL's inputs."""
  import torch

  ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
  mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
  return ids, mask


def log_probabilities(model, inputs):
  """Return the log probabilities of the completions' tokens [R, N] by a PyTorch model."""
  ids, mask = join_completions(inputs)
  logits = model(input_ids=ids, attention_mask=mask).logits[:, M - 1 : -1]
  return logits.log_softmax(-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]


def make_trainer(**attributes):
  """Return a stand-in for one of TRL's trainers in evaluation, in one process."""
  import torch

  def identity(x, reduction="sum"):
    return x

  def compute_log_probabilities(model, input_ids, attention_mask, logits_to_keep, **_):
    inputs = split_completions(input_ids, attention_mask)
    return log_probabilities(model, inputs), torch.zeros(R, N), None

  accelerator = types.SimpleNamespace(
    gather=identity,
    gather_for_metrics=identity,
    reduce=identity,
    autocast=contextlib.nullcontext,
    num_processes=1,
  )
  training_arguments = types.SimpleNamespace(
    use_bias_correction_kl=False, delta=None, center_rewards_coefficient=0.1
  )
  trainer = types.SimpleNamespace(
    _get_per_token_logps_and_entropies=compute_log_probabilities,
    accelerator=accelerator,
    args=training_arguments,
    model=types.SimpleNamespace(training=False),
    max_completion_length=N,
    epsilon_low=0.1,
    epsilon_high=0.1,
    importance_sampling_level="token",
    top_entropy_quantile=1.0,
    off_policy_mask_threshold=None,
    use_vllm=False,
    aux_loss_enabled=False,
    _entropy_bonus_enabled=False,
    _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
    _total_train_tokens=0,
  )
  vars(trainer).update(attributes)
  return trainer


def compute_loss(pair, objective, batch):
  """Return (mean loss, gradients by name) of our objective for the policy."""

  @jax.jit
  def loss(arrays):
    model = params.with_arrays(pair.model, arrays)
    model.reference = pair.model
    total, sums = objective(model, batch)
    return total / sums["weights"]

  return jax.value_and_grad(loss)(pair.arrays)


@pytest.mark.parametrize("form", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_grpo(form, pair):
  import torch
  from trl.trainer.grpo_trainer import GRPOTrainer, nanstd

  batch, inputs = make_rollout(pair, [5, 2, 3, 1, 5, 4])
  rewards = torch.tensor(batch["rewards"])
  advantages = rewards - rewards.mean(1, keepdim=True)
  if form != "dr_grpo":
    advantages = advantages / (nanstd(rewards, dim=1)[:, None] + 1e-4)
  trainer = make_trainer(loss_type=form, beta=0.3, epsilon_high=0.2)
  if form == "gspo":
    trainer.loss_type = "grpo"
    trainer.importance_sampling_level = "sequence"
  inputs["advantages"] = advantages.reshape(-1)
  inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
  expected = GRPOTrainer._compute_loss(trainer, pair.torch_policy, inputs)
  expected.backward()
  objective = grpo.Objective("exact", form=form, clip=0.1, clip_high=0.2, beta=0.3)
  loss, gradients = compute_loss(pair, objective, batch)
  np.testing.assert_allclose(loss, expected.item(), rtol=1e-5, atol=1e-6)
  pair.check_gradients(gradients)


def test_the_gradient_of_rloo(pair):
  """Compare gradients only, since TRL's loss is a clipped ratio of sequence probabilities.

  At the first update its gradient equals the gradient of -A log p, where A is the advantage and p
  the probability of the completion.
  """
  import torch
  from trl.trainer.rloo_trainer import RLOOTrainer

  batch, inputs = make_rollout(pair, [5, 2, 3, 1, 5, 4])
  completion_mask = inputs["completion_mask"]
  old = (log_probabilities(pair.torch_policy, inputs) * completion_mask).detach()
  batch["decoder_log_probabilities"] = old.numpy().reshape(B, K, N)
  divergence = ((old - inputs["ref_per_token_logps"]) * completion_mask).sum(1).reshape(B, K)
  returns = torch.tensor(batch["rewards"]) - 0.2 * divergence
  mean_of_others = (returns.sum(1, keepdim=True) - returns) / (K - 1)
  inputs["advantages"] = (returns - mean_of_others).reshape(-1)
  inputs["old_logps"] = old.sum(1)
  RLOOTrainer._compute_loss(make_trainer(), pair.torch_policy, inputs).backward()
  _, gradients = compute_loss(pair, rloo.Objective("exact", beta=0.2), batch)
  pair.check_gradients(gradients)


def whiten(x):
  return (x - x.mean()) * (x.var() + 1e-8).rsqrt()


def estimate_advantages(rewards, values, gamma, gae_lambda):
  """Return the generalised advantage estimates [R, N], as `PPOTrainer.train` computes them."""
  import torch

  advantages = []
  advantage = 0
  for t in reversed(range(N)):
    next_value = values[:, t + 1] if t < N - 1 else 0.0
    error = rewards[:, t] + gamma * next_value - values[:, t]
    advantage = error + gamma * gae_lambda * advantage
    advantages.append(advantage)
  return torch.stack(advantages[::-1], 1)


def test_ppo(pair):
  import torch

  batch, inputs = make_rollout(pair, [N] * R)
  objective = ppo.Objective(
    "exact", clip=0.1, value_clip=0.1, value_weight=0.3, gamma=0.98, gae_lambda=0.9, beta=0.2
  )
  embed = pair.model.variant.dims.embed
  head = np.random.default_rng(1).normal(size=(embed, 1)).astype(np.float32)
  old_head = head * 0.8
  ids, mask = join_completions(inputs)

  def compute_values(torch_head):
    hidden = pair.torch_policy.model(input_ids=ids, attention_mask=mask).last_hidden_state
    return (hidden @ torch_head)[:, M - 1 : -1, 0]

  torch_head = torch.tensor(head, requires_grad=True)
  with torch.no_grad():
    old_values = compute_values(torch.tensor(old_head))
    old_log_p = inputs["old_per_token_logps"]
    rewards = -objective.beta * (old_log_p - inputs["ref_per_token_logps"])
    rewards[:, -1] += torch.tensor(batch["rewards"]).reshape(-1)
    advantages = estimate_advantages(rewards, old_values, objective.gamma, objective.gae_lambda)
    returns = advantages + old_values
    advantages = whiten(advantages)
  values = compute_values(torch_head)
  value_clip = objective.value_clip
  clipped_values = torch.clamp(values, old_values - value_clip, old_values + value_clip)
  squared_error = torch.max((values - returns) ** 2, (clipped_values - returns) ** 2)
  value_loss = 0.5 * squared_error.mean()
  ratio = torch.exp(log_probabilities(pair.torch_policy, inputs) - old_log_p)
  clipped_ratio = torch.clamp(ratio, 1 - objective.clip, 1 + objective.clip)
  policy_loss = torch.max(-advantages * ratio, -advantages * clipped_ratio).mean()
  expected = policy_loss + objective.value_weight * value_loss
  expected.backward()

  def with_head(arrays):
    base_model = hf.load(str(pair.folder / "reference"))
    model = params.with_arrays(objective.extend_model(base_model, jax.random.key(0)), arrays)
    model.reference = pair.model
    return model

  arrays = pair.arrays | {"value/bias": np.zeros(1, np.float32), "value/kernel": head}
  old_arrays = arrays | {"value/kernel": old_head}
  batch_with_advantages = objective.estimate_advantages(with_head(old_arrays), batch)
  np.testing.assert_allclose(
    batch_with_advantages["advantages"].reshape(R, N), advantages, rtol=1e-4, atol=1e-5
  )

  def compute_mean_loss(arrays):
    total, sums = objective(with_head(arrays), batch_with_advantages)
    return total / sums["weights"]

  loss, gradients = jax.value_and_grad(compute_mean_loss)(arrays)
  np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
  np.testing.assert_allclose(gradients["value/kernel"], torch_head.grad, rtol=1e-4, atol=1e-5)
  pair.check_gradients({name: gradients[name] for name in pair.arrays})


def test_the_reward_model(pair):
  import torch
  from trl.trainer.reward_trainer import RewardTrainer

  generator = np.random.default_rng(2)
  lengths = generator.integers(3, 9, (R, 2))
  T = 9
  tokens = generator.integers(3, cases.VOCAB, (R, 2, T))
  mask = (np.arange(T) < lengths[..., None]).astype(np.int32)
  variant = pair.model.variant
  model_class = type(pair.model)
  scoring_model = model_class(nnx.Rngs(0), variant=variant, scores=1, layers="loop")
  head = generator.normal(size=(variant.dims.embed, 1)).astype(np.float32)
  torch_head = torch.tensor(head, requires_grad=True)

  def score(input_ids, attention_mask, **_):
    hidden = pair.torch_policy.model(
      input_ids=input_ids, attention_mask=attention_mask
    ).last_hidden_state
    last_position = attention_mask.sum(1) - 1
    return types.SimpleNamespace(logits=(hidden @ torch_head)[torch.arange(2 * R), last_position])

  # TRL has all preferred texts first, then all others
  margin = np.array([0.5, 0.0, 1.0, -0.2, 0.3, 2.0], np.float32)
  inputs = {
    "input_ids": torch.tensor(tokens.swapaxes(0, 1).reshape(2 * R, T)),
    "attention_mask": torch.tensor(mask.swapaxes(0, 1).reshape(2 * R, T)),
    "margin": torch.tensor(margin),
  }
  expected = RewardTrainer.compute_loss(make_trainer(), score, inputs)
  expected.backward()
  batch = {
    "decoder_input_tokens": tokens.astype(np.int32),
    "decoder_target_tokens": tokens.astype(np.int32),
    "decoder_segment_ids": mask,
    "decoder_loss_weights": mask.astype(np.float32),
    "margin": margin,
  }

  objective = reward.Objective(centre=0.1)

  def compute_mean_loss(arrays):
    total, sums = objective(params.with_arrays(scoring_model, arrays), batch)
    return total / sums["weights"]

  head_arrays = {"scores/out/kernel": head, "scores/out/bias": np.zeros(1, np.float32)}
  loss, gradients = jax.value_and_grad(compute_mean_loss)(pair.arrays | head_arrays)
  np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
  np.testing.assert_allclose(gradients["scores/out/kernel"], torch_head.grad, rtol=1e-4, atol=1e-5)
  pair.check_gradients({name: gradients[name] for name in pair.arrays})
