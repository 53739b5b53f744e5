"""T5 hides later tokens and padding, and is the same function in every way of computing it."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import more
import tiny
from t5x_like.decoding.generate import greedy
from t5x_like.errors import UserError
from t5x_like.nn import dims, params
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.objectives._losses import token_losses
from t5x_like.objectives.encoder_decoder import Objective

# T reaches the logarithmic buckets of the decoder
S = 11
T = 20
SIZES = {"1.0": tiny.sizes("1.0"), "1.1": tiny.sizes("1.1")}


@functools.cache
def model(version="1.1", **arguments):
  return tiny.model(SIZES[version], **arguments)


@jax.jit
def logits(model, batch):
  return model(batch)["logits"]


def features(*rows):
  """Return a batch of (encoder tokens, decoder tokens) pairs, padded to S and T."""
  batch = {
    "encoder_input_tokens": np.zeros((len(rows), S), np.int32),
    "decoder_input_tokens": np.zeros((len(rows), T), np.int32),
  }
  for i, (encoder, decoder) in enumerate(rows):
    batch["encoder_input_tokens"][i, : len(encoder)] = encoder
    batch["decoder_input_tokens"][i, : len(decoder)] = decoder
  return batch


def tokens(length, seed):
  return np.random.default_rng(seed).integers(2, tiny.VOCAB, length).astype(np.int32)


def random_batch(rows=3, **arguments):
  return {
    n: x for n, x in tiny.batch(rows, S, T, **arguments).items() if n.endswith("input_tokens")
  }


# What may see what


def test_a_changed_token_changes_all_later_logits_and_no_earlier_one():
  """Changing decoder token t changes the logits from t on, every one of them, and not a bit of
  those before."""
  batch = {n: np.repeat(x, T, axis=0) for n, x in random_batch(1, padded=False).items()}
  changed = {n: x.copy() for n, x in batch.items()}
  np.fill_diagonal(changed["decoder_input_tokens"], 1)
  # [changed position, position]
  moved = np.abs(logits(model(), changed) - logits(model(), batch)).max(-1)
  from_then_on = np.triu(np.ones((T, T), bool))
  assert (moved[from_then_on] > 1e-5).all()
  assert (moved[~from_then_on] == 0).all()


def test_causality_by_gradient():
  m = model()
  batch = random_batch(1, padded=False)
  memory, k_pos, _, k_valid, _ = m.encode(batch)

  @jax.jit
  def reach(x_TD):
    """d logits[t] / d decoder embedding[s], as [T, T] norms."""

    def run(x_TD):
      pos = positions(T)
      context = Context(
        mask=Mask(pos, pos, causal=True),
        memory=memory,
        memory_mask=Mask(pos, k_pos, k_valid=k_valid),
      )
      return m.head(m.decoder(x_TD[None], context)[0], m.embed)["logits"].dense()[0]

    return jnp.abs(jax.jacrev(lambda x: run(x).sum(-1))(x_TD)).max(-1)

  actual = np.asarray(reach(m.embed(batch["decoder_input_tokens"], jnp.float32)[0]))
  assert (np.tril(actual) == actual).all()
  assert (actual[np.tri(T, dtype=bool)] > 0).all()


def test_encoder_padding_is_invisible():
  short = tokens(6, 1)
  decoder = tokens(T, 2)
  padded = logits(model(), features((short, decoder)))
  bare = {"encoder_input_tokens": short[None], "decoder_input_tokens": decoder[None]}
  np.testing.assert_allclose(padded, logits(model(), bare), rtol=1e-5, atol=1e-5)


def test_rows_do_not_see_each_other():
  batch = random_batch(3)
  changed_batch = {n: np.concatenate([x[:1], x[:0:-1]]) for n, x in batch.items()}
  np.testing.assert_array_equal(logits(model(), batch)[0], logits(model(), changed_batch)[0])


@pytest.mark.parametrize("version", SIZES)
def test_packed_sequences_have_the_logits_of_separate_rows(version):
  pairs = [(tokens(5, 1), tokens(9, 2)), (tokens(3, 3), tokens(4, 4)), (tokens(2, 5), tokens(6, 6))]
  unpacked = np.asarray(logits(model(version), features(*pairs)))
  packed = {}
  for side, index, length in (("encoder", 0, S), ("decoder", 1, T)):
    parts = [pair[index] for pair in pairs]
    fill = length - sum(map(len, parts))
    packed[f"{side}_input_tokens"] = np.concatenate([*parts, np.zeros(fill, np.int32)])[None]
    ids = [np.full(len(p), i + 1, np.int32) for i, p in enumerate(parts)]
    packed[f"{side}_segment_ids"] = np.concatenate([*ids, np.zeros(fill, np.int32)])[None]
    positions = [np.arange(len(p), dtype=np.int32) for p in parts]
    packed[f"{side}_positions"] = np.concatenate([*positions, np.zeros(fill, np.int32)])[None]
  together = np.asarray(logits(model(version), packed))[0]
  start = 0
  for i, (_, decoder) in enumerate(pairs):
    np.testing.assert_allclose(
      together[start : start + len(decoder)], unpacked[i, : len(decoder)], rtol=1e-5, atol=1e-5
    )
    start += len(decoder)
  assert np.isfinite(together).all()


# One computation, many forms


@functools.cache
def loss_and_gradients(version, dropout, **form):
  """The value and gradients of the objective; the weights are the same whatever the form."""
  m = tiny.abstract(SIZES[version], dropout=dropout, **form)
  batch = tiny.batch(2, 9, 7)
  arrays = params.arrays(model(version))
  key = jax.random.key(1) if dropout else None

  def total(arrays):
    return Objective(z_loss=1e-3)(params.with_arrays(m, arrays), batch, key)[0]

  value, gradients = jax.jit(jax.value_and_grad(total))(arrays)
  return np.asarray(value), jax.tree.map(np.asarray, gradients)


@pytest.mark.parametrize(
  "version, dropout, form",
  more.beyond(
    1,
    [
      ("1.1", 0.1, dict(layers="loop", remat="full")),
      ("1.1", 0.1, dict(layers="loop")),
      ("1.1", 0.1, dict(remat="full")),
      ("1.1", 0.1, dict(remat="minimal")),
      (
        "1.1",
        0.1,
        dict(remat={"name": "offload", "names": ["query", "mlp_hidden"], "save": ["context"]}),
      ),
      ("1.1", 0.1, dict(remat="dots")),
      ("1.0", 0.0, dict(remat="full", layers="loop")),
    ],
  ),
)
def test_scan_loop_and_remat_are_the_same_function(version, dropout, form):
  # a form may hold a dict
  value, gradients = loss_and_gradients.__wrapped__(version, dropout, **form)
  expected, expected_gradients = loss_and_gradients(version, dropout)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  for name, g in expected_gradients.items():
    np.testing.assert_allclose(
      gradients[name], g, rtol=1e-4, atol=1e-5 * np.abs(g).max(), err_msg=name
    )


def test_remat_keeps_less():
  """`full` recomputes the products of the forward pass, `dots` does not: seen in the number of
  products."""

  def products(**form):
    m = tiny.abstract(SIZES["1.1"], **form)
    batch = tiny.batch(2, 9, 7)
    gradient = jax.grad(lambda m: Objective()(m, batch)[0], allow_int=True)
    return str(jax.make_jaxpr(gradient)(m)).count("dot_general[")

  full = products(remat="full")
  partial = products(remat={"name": "save", "names": ["mlp_hidden"]})
  minimal = products(remat="minimal")
  assert full > partial > minimal > products(remat="none")  # logits are products too
  assert full > products(remat="dots") >= products(remat="none")


def test_offloaded_activations_are_moved_to_the_hosts_memory_and_back():
  m = tiny.abstract(SIZES["1.1"], remat={"name": "offload", "names": ["key"]})
  batch = tiny.batch(2, 9, 7)
  gradient = jax.grad(lambda m: Objective()(m, batch)[0], allow_int=True)
  program = str(jax.make_jaxpr(gradient)(m))
  assert "<host>" in program or "pinned_host" in program


@pytest.mark.parametrize(
  "remat, message",
  [
    ("ful", "config.model.remat: found 'ful', expected one of .*full.*did you mean 'full'"),
    ({"name": "save", "names": ["querry"]}, "config.model.remat.names: found .*'querry'"),
    (
      {"name": "offload", "names": ["key"], "save": ["key"]},
      "found 'key' in both 'names' and 'save'",
    ),
  ],
)
def test_a_bad_remat_is_refused(remat, message):
  with pytest.raises(UserError, match=message):
    tiny.abstract(SIZES["1.1"], remat=remat)


def test_gradients_equal_finite_differences():
  m = model("1.1")
  batch = tiny.batch(2, 9, 7)
  arrays = params.arrays(m)
  generator = np.random.default_rng(0)
  direction = {n: generator.standard_normal(a.shape).astype(np.float32) for n, a in arrays.items()}

  @jax.jit
  def total(arrays):
    return Objective(z_loss=1e-3)(params.with_arrays(m, arrays), batch)[0]

  h = 1e-3
  ahead = float(total({n: a + h * direction[n] for n, a in arrays.items()}))
  behind = float(total({n: a + -h * direction[n] for n, a in arrays.items()}))
  slope = (ahead - behind) / (2 * h)
  _, gradients = loss_and_gradients("1.1", 0.0)
  np.testing.assert_allclose(
    sum((gradients[n] * direction[n]).sum() for n in direction), slope, rtol=2e-3
  )


@pytest.mark.parametrize("version", SIZES)
@pytest.mark.parametrize("chunks", [[1] * T, [3, 1, 8, T - 12]], ids=["one_by_one", "chunks"])
def test_decoding_through_the_cache_equals_the_forward_pass(version, chunks):
  m = model(version)
  batch = random_batch(2)
  start = jax.jit(m.start_decoding, static_argnums=1)
  decode = jax.jit(m.decode)
  state = start(batch, T)
  parts = []
  position = 0
  for length in chunks:
    part, state = decode(batch["decoder_input_tokens"][:, position : position + length], state)
    parts.append(part)
    position += length
  np.testing.assert_allclose(np.concatenate(parts, axis=1), logits(m, batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", ["scan", "loop"])
def test_greedy_decoding_is_the_argmax_of_the_full_model(layers):
  m = model("1.1", layers=layers)
  eos = m.variant.tokens.eos
  # Make the end of sequence likely enough that rows end at different steps.
  arrays = params.arrays(m)
  arrays["head/kernel"] = arrays["head/kernel"].at[:, eos].multiply(1.6)
  m = params.with_arrays(m, arrays)
  length = 12
  encoder = np.concatenate(
    [random_batch(5, seed=3)["encoder_input_tokens"], np.zeros((1, S), np.int32)]
  )
  batch = {"encoder_input_tokens": encoder}
  actual = np.asarray(jax.jit(functools.partial(greedy, max_length=length))(m, batch))
  fed, expected = np.zeros((2, 6, length), np.int32)
  ended = np.array([False] * 5 + [True])
  for t in range(length):
    best = np.asarray(logits(m, {**batch, "decoder_input_tokens": fed}))[:, t].argmax(-1)
    expected[:, t] = np.where(ended, 0, best)
    ended |= best == eos
    if t + 1 < length:
      fed[:, t + 1] = expected[:, t]
  np.testing.assert_array_equal(actual, expected)
  ends = (actual == eos).any(1)
  assert ends.any()
  assert not ends[:5].all()
  assert (actual[5] == 0).all()


# Precision


@pytest.mark.parametrize("version", SIZES)
def test_bfloat16_is_close_to_float32(version):
  """bfloat16 keeps 8 bits, relative steps of 2**-8: logits stay within 3% of their spread, the mean
  loss within 1%."""
  full = model(version)
  low = params.with_arrays(tiny.abstract(SIZES[version], dtype="bfloat16"), params.arrays(full))
  assert all(a.dtype == jnp.float32 for a in jax.tree.leaves(low))
  batch = tiny.batch(4, S, T)
  expected = np.asarray(logits(full, batch))
  low_precision = np.asarray(logits(low, batch))
  assert low_precision.dtype == np.float32
  assert np.sqrt(np.mean((low_precision - expected) ** 2)) < 0.03 * expected.std()
  features = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
  low_loss = float(token_losses(low_precision, *features, 0.0, 0.0)[0])
  full_loss = float(token_losses(expected, *features, 0.0, 0.0)[0])
  assert abs(low_loss - full_loss) < 0.01 * full_loss
  assert np.abs(low_precision - expected).max() > 0  # it did compute in another precision


def test_bfloat16_gradients_point_where_those_of_float32_do():
  value, low = loss_and_gradients("1.1", 0.0, dtype="bfloat16")
  expected, full = loss_and_gradients("1.1", 0.0)
  assert abs(value - expected) < 0.01 * expected
  for name, g in full.items():
    assert low[name].dtype == np.float32
    cosine = (low[name] * g).sum() / np.linalg.norm(low[name]) / np.linalg.norm(g)
    assert cosine > 0.99, (
      name,
      cosine,
    )
    assert abs(np.linalg.norm(low[name]) / np.linalg.norm(g) - 1) < 0.05, (
      name,
      cosine,
    )


# Dropout


def test_dropout_depends_on_its_key_alone():
  m = params.with_arrays(tiny.abstract(SIZES["1.1"], dropout=0.1), params.arrays(model("1.1")))
  batch = random_batch(2)
  run = jax.jit(lambda m, b, key: m(b, key)["logits"])
  plain = np.asarray(run(m, batch, None))
  np.testing.assert_array_equal(plain, run(m, batch, None))
  # no key: no dropout
  np.testing.assert_allclose(plain, logits(model("1.1"), batch), rtol=1e-6, atol=1e-6)
  first_key = np.asarray(run(m, batch, jax.random.key(0)))
  first_key_again = np.asarray(run(m, batch, jax.random.key(0)))
  second_key = np.asarray(run(m, batch, jax.random.key(1)))
  np.testing.assert_array_equal(first_key, first_key_again)
  assert np.abs(first_key - second_key).max() > 1e-2
  assert np.abs(first_key - plain).max() > 1e-2


def test_no_two_dropouts_share_a_key():
  """There are 2 stacks x (input, output, 2 layers x (attention, MLP and residuals))."""
  m = params.with_arrays(
    tiny.abstract(SIZES["1.1"], dropout=0.5, layers="loop"), params.arrays(model("1.1"))
  )
  batch = random_batch(1)
  original = dims.dropout_mask

  @jax.jit
  def keys():
    used = []
    with mock.patch.object(
      dims, "dropout_mask", lambda key, *a: (used.append(key), original(key, *a))[1]
    ):
      m(batch, jax.random.key(0))
    return [jax.random.key_data(key) for key in used]

  used = keys()
  encoder = 2 + 2 * (2 + 2)  # attention and its residual, MLP and its residual
  decoder = 2 + 2 * (2 + 2 + 2)
  assert len(used) == len({tuple(np.asarray(key).tolist()) for key in used}) == encoder + decoder
