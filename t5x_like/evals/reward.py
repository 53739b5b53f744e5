"""The mean reward of the likeliest completion of every prompt, for models that learn from
rewards."""

import jax
import numpy as np

from t5x_like import rewards
from t5x_like.decoding.generate import choose_likeliest
from t5x_like.decoding.rollouts import rollout
from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, EvalResult, _labelled
from t5x_like.parallel.rules import fetch
from t5x_like.slots import PositiveInt


class Evaluator:
  """An evaluator that completes prompts greedily and rewards the completions.

  Args:
    max_examples: the number of prompts, from the first; None means all.

  Raises:
    UserError: the task is not `prompts`, or the objective has no reward.
  """

  def __init__(self, context: EvalContext, *, max_examples: PositiveInt | None = None):
    task = context.task
    reward = getattr(context.objective, "reward", None)
    if reward is None or "decoder_log_probabilities" not in task.features:
      raise UserError(
        "evaluator reward: needs the task `prompts` and an objective with a reward, found task "
        f"{task.name}; choose another evaluator"
      )
    rewards.find_reward(reward)
    self._context = context
    self._max_examples = max_examples
    self._reward = reward
    (_, self._N) = task.features["decoder_log_probabilities"].shape
    ends = self._ends = rewards.completion_ends(task)

    def function(model, batch):
      rows = {
        name: x[:, 0] for name, x in batch.items() if name.startswith(("encoder_", "decoder_"))
      }
      made = rollout(model, rows, choose_likeliest, new_tokens=self._N, ends=ends)
      return {name: made[name] for name in ("decoder_target_tokens", "decoder_loss_weights")}

    self._run = context.jit(function)

  def metric_names(self) -> tuple[str, ...]:
    return ("reward", "completion_length", "unfinished", "examples")

  def __call__(self, arrays: dict[str, jax.Array]) -> EvalResult:
    """Return the mean `reward`, the mean `completion_length`, the share of `unfinished`
    completions, and `examples`."""
    context = self._context
    vocabulary = self._context.task.vocabulary
    found = []
    lengths = []
    unfinished = []
    predictions = []
    for batch in context.global_batches(self._max_examples):
      real = fetch(batch["example_index"]) >= 0
      made = {name: fetch(x)[real, -self._N :] for name, x in self._run(arrays, batch).items()}
      tokens_RN = made["decoder_target_tokens"]
      length_R = made["decoder_loss_weights"].sum(axis=1)
      texts = rewards.decode_completions(tokens_RN, vocabulary, self._ends)
      examples = rewards.unpack_fields(fetch(batch["fields"])[real])
      reward_R = rewards.reward_texts(self._reward, texts, examples)
      found = [*found, *reward_R]
      lengths = [*lengths, *length_R]
      unfinished += list(~np.isin(tokens_RN, self._ends).any(axis=1))
      side = "encoder" if "encoder_input_tokens" in batch else "decoder"
      asked_RS, valid_RS = (
        fetch(batch[f"{side}_{name}"])[real, 0] for name in ("input_tokens", "segment_ids")
      )
      for row, text in enumerate(texts):
        ids = [int(i) for i in asked_RS[row][valid_RS[row] > 0] if i < vocabulary.size]
        predictions.append(
          {"input": vocabulary.decode(ids[side == "decoder" :]), "prediction": text}
        )
        predictions[-1] |= {
          "target": " ".join(map(str, examples[row].values())),
          "reward": float(reward_R[row]),
        }
    means = {"reward": found, "completion_length": lengths, "unfinished": unfinished}
    scores = {name: float(np.mean(values)) for name, values in means.items()} | {
      "examples": len(found)
    }
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)
