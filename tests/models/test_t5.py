"""T5 computes the same in every form, and its dropout depends only on the key."""

import functools

import jax
import numpy as np
import pytest

import more
import tiny
from arrays import assert_gradients_close
from t5x_like.errors import UserError
from t5x_like.nn import dims, params
from t5x_like.objectives.encoder_decoder import Objective

S = 11
T = 20
SIZES = {"1.0": tiny.sizes("1.0"), "1.1": tiny.sizes("1.1")}


@functools.cache
def model(version="1.1", **arguments):
  return tiny.model(SIZES[version], **arguments)


# Forms of one computation


@functools.cache
def loss_and_gradients(version, dropout, **form):
  """Return the value and gradients of the objective; all forms have the same weights."""
  m = tiny.abstract(SIZES[version], dropout=dropout, **form)
  batch = tiny.batch(2, 9, 7)
  arrays = params.arrays(model(version))
  key = jax.random.key(1) if dropout else None

  def total(arrays):
    return Objective(z_loss=1e-3)(params.with_arrays(m, arrays), batch, key)[0]

  value, gradients = jax.jit(jax.value_and_grad(total))(arrays)
  return np.asarray(value), jax.tree.map(np.asarray, gradients)


OFFLOAD = {"name": "offload", "names": ["query", "mlp_hidden"], "save": ["context"]}


@pytest.mark.parametrize(
  "version, dropout, form",
  more.beyond(
    1,
    [
      ("1.1", 0.1, dict(layers="loop", remat="full")),
      ("1.1", 0.1, dict(remat="minimal")),
      ("1.1", 0.1, dict(remat=OFFLOAD)),
      ("1.0", 0.0, dict(remat="full", layers="loop")),
    ],
  ),
)
def test_scan_loop_and_remat_have_equal_gradients(version, dropout, form):
  # A form may contain a dict, which cannot be a key of the cache.
  value, gradients = loss_and_gradients.__wrapped__(version, dropout, **form)
  expected, expected_gradients = loss_and_gradients(version, dropout)
  np.testing.assert_allclose(value, expected, rtol=1e-6)
  assert_gradients_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)


def trace_gradient(remat) -> str:
  """Return the program of the gradient of a T5 with this rematerialisation."""
  m = tiny.abstract(SIZES["1.1"], remat=remat)
  batch = tiny.batch(2, 9, 7)
  gradient = jax.grad(lambda m: Objective()(m, batch)[0], allow_int=True)
  return str(jax.make_jaxpr(gradient)(m))


def count_products(remat) -> int:
  return trace_gradient(remat).count("dot_general[")


def test_remat_recomputes_the_products_that_it_does_not_save():
  full = count_products("full")
  partial = count_products({"name": "save", "names": ["mlp_hidden"]})
  minimal = count_products("minimal")
  none = count_products("none")
  assert full > partial > minimal > none  # logits are products too
  assert full > count_products("dots") >= none


def test_offloaded_activations_are_moved_to_host_memory():
  program = trace_gradient({"name": "offload", "names": ["key"]})
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
def test_bad_remat_is_refused(remat, message):
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


def test_decoding_in_chunks_equals_the_forward_pass():
  m = model()
  batch = tiny.batch(2, S, T)
  tokens_BT = batch["decoder_input_tokens"]
  state = jax.jit(m.start_decoding, static_argnums=1)(batch, T)
  decode = jax.jit(m.decode)
  chunks = []
  for chunk_BT in np.split(tokens_BT, [3, 4, 12], axis=1):
    chunk_BTV, state = decode(chunk_BT, state)
    chunks.append(chunk_BTV)
  logits_BTV = jax.jit(lambda m, batch: m(batch)["logits"])(m, batch)
  np.testing.assert_allclose(np.concatenate(chunks, axis=1), logits_BTV, rtol=1e-5, atol=1e-5)


# Precision


def test_bfloat16_gradients_are_close_to_float32():
  value, low = loss_and_gradients("1.1", 0.0, dtype="bfloat16")
  expected, full = loss_and_gradients("1.1", 0.0)
  assert abs(value - expected) < 0.01 * expected
  for name, g in full.items():
    assert low[name].dtype == np.float32
    norm = np.linalg.norm(g)
    low_norm = np.linalg.norm(low[name])
    cosine = (low[name] * g).sum() / (low_norm * norm)
    assert cosine > 0.99, name
    assert abs(low_norm / norm - 1) < 0.05, name


# Dropout


def test_dropout_depends_only_on_its_key():
  m = params.with_arrays(tiny.abstract(SIZES["1.1"], dropout=0.1), params.arrays(model("1.1")))
  batch = tiny.batch(2, S, T)

  @jax.jit
  def run(m, batch, key):
    return m(batch, key)["logits"]

  plain = np.asarray(run(m, batch, None))
  first = np.asarray(run(m, batch, jax.random.key(0)))
  second = np.asarray(run(m, batch, jax.random.key(1)))
  without_dropout = run(model("1.1"), batch, None)
  np.testing.assert_allclose(plain, without_dropout, rtol=1e-6, atol=1e-6)
  np.testing.assert_array_equal(first, run(m, batch, jax.random.key(0)))
  assert np.abs(first - second).max() > 1e-2
  assert np.abs(first - plain).max() > 1e-2


def test_all_dropouts_have_different_keys(monkeypatch):
  form = dict(dropout=0.5, layers="loop")
  m = params.with_arrays(tiny.abstract(SIZES["1.1"], **form), params.arrays(model("1.1")))
  batch = tiny.batch(1, S, T)
  draw_mask = dims.dropout_mask
  keys = []

  def record_key_and_draw_mask(key, *arguments):
    keys.append(jax.random.key_data(key))
    return draw_mask(key, *arguments)

  @jax.jit
  def run():
    m(batch, jax.random.key(0))
    return keys

  monkeypatch.setattr(dims, "dropout_mask", record_key_and_draw_mask)
  drawn_keys = [tuple(np.asarray(key).tolist()) for key in run()]
  # Inputs and outputs; in each of two layers, attention, its residual, MLP and its residual.
  encoder = 2 + 2 * (2 + 2)
  decoder = 2 + 2 * (2 + 2 + 2)
  assert len(drawn_keys) == encoder + decoder
  assert len(set(drawn_keys)) == len(drawn_keys)
