"""Retrieval of passages by exact maximum inner product, over all devices of a mesh.

Passages and their embeddings, the index, lie on the devices, each of which holds and searches a
part: 4 (L + P) bytes a passage of L tokens in P dimensions, divided by the number of devices. The
nearest of each part are compared again, so the result is that of one device. `faiss_retrieval.py`
searches in the host's memory instead.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t5x_like import slots
from t5x_like.decoding.generate import generate, likeliest
from t5x_like.nn import params
from t5x_like.parallel.constrain import constrain
from t5x_like.parallel.rules import Rules

Batch = dict[str, jax.Array]


class Shelf:
  """The passages of a task on the devices.

  Args:
    model: an abstract `architectures.retriever_reader.RetrieverReader`.
    rules: mesh and sharding rules.
    passages: a `data.supervised.passages.Passages`.
    at_once: the passages that are embedded at once, rounded up to a multiple of the devices.
    parts: the most parts that an index is made in.

  Attributes:
    parts: the number of parts.
    empty: `() -> float32 [N, P]`, an index to be filled, of N passages, their number rounded up to
      a multiple of `at_once`.
    part: `(retriever of a model, parameters by name, index, number of a part) -> index`, with the
      embeddings of that part; takes the memory of the index given.
  """

  def __init__(self, model, rules: Rules, passages, at_once: int, parts: int = 1):
    mesh = rules.mesh
    n = -(-min(at_once, passages.num_passages) // mesh.size) * mesh.size
    C = -(-passages.num_passages // n)
    N = C * n
    m = -(-C // parts)
    self.parts = -(-C // m)
    own = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def part(index: tuple[slice, ...]) -> np.ndarray:
      number_m = np.arange(*index[0].indices(N))
      rows_mL = passages.rows(np.minimum(number_m, passages.num_passages - 1))
      return np.where(
        (number_m < passages.num_passages)[:, None], rows_mL, np.int32(passages.vocabulary.pad_id)
      )

    self._tokens_NL = jax.make_array_from_callback((N, passages.length), own, part)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=2, out_shardings=own)
    def part(
      retriever_of: Callable,
      arrays: dict,
      index_NP: jax.Array,
      number: jax.Array,
      tokens_NL: jax.Array,
    ):
      with rules.activate():
        retriever = retriever_of(params.with_arrays(model, arrays))
        first = jnp.minimum(m * number, C - m)  # the last part may repeat some of the one before
        # every device keeps its passages
        tokens_CnL = jnp.swapaxes(tokens_NL.reshape(n, C, -1), 0, 1)
        embed = lambda tokens_nL: retriever.embed_passages(constrain(tokens_nL, "batch", None))  # noqa: E731
        made_mnP = jax.lax.map(embed, jax.lax.dynamic_slice_in_dim(tokens_CnL, first, m))
        index_nCP = index_NP.reshape(n, C, -1)
        made_nCP = jax.lax.dynamic_update_slice_in_dim(
          index_nCP, jnp.swapaxes(made_mnP, 0, 1), first, axis=1
        )
        return made_nCP.reshape(N, -1)

    self.part = lambda retriever_of, arrays, index_NP, number: part(
      retriever_of, arrays, index_NP, jnp.int32(number), self._tokens_NL
    )
    self.empty = jax.jit(lambda: jnp.zeros((N, model.variant.width)), out_shardings=own)

    @functools.partial(jax.jit, out_shardings=rules.batch())
    def filled(arrays, index_NP: jax.Array, tokens_NL: jax.Array, batch: Batch) -> Batch:
      with rules.activate():
        found = params.with_arrays(model, arrays).retriever.embed_queries(
          batch["encoder_input_tokens"]
        )
        k = batch["passage_tokens"].shape[1] - 1
        given = (found, index_NP, tokens_NL, batch["own_passage"])
        number_Bk, _, passage_BkL = nearest(mesh, *given, k=k, number=passages.num_passages)
        null_B1L = batch["passage_tokens"][:, :1]
        return batch | {
          "passage_tokens": jnp.concatenate([null_B1L, passage_BkL], axis=1),
          "passages": number_Bk,
        }

    self.filled = lambda arrays, index_NP, batch: filled(arrays, index_NP, self._tokens_NL, batch)


def index(
  shelf, arrays: dict[str, jax.Array], retriever_of: Callable = operator.attrgetter("retriever")
) -> Any:
  """Return the index of a shelf by a retriever of the model with these parameters; by default, the
  one in training."""
  found = shelf.empty()
  for number in range(shelf.parts):
    found = shelf.part(retriever_of, arrays, found, number)
  return found


def answered(model, batch: Batch, new_tokens: int) -> tuple[jax.Array, jax.Array]:
  """Answer greedily from each passage of a batch, as many tokens at most ("fast decoding", Lewis et
  al. 2020, 2.5).

  Args:
    batch: what the model needs; see `RetrieverReader.outputs`.
  Returns:
    (answers int32 [B, Z, N], their log-probabilities with those of the passages, float32 [B, Z])
  """
  outputs = model.outputs(batch)
  score_BZ = jnp.einsum(
    "BP,BZP->BZ", outputs["query_embeddings"], outputs["passage_embeddings"], precision="highest"
  )
  tokens_RN, log_p_RN = generate(
    model.reader, model.reader_rows(batch), likeliest, max_length=new_tokens
  )
  shape = score_BZ.shape
  return tokens_RN.reshape(*shape, -1), jax.nn.log_softmax(score_BZ) + log_p_RN.sum(axis=1).reshape(
    shape
  )


def voted(vocabulary, tokens_ZN: np.ndarray, log_p_Z: np.ndarray) -> tuple[str, float]:
  """Return the likeliest answer and its probability, the sum of those of the passages that it was
  written from."""
  votes: dict[str, float] = {}
  for tokens_N, p in zip(tokens_ZN, np.exp(log_p_Z)):
    # up to its end
    row = tokens_N[: next(iter(np.flatnonzero(tokens_N == vocabulary.eos_id)), None)]
    text = vocabulary.decode(
      [int(i) for i in row if i < vocabulary.size and i != vocabulary.pad_id]
    ).strip()
    votes[text] = votes.get(text, 0.0) + float(p)
  best = max(votes, key=votes.get)
  return best, votes[best]


def shelf(search: str, *arguments) -> Any:
  """Return the shelf of a place to search in, `device` or `faiss`; `arguments` are those of
  `Shelf`."""
  return (
    Shelf(*arguments)
    if search == "device"
    else slots.module("faiss_retrieval", "t5x_like").Shelf(*arguments)
  )


def nearest(
  mesh,
  query_BP: jax.Array,
  index_NP: jax.Array,
  tokens_NL: jax.Array,
  barred_B: jax.Array,
  *,
  k: int,
  number: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Find the k passages with the greatest inner product with each query; of equals, the first.

  Args:
    index_NP, tokens_NL: the embeddings and tokens of passages, split over all axes of the mesh.
    barred_B: int32, the number of a passage that is not to be found; -1 for none.
    number: the first of the N passages are real.
  Returns:
    (their numbers int32 [B, k], products float32 [B, k], and tokens int32 [B, k, L]), from the
    greatest product.
  """
  axes = mesh.axis_names

  def own(query_BP, index_nP, tokens_nL, barred_B):
    n = len(index_nP)
    first = jax.lax.axis_index(axes) * n
    score_Bn = jnp.einsum("BP,nP->Bn", query_BP, index_nP, precision="highest")
    number_n = first + jnp.arange(n)
    score_Bn = jnp.where((number_n < number) & (number_n != barred_B[:, None]), score_Bn, -jnp.inf)
    score_Bk, at_Bk = jax.lax.top_k(score_Bn, min(k, n))
    gather = functools.partial(jax.lax.all_gather, axis_name=axes, axis=1, tiled=True)
    score_Bk, place_Bk = jax.lax.top_k(gather(score_Bk), k)
    number_Bk = jnp.take_along_axis(gather(first + at_Bk), place_Bk, axis=1)
    here_Bk = (number_Bk >= first) & (number_Bk < first + n)
    held_BkL = jnp.where(here_Bk[..., None], tokens_nL[jnp.clip(number_Bk - first, 0, n - 1)], 0)
    return number_Bk, score_Bk, jax.lax.psum(held_BkL, axes)

  whole = PartitionSpec()
  split = PartitionSpec(axes)
  specs = dict(in_specs=(whole, split, split, whole), out_specs=(whole, whole, whole))
  return jax.shard_map(own, mesh=mesh, check_vma=False, **specs)(
    query_BP, index_NP, tokens_NL, barred_B
  )
