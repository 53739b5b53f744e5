"""A retriever of passages and a reader that answers from them, as one model (REALM)."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.architecture import Batch, Dtype, Layers
from t5x_like.architectures.build import resolve_variant
from t5x_like.architectures.design import Design, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.nn.dims import subkey
from t5x_like.nn.linear import Linear
from t5x_like.nn.vocabulary_logits import materialise_logits
from t5x_like.parallel.constrain import constrain
from t5x_like.runtime import process
from t5x_like.slots import PositiveInt, Rate

if TYPE_CHECKING:
  from ml_collections import ConfigDict

  from t5x_like.contrib.retrieval.predictor import PassagePredictor


@dataclasses.dataclass(frozen=True)
class RetrievalVariant:
  """One size of a retriever and a reader.

  Attributes:
    retriever: variant of the encoder of queries and passages; its vocabulary is replaced by the
      reader's.
    reader: variant of the encoder-decoder that reads a query with a passage.
    width: P, the width of the embeddings of queries and passages.
  """

  retriever: Variant
  reader: Variant
  width: int

  @property
  def design(self) -> Design:
    return self.reader.design

  @property
  def tokens(self):
    return self.reader.tokens

  @property
  def vocab_size(self) -> int:
    return self.reader.vocab_size


class Retriever(nnx.Module):
  """An encoder of queries and passages, with one output projection for each kind.

  A row is the start token, which stands for [CLS], and the tokens of a text. The projections take
  the state of the start token.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant, width: int, **options):
    self.encoder = Encoder(rngs, variant=variant, head="none", **options)
    D = variant.dims.embed
    init = variant.design.kernel_init(variant.dims.embed)
    self.query = Linear((D, width), ("embed", None), init, rngs)
    self.passage = Linear((D, width), ("embed", None), init, rngs)

  def embed_queries(self, tokens_RL: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Embed queries: float32 [R, P]."""
    return self.query(self._first_state(tokens_RL, key)).astype(jnp.float32)

  def embed_passages(self, tokens_RL: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Embed passages: float32 [R, P]."""
    return self.passage(self._first_state(tokens_RL, key)).astype(jnp.float32)

  def _first_state(self, tokens_RL: jax.Array, key: jax.Array | None) -> jax.Array:
    special = self.encoder.variant.tokens
    tokens_RS = jnp.pad(tokens_RL, ((0, 0), (1, 0)), constant_values=special.start)
    # The start token is always valid, even where its id is that of padding, as in T5.
    valid_RS = jnp.pad(tokens_RL != special.pad, ((0, 0), (1, 0)), constant_values=True)
    rows = {"encoder_input_tokens": tokens_RS, "encoder_segment_ids": valid_RS.astype(jnp.int32)}
    x_RSD, _, _ = self.encoder.encode(rows, key)
    return x_RSD[:, 0]


class FrozenRetriever(nnx.Module):
  """A copy of the retriever, as it was when the index was last made."""

  def __init__(self, retriever: Retriever):
    self.retriever = jax.tree.map(lambda x: x, retriever)


class RetrieverReader(nnx.Module):
  """A retriever, a reader, and the copy of the retriever from which the index is made.

  The copy is in `reference`; it is not trained, but replaced at each refresh of the index.

  Args:
    variant: a name in `VARIANTS`, or a `RetrievalVariant`. All arguments but `rngs` are keys of
      `config.model`.
    vocab_size, tokens: the vocabulary size and the special tokens of both parts.
    design: changes to the designs of both parts; changes to one part are under its key,
      `retriever` or `reader`.
    dropout, dtype, remat, layers: options of both parts; see
      `architectures.architecture.Architecture`.

  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, RetrievalVariant]] = {}
  VARIANT = RetrievalVariant
  REQUIRED_FEATURES = ("encoder_input_tokens", "passage_tokens")

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | RetrievalVariant,
    vocab_size: PositiveInt | None = None,
    dropout: Rate = 0.0,
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
    design: dict = {},
    tokens: dict = {},
  ):
    variant = resolve_variant(self.VARIANTS, variant)
    design = dict(slots.to_plain(design))
    retriever_design = design.pop("retriever", {})
    reader_design = design.pop("reader", {})
    # No names to look up: both variants are objects.
    reader = resolve_variant(
      {}, variant.reader, design | reader_design, tokens, vocab_size=vocab_size
    )
    retriever = resolve_variant({}, variant.retriever, design | retriever_design)
    retriever = dataclasses.replace(
      retriever, tokens=reader.tokens, vocab_size=reader.vocab_size, types=0
    )
    self.variant = dataclasses.replace(variant, reader=reader, retriever=retriever)
    options = dict(dropout=dropout, dtype=dtype, remat=remat, layers=layers)
    self.retriever = Retriever(rngs, retriever, variant.width, **options)
    self.reader = EncoderDecoder(rngs, variant=reader, **options)
    self.reference = FrozenRetriever(self.retriever)

  def open_predictor(self, config: "ConfigDict", flags: dict[str, Any]) -> "PassagePredictor":
    """Open the run's task, and return a predictor that answers from the passages of the task.

    Args:
      config: the resolved config of the run.
      flags: the arguments of `PassagePredictor`.
    Raises:
      UserError: as in `PassagePredictor` and `data.task.build_at`.
    """
    from t5x_like.contrib.retrieval.predictor import PassagePredictor  # opens data

    arguments = config.task.to_dict()
    task = process.build_task("task", arguments.pop("name"), config.eval_split, arguments)
    return PassagePredictor(self, task, config.objective.get("search", "device"), **flags)

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Return `outputs` with float32 logits."""
    return materialise_logits(self.outputs(batch, key))

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Embed queries and passages, and read each query with each of its passages.

    Args:
      batch: `encoder_input_tokens` int32 [B, Q], the queries; `passage_tokens` int32 [B, Z, L], Z
        passages for each query, where a row of padding is the null document; both end with EOS.
        The passages are read only if there are `decoder_input_tokens` int32 [B, T].
      key: dropout key, or None for evaluation.
    Returns:
      {"query_embeddings" float32 [B, P], "passage_embeddings" float32 [B, Z, P]}; if passages are
      read, also "logits", `VocabularyLogits` [B * Z, T, V], and the scalars of the reader.
    """
    passage_BZL = batch["passage_tokens"]
    B, Z, L = passage_BZL.shape
    query_BP = self.retriever.embed_queries(batch["encoder_input_tokens"], subkey(key, 0))
    passage_RP = self.retriever.embed_passages(passage_BZL.reshape(B * Z, L), subkey(key, 1))
    embeddings = {"query_embeddings": query_BP, "passage_embeddings": passage_RP.reshape(B, Z, -1)}
    if "decoder_input_tokens" not in batch:
      return embeddings
    return self.reader.outputs(self.reader_rows(batch), subkey(key, 2)) | embeddings

  def reader_rows(self, batch: Batch) -> Batch:
    """Return the reader's B * Z rows: each query followed by a passage, and decoder inputs."""
    query_BQ = batch["encoder_input_tokens"]
    passage_BZL = batch["passage_tokens"]
    pad = self.variant.tokens.pad
    B, Z, L = passage_BZL.shape
    Q = query_BQ.shape[1]
    end_B11 = jnp.sum(query_BQ != pad, axis=1)[:, None, None]
    # positions counted from the end of the query
    offset_B1S = jnp.broadcast_to(jnp.arange(Q + L) - end_B11, (B, 1, Q + L))
    passage_BZS = jnp.take_along_axis(passage_BZL, jnp.clip(offset_B1S, 0, L - 1), axis=2)
    passage_BZS = jnp.where(offset_B1S < L, passage_BZS, pad)
    query_B1S = jnp.pad(query_BQ, ((0, 0), (0, L)), constant_values=pad)[:, None]
    tokens_BZS = jnp.where(offset_B1S < 0, query_B1S, passage_BZS)
    rows = {"encoder_input_tokens": tokens_BZS.reshape(B * Z, Q + L)}
    if "decoder_input_tokens" in batch:
      rows["decoder_input_tokens"] = jnp.repeat(batch["decoder_input_tokens"], Z, axis=0)
    return {name: constrain(x, "batch", None) for name, x in rows.items()}
