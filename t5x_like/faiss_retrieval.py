"""Retrieval of passages by exact maximum inner product in the host's memory, by faiss, where
devices have no room.

Passages stay in their store, their embeddings lie in faiss's `IndexFlatIP`, 4 P bytes for each in P
dimensions, and devices hold as many as are embedded at once. The passages found are those of
`retrieval.Shelf`, but for equal products.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules, fetch
from t5x_like.retrieval import Batch


class Shelf:
  """The passages of a task in their store; arguments and methods are those of `retrieval.Shelf`.

  Raises:
    UserError: faiss is not installed, or there are several processes.
  """

  def __init__(self, model, rules: Rules, passages, at_once: int, parts: int = 1):
    try:
      import faiss
    except ImportError:
      raise UserError(
        "config.objective.search: faiss is not installed; pip install 't5x-like[faiss]'"
      ) from None
    if jax.process_count() > 1:
      raise UserError(
        "config.objective.search: faiss needs one process, found "
        f"{jax.process_count()}; set 'device'"
      )
    self._rules = rules
    self._passages = passages
    n = self._n = -(-min(at_once, passages.number) // rules.mesh.size) * rules.mesh.size
    self._passages_of_part = n * -(-passages.number // (n * parts))
    self.parts = -(-passages.number // self._passages_of_part)
    self.empty = lambda: faiss.IndexFlatIP(model.variant.width)

    @functools.partial(jax.jit, static_argnums=0)
    def embed(
      retriever_of: Callable, arrays: dict[str, jax.Array], tokens_nL: jax.Array
    ) -> jax.Array:
      with rules.activate():
        return retriever_of(params.with_arrays(model, arrays)).embed_passages(tokens_nL)

    @jax.jit
    def asked(arrays: dict[str, jax.Array], tokens_BQ: jax.Array) -> jax.Array:
      with rules.activate():
        return params.with_arrays(model, arrays).retriever.embed_queries(tokens_BQ)

    self._embed = embed
    self._asked = asked

  def part(
    self, retriever_of: Callable, arrays: dict[str, jax.Array], index: Any, number: int
  ) -> Any:
    """Return an `IndexFlatIP`, with the embeddings of a part of the passages behind those of the
    parts before."""
    begin = number * self._passages_of_part
    most = self._passages.number
    for first in range(begin, min(begin + self._passages_of_part, most), self._n):
      rows_nL = self._passages.rows(np.minimum(np.arange(first, first + self._n), most - 1))
      part_nP = fetch(
        self._embed(retriever_of, arrays, jax.device_put(rows_nL, self._rules.batch()))
      )
      index.add(np.ascontiguousarray(part_nP[: most - first], np.float32))
    return index

  def filled(self, arrays: dict[str, jax.Array], index: Any, batch: Batch) -> Batch:
    """Return a batch with the passages nearest to its queries, and their numbers, `passages` int32
    [B, k]."""
    query_BP, own_B = (
      fetch(x) for x in (self._asked(arrays, batch["encoder_input_tokens"]), batch["own_passage"])
    )
    B, Z, L = batch["passage_tokens"].shape
    _, number_BZ = index.search(np.ascontiguousarray(query_BP, np.float32), Z)  # one more than k
    kept_BZ = number_BZ != own_B[:, None]
    kept_BZ[:, -1] &= ~kept_BZ[:, :-1].all(axis=1)
    number_Bk = number_BZ[kept_BZ].reshape(B, Z - 1).astype(np.int32)
    found_BkL = self._passages.rows(number_Bk.reshape(-1)).reshape(B, Z - 1, L)
    found_BkL, number_Bk = jax.device_put((found_BkL, number_Bk), self._rules.batch())
    tokens_BZL = jnp.concatenate([batch["passage_tokens"][:, :1], found_BkL], axis=1)
    return batch | {
      "passage_tokens": jax.device_put(tokens_BZL, self._rules.batch()),
      "passages": number_Bk,
    }
