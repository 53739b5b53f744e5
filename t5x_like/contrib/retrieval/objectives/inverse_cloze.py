"""In-batch retrieval: find each query's passage among the passages of the batch.

Lee et al. 2019, sections 4 and 5.

With the source `cloze:` it is the inverse cloze task, by which a retriever starts; with questions
and their passages it is dense passage retrieval (Karpukhin et al. 2020, section 3.2).
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.objectives import BaseObjective
from t5x_like.objectives._contrastive import MASKED, gather_rows, inner_products
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """Cross-entropy of each query's passage, by inner product.

  The candidates are all passages of the global batch.
  """

  unit = "nats per example"
  model_inputs = ("passage_tokens",)
  targets = "passage_tokens"
  weights = "example_weights"
  extra_features = ("encoder_input_tokens",)
  outputs = {"query_embeddings": 2, "passage_embeddings": 3}
  reported_sums = ("loss", "correct")
  uses_batch_negatives = True

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the retriever on a batch.

    Args:
      batch: `encoder_input_tokens` int32 [B, Q], `passage_tokens` int32 [B, 1, L], and
        `example_weights` float32 [B]; passages of weight 0 are left out of the comparison.
    Returns:
      (loss sum, sums): `loss`, `correct` (the query's own passage is nearest) and `weights`.
    """
    outputs = model.outputs(batch, key)
    weights_B = batch["example_weights"]
    query_BP = outputs["query_embeddings"]
    passage_BP = outputs["passage_embeddings"][:, 0]
    score_BB = inner_products(query_BP, gather_rows(passage_BP)) + jnp.where(
      gather_rows(weights_B) > 0, 0.0, MASKED
    )
    own_B = jnp.sum(query_BP * passage_BP, axis=-1)
    loss = jnp.sum((jax.nn.logsumexp(score_BB, axis=1) - own_B) * weights_B)
    nearest_B = jnp.argmax(score_BB, axis=1) == jnp.arange(len(query_BP))
    sums = {"loss": loss, "correct": jnp.sum(nearest_B * weights_B), "weights": jnp.sum(weights_B)}
    return add_auxiliary(loss, sums, outputs)
