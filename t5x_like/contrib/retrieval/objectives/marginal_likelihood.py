"""The likelihood of an answer, summed over the passages that it may come from.

Guu et al. 2020, section 3.1.

`p(y|x) = sum_z p(z|x) p(y|x, z)`, z among the nearest k passages of the query x and the null
document. p(z|x) is the softmax of their inner products with x, computed anew by the parameters of
the step; so the retriever learns which passages help the reader. The search alone uses an older
index.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from t5x_like.objectives import BaseObjective
from t5x_like.objectives._cross_entropy import statistics
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """`-log sum_z p(z|x) p(y|x, z)`, a mean over examples; `training/retrieval.py` makes the batches.

  Attributes:
    refresh_every: steps from one index to the next (Guu et al. 2020, section 3.3: about 500).
    refresh: `between` two steps, while training waits, from the parameters of that step; or
      `beside` the steps, each of which embeds a part of the passages, from the parameters of the
      refresh before.
    search: where passages are found: on the devices, or by faiss in the host's memory.
  """

  unit = "nats per example"
  model_inputs = ("passage_tokens",)
  targets = "decoder_target_tokens"
  weights = "decoder_loss_weights"
  extra_features = ("encoder_input_tokens", "decoder_input_tokens", "passage_tokens", "own_passage")
  outputs = {"query_embeddings": 2, "passage_embeddings": 3, "logits": 3}
  reported_sums = ("loss", "null_probability", "utility")
  step_module = "retrieval"

  refresh_every: PositiveInt = 500
  refresh: Literal["between", "beside"] = "between"
  search: Literal["device", "faiss"] = "device"

  def extend_model(self, model, key: jax.Array):
    """Return the model, with a copy of the retriever for a refresh that runs beside the steps.

    The copy is `model.reference.reference`, the retriever of the last refresh but one.
    """
    if self.refresh == "beside":
      model.reference.reference = type(model.reference)(model.retriever)
    return model

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the retriever and the reader on a batch.

    Args:
      batch: the model's features; `passage_tokens` int32 [B, Z, L], first the null document, a row
        of padding; `decoder_target_tokens` int32 and `decoder_loss_weights` float32 [B, T].
    Returns:
      (loss sum, sums), sums over examples: `loss`, in nats; `null_probability`, p(null|x);
      `utility`, the mean of `log p(y|x, z) - log p(y|x, null)` under p(z|x), the paper's retrieval
      utility; `weights`, and the scalars of the model.
    """
    outputs = model.outputs(batch, key)
    prior_BZ, likelihood_BZ = passage_log_probabilities(outputs, batch)
    loss_B = -jax.nn.logsumexp(prior_BZ + likelihood_BZ, axis=1)
    gain_B = jnp.sum(jnp.exp(prior_BZ) * (likelihood_BZ - likelihood_BZ[:, :1]), axis=1)
    real_B = jnp.any(batch[self.weights] > 0, axis=1).astype(jnp.float32)
    metrics = {"loss": loss_B, "null_probability": jnp.exp(prior_BZ[:, 0]), "utility": gain_B}
    sums = {name: jnp.sum(x_B * real_B) for name, x_B in metrics.items()} | {
      "weights": jnp.sum(real_B)
    }
    return add_auxiliary(sums["loss"], sums, outputs)


def passage_log_probabilities(outputs: dict, batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Return (log p(z|x), log p(y|x, z)), both float32 [B, Z].

  Args:
    outputs: of a `RetrieverReader` on the batch.
  """
  Z = batch["passage_tokens"].shape[1]
  score_BZ = jnp.einsum(
    "BP,BZP->BZ", outputs["query_embeddings"], outputs["passage_embeddings"], precision="highest"
  )
  targets_RT = jnp.repeat(batch["decoder_target_tokens"], Z, axis=0)
  weights_RT = jnp.repeat(batch["decoder_loss_weights"], Z, axis=0)
  log_z_RT, target_RT, *_ = statistics(outputs["logits"], targets_RT)
  likelihood_BZ = jnp.sum((target_RT - log_z_RT) * weights_RT, axis=1).reshape(-1, Z)
  return jax.nn.log_softmax(score_BZ, axis=1), likelihood_BZ
