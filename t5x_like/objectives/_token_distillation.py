"""The losses of objectives that learn the distribution of a teacher's next token.

The logits of student and teacher are dense for a chunk of tokens at a time, so that memory never
holds [B, T, V]; the backward pass computes each chunk again.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.objectives._cross_entropy import MAX_CHUNK_LOGITS, Chunking, count_chunks
from t5x_like.objectives._losses import Batch, DecoderTargets, Sums, add_auxiliary
from t5x_like.parallel.constrain import ways

TokenMetrics = dict[str, jax.Array]


class TokenDistillation(DecoderTargets):
  """The base of distillation at every token (Hinton et al. 2015, arXiv:1503.02531).

  The loss is `(1 - share) * CE(student, target) + share * KL(teacher || student)`, the mean over
  weighted tokens. Subclasses have the field `share`.
  """

  predict_inputs = ("texts",)

  def __post_init__(self):
    if not 0 <= self.share <= 1:
      raise UserError(f"config.objective.share: found {self.share}, expected a number from 0 to 1")

  def mix_losses(
    self,
    outputs: dict,
    batch: Batch,
    divergence: Callable[..., TokenMetrics],
    other_logits: Sequence,
    *arrays: jax.Array,
  ) -> tuple[jax.Array, Sums]:
    """Sum the loss and the metrics over tokens.

    Args:
      outputs: the outputs of the student.
      divergence: `(log-probabilities of the student [B, t, V], other logits [B, t, V],
        arrays [B, t, …]) -> metrics [B, t]` of a chunk of t tokens, one of them
        `distillation_loss`.
      other_logits: further logits, [B, T, V].
      arrays: further arguments of `divergence`, [B, T, …].

    Returns:
      (loss sum, sums): `loss` (of the targets), `correct`, `weights`, the metrics of `divergence`,
      and the scalars of the model.
    """

    def measure_chunk(student_BtV, *arguments):
      *divergence_arguments, targets_Bt = arguments
      log_q_BtV = jax.nn.log_softmax(student_BtV)
      target_log_q_Bt = jnp.take_along_axis(log_q_BtV, targets_Bt[..., None], axis=-1)[..., 0]
      metrics = {
        "loss": -target_log_q_Bt,
        "correct": target_log_q_Bt >= jnp.max(log_q_BtV, axis=-1),
      }
      return metrics | divergence(log_q_BtV, *divergence_arguments)

    metrics = map_token_chunks(
      measure_chunk, (outputs["logits"], *other_logits), *arrays, batch[self.targets]
    )
    weights_BT = batch[self.weights]
    sums = {name: jnp.sum(x_BT * weights_BT) for name, x_BT in metrics.items()}
    sums["weights"] = jnp.sum(weights_BT)
    loss = (1 - self.share) * sums["loss"] + self.share * sums["distillation_loss"]
    return add_auxiliary(loss, sums, outputs)


def map_token_chunks(
  function: Callable, logits: Sequence[jax.Array | VocabularyLogits], *arrays: jax.Array
) -> Any:
  """Apply a function of dense logits to chunks of the tokens.

  Args:
    function: `(*dense logits [B, t, V], *arrays [B, t, …]) -> arrays [B, t, …]`.
    logits: the logits of T tokens, dense [B, T, V] or as factors.
    *arrays: further arguments of `function`, [B, T, …].

  Returns:
    The function's arrays, [B, T, …].
  """
  B, T, V = logits[0].shape
  sequence_shards = ways("length") if T % ways("length") == 0 else 1
  vocab_shards = max(ways("vocab"), ways("activation_vocab"))
  max_logits = MAX_CHUNK_LOGITS * vocab_shards * ways("batch") * sequence_shards
  token_chunks = count_chunks(T // sequence_shards, B * T * V, max_logits)
  chunks = Chunking(
    V,
    tied=False,
    softcap=None,
    vocab_shards=1,
    columns=V,
    sequence_shards=sequence_shards,
    token_chunks=token_chunks,
  )

  def apply_to_chunk(inputs):
    xs, arrays = inputs
    dense_logits = [_dense(source, x) for source, x in zip(logits, xs, strict=True)]
    return function(*dense_logits, *arrays)

  # The inputs of the vocabulary's kernel, or the logits themselves if they are dense.
  xs = [source.x if isinstance(source, VocabularyLogits) else source for source in logits]
  if token_chunks == 1:
    return apply_to_chunk((xs, arrays))
  inputs = jax.tree.map(chunks.split_tokens, (xs, arrays))
  outputs = jax.lax.map(jax.checkpoint(apply_to_chunk), inputs)
  return jax.tree.map(chunks.merge_tokens, outputs)


def _dense(logits: jax.Array | VocabularyLogits, x: jax.Array) -> jax.Array:
  """Return dense logits of a chunk of tokens, float32 [B, t, V].

  Args:
    logits: the logits of all tokens.
    x: the chunk of `logits.x` or, if the logits are dense, of the logits.
  """
  if isinstance(logits, VocabularyLogits):
    return dataclasses.replace(logits, x=x).dense()
  return x.astype(jnp.float32)


def full_divergence(
  log_q_BtV: jax.Array, teacher_BtV: jax.Array, temperature: float = 1.0
) -> TokenMetrics:
  """Return KL(teacher || student) of each token in nats, and whether both predict the same.

  At a temperature T, logits of both are divided by T, and the divergence is multiplied by T^2,
  which keeps the size of its gradients (Hinton et al. 2015, section 2). If student and teacher have
  different numbers of logits, the surplus ones are padding of the same vocabulary, and are left
  out.
  """
  V = min(log_q_BtV.shape[-1], teacher_BtV.shape[-1])
  if temperature != 1.0:
    log_q_BtV = jax.nn.log_softmax(log_q_BtV / temperature)
  log_q_BtV = log_q_BtV[..., :V]
  log_p_BtV = jax.nn.log_softmax(teacher_BtV[..., :V] / temperature)
  same_Bt = jnp.argmax(log_p_BtV, axis=-1) == jnp.argmax(log_q_BtV, axis=-1)
  loss_Bt = temperature**2 * jnp.sum(jnp.exp(log_p_BtV) * (log_p_BtV - log_q_BtV), axis=-1)
  return {"distillation_loss": loss_Bt, "agreement": same_Bt}


def top_k_divergence(
  log_q_BtV: jax.Array, ids_Btk: jax.Array, log_p_Btk: jax.Array
) -> TokenMetrics:
  """Return KL(teacher || student) over the teacher's k likeliest tokens and one further event.

  The event is that the token is none of the k; `remainder` is its probability by the teacher. This
  KL is at most the KL of all tokens, and equal to it for k = V.
  """
  p_Btk = jnp.exp(log_p_Btk)
  log_q_Btk = jnp.take_along_axis(log_q_BtV, ids_Btk, axis=-1)
  loss_Bt = jnp.sum(p_Btk * (log_p_Btk - log_q_Btk), axis=-1)
  remainder_Bt = jnp.zeros(ids_Btk.shape[:2])
  if ids_Btk.shape[-1] < log_q_BtV.shape[-1]:
    others_BtV = jnp.put_along_axis(
      jnp.ones(log_q_BtV.shape, bool), ids_Btk, False, axis=-1, inplace=False
    )
    log_q_Bt = jax.nn.logsumexp(log_q_BtV, axis=-1, where=others_BtV)
    remainder_Bt = jnp.maximum(1.0 - jnp.sum(p_Btk, axis=-1), 0.0)
    loss_Bt += jnp.where(
      remainder_Bt > 0,
      remainder_Bt * (jnp.log(jnp.where(remainder_Bt > 0, remainder_Bt, 1.0)) - log_q_Bt),
      0.0,
    )
  same_Bt = ids_Btk[..., 0] == jnp.argmax(log_q_BtV, axis=-1)
  return {"distillation_loss": loss_Bt, "remainder": remainder_Bt, "agreement": same_Bt}
