"""Chunked cross-entropy equals the dense one on any mesh and never holds all logits at once."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from chances import assert_fits
from t5x_like.models import bert, gpt
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.objectives import _cross_entropy, decoder, mlm
from t5x_like.objectives._losses import token_losses
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

B = 4
T = 12
D = 16
RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, 900, (B, T)).astype(np.int32)
WEIGHTS = RNG.choice([0.0, 0.5, 1.0], (B, T)).astype(np.float32)


@pytest.fixture
def use_small_chunks(monkeypatch):
  monkeypatch.setattr(_cross_entropy, "MAX_CHUNK_LOGITS", 4096)
  monkeypatch.setattr(_cross_entropy, "MIN_CHUNK_COLUMNS", 128)
  monkeypatch.setattr(_cross_entropy, "MAX_CHUNK_COLUMNS", 256)


def random_logits(vocab=1000, tied=False, bias=False, softcap=None):

  def draw(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)

  kernel = draw(vocab, D) if tied else draw(D, vocab)
  return VocabularyLogits(draw(B, T, D), kernel, draw(vocab) if bias else None, tied, softcap)


def loss_and_gradients(logits, smoothing=0.1):

  def loss(logits):
    return token_losses(logits, TARGETS, WEIGHTS, smoothing, 0.01)

  (value, sums), gradients = jax.value_and_grad(loss, has_aux=True)(logits)
  return value, sums, gradients


def dense_loss_and_gradients(logits, smoothing=0.1):

  def loss(logits):
    return token_losses(logits.dense(), TARGETS, WEIGHTS, smoothing, 0.01)

  (value, sums), gradients = jax.value_and_grad(loss, has_aux=True)(logits)
  return value, sums, gradients


def assert_equal(actual, expected, tolerance=1e-6):
  value, sums, gradients = actual
  np.testing.assert_allclose(value, expected[0], rtol=tolerance)
  for name in expected[1]:
    np.testing.assert_allclose(sums[name], expected[1][name], rtol=tolerance, err_msg=name)
  for gradient, expected_gradient in zip(
    jax.tree.leaves(gradients), jax.tree.leaves(expected[2]), strict=True
  ):
    np.testing.assert_allclose(
      gradient, expected_gradient, rtol=1e-5, atol=2 * tolerance * np.abs(expected_gradient).max()
    )


@pytest.mark.parametrize(
  "case, smoothing",
  [
    (dict(), 0.1),
    (dict(tied=True, bias=True), 0.0),
    (dict(tied=True, softcap=5.0, vocab=901), 0.1),  # 128 does not divide 901: a smaller last chunk
    (dict(bias=True, softcap=5.0, vocab=1024), 0.0),
  ],
  ids=str,
)
def test_chunking_changes_neither_loss_nor_gradients(case, smoothing, use_small_chunks):
  logits = random_logits(**case)
  assert _cross_entropy.Chunking.for_logits(logits).columns == 128
  assert _cross_entropy.Chunking.for_logits(logits).token_chunks == 2
  chunked = jax.jit(loss_and_gradients, static_argnums=1)(logits, smoothing)
  assert_equal(chunked, jax.jit(dense_loss_and_gradients, static_argnums=1)(logits, smoothing))


def test_logits_that_fit_in_one_chunk_are_computed_once():
  """A wide vocabulary is one chunk if there are few tokens, unless its kernel is sharded: then the
  kernel is gathered chunk by chunk."""
  logits = random_logits(vocab=10_000)
  assert not _cross_entropy.Chunking.for_logits(logits).is_chunked
  traced = str(jax.make_jaxpr(loss_and_gradients)(logits))
  assert traced.count("dot_general[") == 3  # the logits and two gradients
  with Rules.make(make_mesh(dict(fsdp=8))).activate():
    assert _cross_entropy.Chunking.for_logits(logits).is_chunked


@pytest.mark.parametrize(
  "mesh", [dict(data=2, fsdp=2, tensor=2), dict(sequence=2, tensor=4)], ids=str
)
@pytest.mark.parametrize("tied", [True, False])
def test_meshes_change_neither_loss_nor_gradients(mesh, tied, use_small_chunks, capfd):
  rules = Rules.make(make_mesh(mesh))
  axes = ("vocab", "embed") if tied else ("embed", "vocab")
  logits = random_logits(vocab=1024, tied=tied, bias=True)
  shardings = VocabularyLogits(
    *(rules.sharding(a) for a in (("batch", "length", None), axes, ("vocab",))),
    tied,
    logits.softcap,
  )

  def run(logits):
    with rules.activate():
      assert _cross_entropy.Chunking.for_logits(logits).is_chunked
      return loss_and_gradients(logits)

  sharded = jax.jit(run)(jax.device_put(logits, shardings))
  assert "rematerialization" not in capfd.readouterr().err
  assert sharded[2].kernel.sharding.is_equivalent_to(shardings.kernel, 2)
  assert_equal(sharded, jax.jit(dense_loss_and_gradients)(logits))


SIZES = Dims(embed=8, heads=2, kv_heads=2, head_dim=4, mlp=16, layers=1)


def largest_array(program: str) -> int:
  """Return the number of elements of the largest array in a compiled program."""
  shapes = re.findall(r"\b(?:f32|bf16|s32|pred|u32)\[([\d,]+)\]", program)
  return max(math.prod(map(int, shape.split(","))) for shape in set(shapes))


@pytest.mark.parametrize(
  "vocab, tokens, family",
  [(32_128, 1024, "gpt2-tiny"), (128_256, 256, "bert-tiny")],
)
def test_compiled_program_never_holds_all_logits(vocab, tokens, family):
  module, objective = (
    (gpt, decoder.Objective(z_loss=1e-4)) if family == "gpt2-tiny" else (bert, mlm.Objective())
  )
  size = dataclasses.replace(module.VARIANTS[family], dims=SIZES, vocab_size=vocab)
  make = tiny.maker(size, family=module, **({"head": "mlm"} if module is bert else {}))
  model = jax.eval_shape(make, jax.random.key(0))
  side = "encoder" if module is bert else "decoder"
  shape = (tokens // 64, 64)
  batch = {
    f"{side}_{name}_tokens": jax.ShapeDtypeStruct(shape, jnp.int32) for name in ("input", "target")
  }
  batch[f"{side}_loss_weights"] = jax.ShapeDtypeStruct(shape, jnp.float32)

  def compile_gradient(objective):
    def loss(arrays, batch):
      return objective(params.with_arrays(model, arrays), batch)

    return (
      jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params.arrays(model), batch).compile()
    )

  def dense(model, batch):
    logits = model(batch)["logits"]
    return token_losses(
      logits, batch[f"{side}_target_tokens"], batch[f"{side}_loss_weights"], 0.0, 0.0
    )

  logits_size = tokens * vocab
  chunked = compile_gradient(objective)
  assert (
    largest_array(chunked.as_text())
    <= max(tokens * _cross_entropy.MAX_CHUNK_COLUMNS, vocab * SIZES.embed)
    < logits_size / 3
  )
  if vocab == 32_128:  # as a control, the dense loss does hold all logits
    control = compile_gradient(dense)
    assert largest_array(control.as_text()) >= logits_size
    temporaries = [program.memory_analysis().temp_size_in_bytes for program in (chunked, control)]
    assert temporaries[0] < temporaries[1] / 2


def test_chunked_sampling_follows_the_distribution(use_small_chunks):
  shares = np.full(1000, 1e-5)
  shares[[3, 130, 500, 999]] = 0.5, 0.25, 0.15, 0.1 - 996e-5
  logits = VocabularyLogits(jnp.ones((4, 2_500, 1)), jnp.log(shares)[None].astype(jnp.float32))
  for temperature in (1.0, 2.0):
    samples = _cross_entropy.sample_tokens(logits, jax.random.key(1), temperature)
    weights = shares ** (1 / temperature)
    groups = np.searchsorted([4, 131, 501, 1000], np.arange(1000), side="right")
    assert_fits(
      np.bincount(groups[np.asarray(samples).ravel()], minlength=4), np.bincount(groups, weights)
    )
