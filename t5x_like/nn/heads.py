"""Heads: from the last hidden states to the answers of a task.

A head is called as `head(x_BTD, embed, valid_BT, key) -> dict`, where `embed` is the token table (tied heads read it)
and `valid_BT` tells tokens from padding; what it returns has `logits`, float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError, did_you_mean
from t5x_like.nn import params
from t5x_like.nn.design import ACTIVATIONS
from t5x_like.nn.dims import dropout, subkey
from t5x_like.nn.embed import Embed, vocabulary_logits
from t5x_like.nn.linear import Linear


class LmHead(nnx.Module):
  """Logits over the vocabulary: against the embedding table, or with a kernel of its own (untied).

  Args:
    embed, vocab: widths of an untied kernel; None ties.
    scale: of the hidden states (T5 1.0 ties, and divides them by sqrt(D)).
    softcap: logits become `softcap * tanh(logits / softcap)`.
    bias: size of a bias of its own; None for none.
  """

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    shape: tuple[int, int] | None = None,
    init: Callable | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    bias: int | None = None,
  ):
    self.kernel = None if shape is None else params.param(rngs, init, shape, ("embed", "vocab"))
    self.bias = None if bias is None else params.param(rngs, params.zeros, (bias,), ("vocab",))
    self.scale = scale
    self.softcap = softcap

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    if self.scale != 1.0:
      x_BTD = x_BTD * self.scale
    logits_BTV = embed.attend(x_BTD) if self.kernel is None else vocabulary_logits(x_BTD, self.kernel[...])
    if self.bias is not None:
      logits_BTV = logits_BTV + self.bias[...]
    if self.softcap is not None:
      logits_BTV = self.softcap * jnp.tanh(logits_BTV / self.softcap)
    return {"logits": logits_BTV}


class MlmHead(nnx.Module):
  """BERT's: `norm(activation(dense(x)))` against the embedding table, plus a bias (Devlin et al. 2019, its code)."""

  def __init__(
    self,
    dim: int,
    width: int,
    vocab: int,
    rngs: nnx.Rngs,
    *,
    activation: Callable,
    norm: nnx.Module,
    init: Callable,
    bias: bool = True,
    dense_bias: bool = True,
  ):
    self.dense = Linear((dim, width), ("embed", None), init, rngs, bias=dense_bias)
    self.norm = norm
    self.lm = LmHead(rngs, bias=vocab if bias else None)
    self.activation = activation

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, places_BK=None) -> dict[str, jax.Array]:
    """Returns {"logits" [B, T, V]}, or [B, K, V] at the places given: most of a large vocabulary's cost is here."""
    x_BTD = x_BTD if places_BK is None else at_places(x_BTD, places_BK)
    return self.lm(self.norm(self.activation(self.dense(x_BTD))), embed)


class Pooler(nnx.Module):
  """`activation(dense(x))` of one token of each sequence: the first, or the last that is not padding."""

  def __init__(self, dim: int, rngs: nnx.Rngs, *, activation: Callable | None, init: Callable, token: str = "first"):
    self.dense = None if activation is None else Linear((dim, dim), ("embed", None), init, rngs, bias=True)
    self.activation = activation
    self.token = token

  def __call__(self, x_BTD: jax.Array, valid_BT: jax.Array | None) -> jax.Array:
    x_BD = x_BTD[:, 0] if self.token == "first" else last_token(x_BTD, valid_BT)
    return x_BD if self.activation is None else self.activation(self.dense(x_BD))


def at_places(x_BTD: jax.Array, places_BK: jax.Array) -> jax.Array:
  """[B, K, D]: of each row the states at some of its positions, int32."""
  return jnp.take_along_axis(x_BTD, places_BK[..., None], axis=1)


def last_token(x_BTD: jax.Array, valid_BT: jax.Array | None) -> jax.Array:
  """[B, D]: of each row the last position that is not padding."""
  if valid_BT is None:
    return x_BTD[:, -1]
  last_B = x_BTD.shape[1] - 1 - jnp.argmax(valid_BT[:, ::-1], axis=1)
  return jnp.take_along_axis(x_BTD, last_B[:, None, None], axis=1)[:, 0]


class PretrainingHead(nnx.Module):
  """BERT's two: the masked tokens, and whether the second segment follows the first (0: it does, 1: it is random)."""

  def __init__(self, mlm: MlmHead, pooler: Pooler, dim: int, rngs: nnx.Rngs, *, init: Callable):
    self.mlm = mlm
    self.pooler = pooler
    self.next_sentence = Linear((dim, 2), ("embed", None), init, rngs, bias=True)

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, places_BK=None) -> dict[str, jax.Array]:
    """Returns {"logits" [B, T, V] as `MlmHead`, "next_sentence_logits" [B, 2]}."""
    next_sentence_B2 = self.next_sentence(self.pooler(x_BTD, valid_BT)).astype(jnp.float32)
    return self.mlm(x_BTD, embed, places_BK=places_BK) | {"next_sentence_logits": next_sentence_B2}


class SpanBoundaryHead(nnx.Module):
  """SpanBERT's: the masked tokens, and each again from the tokens beside its span and its place in the span.

  h = norm(activation(dense([x_before; x_after; p]))), twice, and the logits of h against the token table (Joshi et al.
  2020, section 3.2); the table of places p has `places` rows, the last one for all places further on.
  """

  def __init__(
    self,
    mlm: MlmHead,
    dim: int,
    vocab: int,
    rngs: nnx.Rngs,
    *,
    activation: Callable,
    norm: Callable,
    init: Callable,
    places: int = 32,
    place_dim: int = 200,
  ):
    self.mlm = mlm
    self.places = params.param(rngs, init, (places, place_dim), (None, "embed"))
    self.dense = Linear((2 * dim + place_dim, dim), ("embed", None), init, rngs, bias=True)
    self.norm = norm()
    self.dense_2 = Linear((dim, dim), ("embed", None), init, rngs, bias=True)
    self.norm_2 = norm()
    self.lm = LmHead(rngs, bias=vocab)
    self.activation = activation

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, places_BK=None) -> dict[str, jax.Array]:
    return self.mlm(x_BTD, embed, places_BK=places_BK)

  def boundary(self, x_BTD: jax.Array, places_BK: jax.Array, starts_BK: jax.Array, ends_BK: jax.Array, embed: Embed):
    """Logits float32 [B, K, V] of the tokens at `places` from those at `starts` and `ends`, int32 [B, K], beside the
    span that each of them is in."""
    distance_BK = places_BK - starts_BK - 1
    p_BKP = jnp.take(self.places[...], distance_BK, axis=0, mode="clip").astype(x_BTD.dtype)
    h_BKD = jnp.concatenate([at_places(x_BTD, starts_BK), at_places(x_BTD, ends_BK), p_BKP], axis=-1)
    h_BKD = self.norm(self.activation(self.dense(h_BKD)))
    h_BKD = self.norm_2(self.activation(self.dense_2(h_BKD)))
    return self.lm(h_BKD, embed)["logits"]


class SequenceClassifier(nnx.Module):
  """Logits [B, labels] from a pooled token; one label is a regression."""

  def __init__(
    self,
    pooler: Pooler,
    dim: int,
    labels: int,
    rngs: nnx.Rngs,
    *,
    init: Callable,
    bias: bool = True,
    dropout_rate: float = 0.0,
  ):
    self.pooler = pooler
    self.out = Linear((dim, labels), ("embed", None), init, rngs, bias=bias)
    self.dropout_rate = dropout_rate

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    x_BD = dropout(self.pooler(x_BTD, valid_BT), self.dropout_rate, subkey(key, 0), broadcast_axes=())
    return {"logits": self.out(x_BD).astype(jnp.float32)}


class MultipleChoice(SequenceClassifier):
  """One score for each choice. A batch holds the choices of an example in consecutive rows: [B * choices, T]."""

  def __init__(self, pooler: Pooler, dim: int, choices: int, rngs: nnx.Rngs, **options):
    super().__init__(pooler, dim, 1, rngs, **options)
    self.choices = choices

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    """Returns {"logits" [B, choices]}."""
    return {"logits": super().__call__(x_BTD, embed, valid_BT, key)["logits"].reshape(-1, self.choices)}


class TokenClassifier(nnx.Module):
  """Logits [B, T, labels]."""

  def __init__(self, dim: int, labels: int, rngs: nnx.Rngs, *, init: Callable, dropout_rate: float = 0.0):
    self.out = Linear((dim, labels), ("embed", None), init, rngs, bias=True)
    self.dropout_rate = dropout_rate

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    return {"logits": self.out(dropout(x_BTD, self.dropout_rate, subkey(key, 0))).astype(jnp.float32)}


class SpanHead(TokenClassifier):
  """Where an answer starts and ends: {"logits" [B, T, 2], "start_logits" [B, T], "end_logits" [B, T]} (SQuAD)."""

  def __init__(self, dim: int, rngs: nnx.Rngs, *, init: Callable):
    super().__init__(dim, 2, rngs, init=init)

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    logits_BT2 = super().__call__(x_BTD, embed, valid_BT, key)["logits"]
    return {"logits": logits_BT2, "start_logits": logits_BT2[..., 0], "end_logits": logits_BT2[..., 1]}


class DiscriminatorHead(nnx.Module):
  """ELECTRA's: a logit [B, T] for each token, positive where it was replaced (Clark et al. 2020, section 2)."""

  def __init__(self, dim: int, rngs: nnx.Rngs, *, activation: Callable, init: Callable):
    self.dense = Linear((dim, dim), ("embed", None), init, rngs, bias=True)
    self.out = Linear((dim, 1), ("embed", None), init, rngs, bias=True)
    self.activation = activation

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    return {"logits": self.out(self.activation(self.dense(x_BTD)))[..., 0].astype(jnp.float32)}


class NoHead(nnx.Module):
  """The hidden states themselves: {"logits": float32 [B, T, D]}."""

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    return {"logits": x_BTD.astype(jnp.float32)}


class PooledHead(nnx.Module):
  """The hidden states and a pooled token: {"logits": float32 [B, T, D], "pooled": float32 [B, D]}."""

  def __init__(self, pooler: Pooler):
    self.pooler = pooler

  def __call__(self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None) -> dict[str, jax.Array]:
    return {"logits": x_BTD.astype(jnp.float32), "pooled": self.pooler(x_BTD, valid_BT).astype(jnp.float32)}


def make_head(spec: str | dict, variant, rngs: nnx.Rngs, *, dropout_rate: float = 0.0) -> nnx.Module:
  """A head of an encoder by name: mlm, pretraining (MLM and next sentence), span_boundary (MLM and SpanBERT's),
  next_sentence, classification, tokens, spans, multiple_choice, discriminator, pooled, none.

  Args:
    spec: the name, or {"name": …} with `labels` (classification, tokens), `choices`, and `activation`, that of the
      pooled token's layer ("tanh" in BERT and RoBERTa, "gelu" in ELECTRA).
  Raises:
    UserError: no such head, or arguments it does not take.
  """
  options = {"name": spec} if isinstance(spec, str) else dict(spec)
  name = options.pop("name", None)
  design, D = variant.design, variant.dims.embed
  init = design.kernel_init(D)
  pooled = options.pop("activation", "tanh")

  def pooler():
    return Pooler(D, rngs, activation=ACTIVATIONS[pooled][0], init=init)

  def mlm():
    width = variant.embed or D
    return MlmHead(
      D,
      width,
      variant.vocab_size,
      rngs,
      activation=ACTIVATIONS[design.activation][0],
      norm=design.make_norm(width, rngs),
      init=init,
      dense_bias="mlp" in design.biases,
    )

  makers = {
    "mlm": mlm,
    "span_boundary": lambda: SpanBoundaryHead(
      mlm(),
      D,
      variant.vocab_size,
      rngs,
      activation=ACTIVATIONS[design.activation][0],
      norm=lambda: design.make_norm(D, rngs),
      init=init,
    ),
    "pretraining": lambda: PretrainingHead(mlm(), pooler(), D, rngs, init=init),
    "next_sentence": lambda: SequenceClassifier(pooler(), D, 2, rngs, init=init, dropout_rate=dropout_rate),
    "classification": lambda labels=2: SequenceClassifier(
      pooler(), D, labels, rngs, init=init, dropout_rate=dropout_rate
    ),
    "multiple_choice": lambda choices=4: MultipleChoice(
      pooler(), D, choices, rngs, init=init, dropout_rate=dropout_rate
    ),
    "tokens": lambda labels=2: TokenClassifier(D, labels, rngs, init=init, dropout_rate=dropout_rate),
    "spans": lambda: SpanHead(D, rngs, init=init),
    "discriminator": lambda: DiscriminatorHead(D, rngs, activation=ACTIVATIONS[design.activation][0], init=init),
    "pooled": lambda: PooledHead(pooler()),
    "none": lambda: NoHead(),
  }
  if name not in makers:
    raise UserError(f"head: found {name!r}, expected one of {', '.join(makers)}{did_you_mean(str(name), makers)}")
  if pooled not in ACTIVATIONS:
    raise UserError(f"head.activation: found {pooled!r}, expected one of {', '.join(ACTIVATIONS)}")
  try:
    return makers[name](**options)
  except TypeError as error:
    raise UserError(f"head {name!r}: found {', '.join(options)}, some of which it does not take") from error
