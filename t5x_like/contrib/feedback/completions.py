"""Rollouts: completions sampled from the model in training, in the rows that it trains on next.

The task `prompts` makes rows whose completion is still empty. A prompt is padded on its left, so
the completion takes the last N positions of every row, after the prompt's own M inputs; an
encoder-decoder's prompt is in the encoder, and M is 1, the start token. Worked example, prompt 7 8
of M = 4, completion 5 1 (EOS) of N = 3:

    decoder_input_tokens   0 s 7 8 5 0     decoder_target_tokens   0 0 0 5 1 0
    decoder_segment_ids    0 1 1 1 1 0     decoder_loss_weights    0 0 0 1 1 0
    decoder_positions      0 0 1 2 3 3     decoder_log_probabilities     a b 0
"""

from collections.abc import Sequence

import jax.numpy as jnp

from t5x_like.decoding.generate import Batch, TokenChoice, generate
from t5x_like.decoding.sampling import is_in
from t5x_like.parallel.constrain import constrain


def rollout(
  model, rows: Batch, choose: TokenChoice, *, new_tokens: int, ends: Sequence[int]
) -> Batch:
  """Complete the prompts of some rows.

  Args:
    model: a decoder or an encoder-decoder.
    rows: the task's features `encoder_…` and `decoder_…`, [R, …].
    choose: see `generate`.
    new_tokens: N, the most tokens of a completion.
    ends: ids that end a completion; the completion contains its end.
  Returns:
    The rows with their completions: the model's features, `decoder_target_tokens` int32 and
    `decoder_loss_weights` float32, 1 on completions, [R, M + N - 1]; and
    `decoder_log_probabilities` float32 [R, N] of the completions' tokens, 0 elsewhere.
  """
  M = rows["decoder_input_tokens"].shape[1] - new_tokens + 1
  prompts = dict(rows)
  for name, x in rows.items():
    if name.startswith("decoder_"):
      prompts[name] = x[:, :M]
  tokens_RN, log_p_RN = generate(model, prompts, choose, max_length=new_tokens, eos=ends)
  end_RN = is_in(tokens_RN, tuple(ends))
  before_RN = jnp.cumsum(end_RN, axis=1) - end_RN  # the ends before each token
  prompt_RM = prompts["decoder_segment_ids"]
  valid_RN = ((before_RN == 0) & (prompt_RM[:, -1:] > 0)).astype(jnp.int32)
  tokens_RN = tokens_RN * valid_RN
  segments_RT = jnp.concatenate([prompt_RM, valid_RN[:, :-1]], axis=1)
  empty_RM = jnp.zeros_like(prompt_RM[:, 1:])
  features = {
    "decoder_input_tokens": jnp.concatenate(
      [prompts["decoder_input_tokens"], tokens_RN[:, :-1]], axis=1
    ),
    "decoder_target_tokens": jnp.concatenate([empty_RM, tokens_RN], axis=1),
    "decoder_loss_weights": jnp.concatenate([empty_RM, valid_RN], axis=1).astype(jnp.float32),
    "decoder_segment_ids": segments_RT,
    "decoder_positions": jnp.maximum(jnp.cumsum(segments_RT, axis=1) - 1, 0),
    "decoder_log_probabilities": log_p_RN * valid_RN,
  }
  return rows | {name: constrain(x, "batch", None) for name, x in features.items()}
