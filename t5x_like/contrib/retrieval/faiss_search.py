"""Search of passages by exact maximum inner product in the host's memory, by faiss.

It is for devices without the memory for `search.DeviceSearch`.

Passages stay in their store. Their embeddings are in faiss's `IndexFlatIP`, 4 P bytes for each in P
dimensions, and devices hold only the passages that are being embedded. The results equal those
of `search.DeviceSearch`, except for ties.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.decoding.generate import Batch
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules, fetch


class FaissSearch:
  """The passages of a task in their store, with the interface of `search.DeviceSearch`.

  Raises:
    UserError: faiss is not installed, or there are several processes.
  """

  def __init__(self, model, rules: Rules, passages, embed_batch: int, parts: int = 1):
    try:
      import faiss
    except ImportError:
      raise UserError(
        "config.objective.search: faiss is not installed; pip install 't5x-like[retrieval]'"
      ) from None
    if jax.process_count() > 1:
      raise UserError(
        "config.objective.search: faiss needs one process, found "
        f"{jax.process_count()}; set 'device'"
      )
    self._model = model
    self._rules = rules
    self._passages = passages
    devices = rules.mesh.size
    self._chunk_size = -(-min(embed_batch, passages.num_passages) // devices) * devices
    chunks_of_part = -(-passages.num_passages // (self._chunk_size * parts))
    self._part_size = self._chunk_size * chunks_of_part
    self.parts = -(-passages.num_passages // self._part_size)
    self._make_index = lambda: faiss.IndexFlatIP(model.variant.width)
    self._jit_embed = jax.jit(self._embed, static_argnums=0)
    self._jit_embed_queries = jax.jit(self._embed_queries)

  def empty_index(self) -> Any:
    """Return an empty `IndexFlatIP`."""
    return self._make_index()

  def embed_part(
    self, retriever_of: Callable, arrays: dict[str, jax.Array], index: Any, number: int
  ) -> Any:
    """Append the embeddings of a part of the passages to an index, and return it."""
    begin = number * self._part_size
    total = self._passages.num_passages
    for first in range(begin, min(begin + self._part_size, total), self._chunk_size):
      number_n = np.arange(first, first + self._chunk_size)
      rows_nL = self._passages.rows(np.minimum(number_n, total - 1))
      tokens_nL = jax.device_put(rows_nL, self._rules.batch())
      embedding_nP = fetch(self._jit_embed(retriever_of, arrays, tokens_nL))
      index.add(np.ascontiguousarray(embedding_nP[: total - first], np.float32))
    return index

  def add_nearest(self, arrays: dict[str, jax.Array], index: Any, batch: Batch) -> Batch:
    """Return a batch with the passages nearest to its queries, and their numbers, `passages`."""
    query_BP = fetch(self._jit_embed_queries(arrays, batch["encoder_input_tokens"]))
    own_B = fetch(batch["own_passage"])
    B, Z, L = batch["passage_tokens"].shape
    # one more than k, in case a query's own passage is among them
    _, number_BZ = index.search(np.ascontiguousarray(query_BP, np.float32), Z)
    is_taken_BZ = number_BZ != own_B[:, None]
    is_taken_BZ[:, -1] &= ~is_taken_BZ[:, :-1].all(axis=1)
    number_Bk = number_BZ[is_taken_BZ].reshape(B, Z - 1).astype(np.int32)
    passage_BkL = self._passages.rows(number_Bk.reshape(-1)).reshape(B, Z - 1, L)
    passage_BkL, number_Bk = jax.device_put((passage_BkL, number_Bk), self._rules.batch())
    tokens_BZL = jnp.concatenate([batch["passage_tokens"][:, :1], passage_BkL], axis=1)
    tokens_BZL = jax.device_put(tokens_BZL, self._rules.batch())
    return batch | {"passage_tokens": tokens_BZL, "passages": number_Bk}

  def _embed(
    self, retriever_of: Callable, arrays: dict[str, jax.Array], tokens_nL: jax.Array
  ) -> jax.Array:
    with self._rules.activate():
      return retriever_of(params.with_arrays(self._model, arrays)).embed_passages(tokens_nL)

  def _embed_queries(self, arrays: dict[str, jax.Array], tokens_BQ: jax.Array) -> jax.Array:
    with self._rules.activate():
      return params.with_arrays(self._model, arrays).retriever.embed_queries(tokens_BQ)
