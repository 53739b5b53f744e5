"""Retrieval of passages by exact maximum inner product, over all devices of a mesh.

Passages and their embeddings, the index, lie on the devices, each of which holds and searches a
part: 4 (L + P) bytes a passage of L tokens in P dimensions, divided by the number of devices. The
nearest of each part are compared again, so the result does not depend on the number of devices.
`faiss_search.py` searches in the host's memory instead.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like.decoding.generate import Batch, choose_likeliest, generate
from t5x_like.nn import params
from t5x_like.parallel.constrain import constrain
from t5x_like.parallel.rules import Rules


class DeviceSearch:
  """A search of a task's passages, which are on the devices.

  Args:
    model: an abstract `retriever_reader.RetrieverReader`.
    rules: mesh and sharding rules.
    passages: a `passages.Passages`.
    embed_batch: the number of passages embedded at once, rounded up to a multiple of the devices.
    parts: the most parts in which an index is made.

  Attributes:
    parts: the number of parts.
  """

  def __init__(self, model, rules: Rules, passages, embed_batch: int, parts: int = 1):
    mesh = rules.mesh
    self._model = model
    self._rules = rules
    self._passages = passages
    self._chunk_size = -(-min(embed_batch, passages.num_passages) // mesh.size) * mesh.size
    self._chunks = -(-passages.num_passages // self._chunk_size)
    self._rows = self._chunks * self._chunk_size
    self._chunks_of_part = -(-self._chunks // parts)
    self.parts = -(-self._chunks // self._chunks_of_part)
    by_rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    self._tokens_NL = jax.make_array_from_callback(
      (self._rows, passages.length), by_rows, self._read_tokens
    )
    self._jit_empty_index = jax.jit(
      lambda: jnp.zeros((self._rows, model.variant.width)), out_shardings=by_rows
    )
    self._jit_embed_part = jax.jit(
      self._embed_part, static_argnums=0, donate_argnums=2, out_shardings=by_rows
    )
    self._jit_add_nearest = jax.jit(self._add_nearest, out_shardings=rules.batch())

  def empty_index(self) -> jax.Array:
    """Return an index to fill, float32 [N, P]; N is the number of passages, rounded up."""
    return self._jit_empty_index()

  def embed_part(
    self, retriever_of: Callable, arrays: dict[str, jax.Array], index_NP: jax.Array, number: int
  ) -> jax.Array:
    """Return the index with the embeddings of one part; the memory of `index_NP` is reused.

    Args:
      retriever_of: returns the retriever of a model.
      arrays: the parameters by name.
      number: the number of the part.
    """
    return self._jit_embed_part(retriever_of, arrays, index_NP, jnp.int32(number), self._tokens_NL)

  def add_nearest(self, arrays: dict[str, jax.Array], index_NP: jax.Array, batch: Batch) -> Batch:
    """Return a batch with the passages nearest to its queries, and their numbers, `passages`."""
    return self._jit_add_nearest(arrays, index_NP, self._tokens_NL, batch)

  def _read_tokens(self, slices: tuple[slice, ...]) -> np.ndarray:
    number_m = np.arange(*slices[0].indices(self._rows))
    rows_mL = self._passages.rows(np.minimum(number_m, self._passages.num_passages - 1))
    is_passage_m1 = (number_m < self._passages.num_passages)[:, None]
    return np.where(is_passage_m1, rows_mL, np.int32(self._passages.vocabulary.pad_id))

  def _embed_part(
    self,
    retriever_of: Callable,
    arrays: dict,
    index_NP: jax.Array,
    number: jax.Array,
    tokens_NL: jax.Array,
  ) -> jax.Array:
    n = self._chunk_size
    C = self._chunks
    m = self._chunks_of_part
    with self._rules.activate():
      retriever = retriever_of(params.with_arrays(self._model, arrays))
      first = jnp.minimum(m * number, C - m)  # the last part may repeat some of the one before
      # every device keeps its passages
      tokens_CnL = jnp.swapaxes(tokens_NL.reshape(n, C, -1), 0, 1)
      part_mnL = jax.lax.dynamic_slice_in_dim(tokens_CnL, first, m)
      embed = lambda tokens_nL: retriever.embed_passages(constrain(tokens_nL, "batch", None))  # noqa: E731
      part_nmP = jnp.swapaxes(jax.lax.map(embed, part_mnL), 0, 1)
      index_nCP = index_NP.reshape(n, C, -1)
      index_nCP = jax.lax.dynamic_update_slice_in_dim(index_nCP, part_nmP, first, axis=1)
      return index_nCP.reshape(self._rows, -1)

  def _add_nearest(
    self, arrays: dict, index_NP: jax.Array, tokens_NL: jax.Array, batch: Batch
  ) -> Batch:
    with self._rules.activate():
      retriever = params.with_arrays(self._model, arrays).retriever
      query_BP = retriever.embed_queries(batch["encoder_input_tokens"])
      number_Bk, _, passage_BkL = find_nearest(
        self._rules.mesh,
        query_BP,
        index_NP,
        tokens_NL,
        batch["own_passage"],
        k=batch["passage_tokens"].shape[1] - 1,
        number=self._passages.num_passages,
      )
      null_B1L = batch["passage_tokens"][:, :1]
      passage_tokens = jnp.concatenate([null_B1L, passage_BkL], axis=1)
      return batch | {"passage_tokens": passage_tokens, "passages": number_Bk}


def open_search(backend: str, *arguments) -> Any:
  """Return the search of a backend, `device` or `faiss`, with the arguments of `DeviceSearch`."""
  if backend == "device":
    return DeviceSearch(*arguments)
  from t5x_like.contrib.retrieval.faiss_search import FaissSearch  # faiss is optional

  return FaissSearch(*arguments)


def build_index(
  search, arrays: dict[str, jax.Array], retriever_of: Callable = operator.attrgetter("retriever")
) -> Any:
  """Return the index of a search, embedded by a retriever of the model with these parameters.

  By default it is the retriever in training.
  """
  index = search.empty_index()
  for number in range(search.parts):
    index = search.embed_part(retriever_of, arrays, index, number)
  return index


def answer_from_passages(model, batch: Batch, new_tokens: int) -> tuple[jax.Array, jax.Array]:
  """Answer greedily from each passage of a batch ("fast decoding", Lewis et al. 2020, 2.5).

  Args:
    batch: the inputs of the model; see `RetrieverReader.outputs`.
    new_tokens: N, the most tokens of an answer.
  Returns:
    (answers int32 [B, Z, N], log-probabilities of passage and answer together, float32 [B, Z])
  """
  outputs = model.outputs(batch)
  score_BZ = jnp.einsum(
    "BP,BZP->BZ", outputs["query_embeddings"], outputs["passage_embeddings"], precision="highest"
  )
  tokens_RN, log_p_RN = generate(
    model.reader, model.reader_rows(batch), choose_likeliest, max_length=new_tokens
  )
  answer_log_p_BZ = log_p_RN.sum(axis=1).reshape(score_BZ.shape)
  tokens_BZN = tokens_RN.reshape(*score_BZ.shape, -1)
  return tokens_BZN, jax.nn.log_softmax(score_BZ) + answer_log_p_BZ


def most_probable_answer(
  vocabulary, tokens_ZN: np.ndarray, log_p_Z: np.ndarray
) -> tuple[str, float]:
  """Return the likeliest answer and its probability, summed over the passages that give it."""
  probabilities: dict[str, float] = {}
  for tokens_N, p in zip(tokens_ZN, np.exp(log_p_Z)):
    ends = np.flatnonzero(tokens_N == vocabulary.eos_id)
    row = tokens_N[: ends[0]] if len(ends) else tokens_N
    ids = [int(i) for i in row if i < vocabulary.size and i != vocabulary.pad_id]
    text = vocabulary.decode(ids).strip()
    probabilities[text] = probabilities.get(text, 0.0) + float(p)
  best = max(probabilities, key=probabilities.get)
  return best, probabilities[best]


def find_nearest(
  mesh,
  query_BP: jax.Array,
  index_NP: jax.Array,
  tokens_NL: jax.Array,
  excluded_B: jax.Array,
  *,
  k: int,
  number: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Find the k passages with the greatest inner product with each query; the first wins a tie.

  Args:
    index_NP, tokens_NL: the embeddings and tokens of passages, split over all axes of the mesh.
    excluded_B: int32, the number of a passage to leave out; -1 for none.
    number: the number of passages; further rows are padding.
  Returns:
    (their numbers int32 [B, k], products float32 [B, k], and tokens int32 [B, k, L]), from the
    greatest product.
  """
  axes = mesh.axis_names

  def search_shard(query_BP, index_nP, tokens_nL, excluded_B):
    n = len(index_nP)
    first = jax.lax.axis_index(axes) * n
    score_Bn = jnp.einsum("BP,nP->Bn", query_BP, index_nP, precision="highest")
    number_n = first + jnp.arange(n)
    is_allowed_Bn = (number_n < number) & (number_n != excluded_B[:, None])
    score_Bn = jnp.where(is_allowed_Bn, score_Bn, -jnp.inf)
    score_Bk, position_Bk = jax.lax.top_k(score_Bn, min(k, n))
    gather = functools.partial(jax.lax.all_gather, axis_name=axes, axis=1, tiled=True)
    score_Bk, candidate_Bk = jax.lax.top_k(gather(score_Bk), k)
    number_Bk = jnp.take_along_axis(gather(first + position_Bk), candidate_Bk, axis=1)
    is_local_Bk = (number_Bk >= first) & (number_Bk < first + n)
    local_BkL = tokens_nL[jnp.clip(number_Bk - first, 0, n - 1)]
    tokens_BkL = jnp.where(is_local_Bk[..., None], local_BkL, 0)
    return number_Bk, score_Bk, jax.lax.psum(tokens_BkL, axes)

  replicated = PartitionSpec()
  by_rows = PartitionSpec(axes)
  search_mesh = jax.shard_map(
    search_shard,
    mesh=mesh,
    in_specs=(replicated, by_rows, by_rows, replicated),
    out_specs=(replicated, replicated, replicated),
    check_vma=False,
  )
  return search_mesh(query_BP, index_NP, tokens_NL, excluded_B)
