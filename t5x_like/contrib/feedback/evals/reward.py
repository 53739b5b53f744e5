"""The mean reward of greedy completions of prompts, for models that learn from rewards."""

import dataclasses

import numpy as np

from t5x_like.contrib.feedback import rewards
from t5x_like.contrib.feedback.completions import rollout
from t5x_like.decoding.generate import choose_likeliest
from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult, _labelled
from t5x_like.parallel.rules import fetch
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator(BaseEvaluator):
  """An evaluator that completes prompts greedily and rewards the completions.

  Attributes:
    max_examples: the number of prompts, from the first; None means all.

  Raises:
    UserError: the task is not `prompts`, or the objective has no reward.
  """

  max_examples: PositiveInt | None = None

  def __post_init__(self):
    task = self.context.task
    if self._reward is None or "decoder_log_probabilities" not in task.features:
      raise UserError(
        "evaluator reward: needs the task `prompts` and an objective with a reward, found task "
        f"{task.name}; choose another evaluator"
      )
    rewards.find_reward(self._reward)

  @property
  def _reward(self):
    return getattr(self.context.objective, "reward", None)

  @property
  def _new_tokens(self):
    return self.context.task.features["decoder_log_probabilities"].shape[1]

  def metric_names(self):
    return ("reward", "completion_length", "unfinished", "examples")

  def compute(self, model, batch):
    """Return the tokens of the completions and their weights."""
    rows = {}
    for name, x in batch.items():
      if name.startswith(("encoder_", "decoder_")):
        rows[name] = x[:, 0]  # the first copy of each prompt
    ends = rewards.completion_ends(self.context.task)
    completed = rollout(model, rows, choose_likeliest, new_tokens=self._new_tokens, ends=ends)
    return {name: completed[name] for name in ("decoder_target_tokens", "decoder_loss_weights")}

  def __call__(self, arrays):
    """Return the means of `reward` and `completion_length`, and the share `unfinished`."""
    vocabulary = self.context.task.vocabulary
    ends = rewards.completion_ends(self.context.task)
    all_rewards = []
    lengths = []
    unfinished = []
    predictions = []
    for batch in self.context.global_batches(self.max_examples):
      is_example = fetch(batch["example_index"]) >= 0
      completions = self.run(arrays, batch)
      tokens_RN = fetch(completions["decoder_target_tokens"])[is_example, -self._new_tokens :]
      weights_RN = fetch(completions["decoder_loss_weights"])[is_example, -self._new_tokens :]
      texts = rewards.decode_completions(tokens_RN, vocabulary, ends)
      examples = rewards.unpack_fields(fetch(batch["fields"])[is_example])
      reward_R = rewards.reward_texts(self._reward, texts, examples)
      all_rewards += list(reward_R)
      lengths += list(weights_RN.sum(axis=1))
      unfinished += list(~np.isin(tokens_RN, ends).any(axis=1))
      side = "encoder" if "encoder_input_tokens" in batch else "decoder"
      prompt_RS = fetch(batch[f"{side}_input_tokens"])[is_example, 0]
      segments_RS = fetch(batch[f"{side}_segment_ids"])[is_example, 0]
      for row, text in enumerate(texts):
        prompt_S = prompt_RS[row][segments_RS[row] > 0]
        ids = prompt_S[prompt_S < vocabulary.size].tolist()
        if side == "decoder":
          ids = ids[1:]  # without the start token
        prediction = {"input": vocabulary.decode(ids), "prediction": text}
        prediction["target"] = " ".join(map(str, examples[row].values()))
        prediction["reward"] = float(reward_R[row])
        predictions.append(prediction)
    scores = {
      "reward": float(np.mean(all_rewards)),
      "completion_length": float(np.mean(lengths)),
      "unfinished": float(np.mean(unfinished)),
      "examples": len(all_rewards),
    }
    return EvalResult(scores, _labelled.sample_predictions(predictions), predictions)
