"""Kernels for TPUs and GPUs equal the dense core, and `auto` selects among them."""

import dataclasses
import re
import types

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.nn.cores import Softmax
from t5x_like.nn.cores.auto import Auto
from t5x_like.nn.cores.splash import Splash
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.constrain import use_layout, use_platform
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

CORE = Splash(block=128)


@pytest.mark.parametrize(
  "kind, softcap, kv_heads", [("packed_causal", None, 1), ("full_w60", 2.0, 2)]
)
def test_splash_equals_dense_in_the_interpreter(kind, softcap, kv_heads):
  mask = dataclasses.replace(cases.mask(kind, T=200), aligned=True)
  args = (*cases.qkv(T=200, N=2, K=kv_heads), None, None)
  cases.assert_equals_dense(CORE, mask, args, softcap=softcap)


def test_dropout_shared_by_queries_is_exact_in_kernels():
  """Output and gradients equal the dense core's, which drops the same weights."""
  mask = dataclasses.replace(cases.mask("packed_causal", T=64), aligned=True)
  dropout = dict(dropout=Dropout(0.3, (-2,)), key=jax.random.key(1))
  args = (*cases.qkv(T=64, N=2, K=1), None, None)
  cases.assert_equals_dense(CORE, mask, args, rows=mask.q_segments > 0, **dropout)


def test_scope_of_every_splash_kernel_contains_its_flops():
  """Plans read the FLOPs from compiled programs.

  Of 3 x 3 blocks, 6 are visible with a causal mask, and 5 with a window of 129 too.
  """

  def loss(q, k, v, mask):
    return jax.checkpoint(lambda q: CORE(q, k, v, mask, scale=0.4))(q).sum()

  for window, blocks in ((None, 6), (129, 5)):
    mask = Mask(positions(384), positions(384), causal=True, aligned=True, window=window)
    q, k, v = cases.qkv(T=384, N=2, K=1)
    text = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, v, mask).compile().as_text()
    actual = set(re.findall(r"kernel_flops_(\d+)[^\"]*_mha_(fwd|dq|dkv)", text))
    flops = 4 * q.shape[0] * 2 * 128 * blocks * 128 * 128
    assert actual == {(str(flops), part) for part in ("fwd", "dq", "dkv")}


def test_splash_on_a_mesh_and_across_lengths():
  mask = Mask(
    positions(20), positions(200), k_valid=jnp.broadcast_to(jnp.arange(200) < 170, (2, 200))
  )
  with Rules.make(make_mesh(dict(data=2, tensor=2), jax.devices()[:4])).activate():
    cases.assert_equals_dense(CORE, mask, (*cases.qkv(T=20, S=200, N=4, K=2), None, None))


@pytest.mark.parametrize(
  "platform, kind, options, expected",
  [
    ("cpu", "causal", {}, "chunked"),
    ("tpu", "causal", {}, "splash"),
    ("tpu", "packed_causal", {"softcap": 2.0}, "splash"),
    ("tpu", "causal_w64", {}, "splash"),
    ("tpu", "prefix", {}, "chunked"),
    ("tpu", "causal", {"bias": "table"}, "chunked"),
    ("tpu", "causal", {"dropout": Dropout(0.1)}, "chunked"),
    ("tpu", "causal", {"dropout": Dropout(0.1, (-2,))}, "splash"),
    ("gpu", "full", {}, "cudnn"),
    ("gpu", "packed_causal", {}, "chunked"),
    ("gpu", "padded", {}, "chunked"),
    ("gpu", "full_w64", {}, "chunked"),
    ("gpu", "full", {"dtype": jnp.float32}, "chunked"),
  ],
)
def test_auto_selects_the_fastest_core_that_supports_a_call(platform, kind, options, expected):
  def selected_name(T, aligned=True):
    mask = dataclasses.replace(cases.mask(kind, T), aligned=aligned)
    bias, _ = cases.bias(options.get("bias", "none"), T)
    dropout = options.get("dropout", Dropout(0.0))
    softmax = Softmax(bias, softcap=options.get("softcap"), dropout=dropout)
    x = jax.ShapeDtypeStruct((2, T, 4, 64), options.get("dtype", jnp.bfloat16))
    with use_platform(platform):
      return Auto().select(x, x, mask, softmax).name

  has_no_kernel = platform != "tpu" or "softcap" in options
  has_full_dropout = "dropout" in options and not options["dropout"].shared
  assert selected_name(64) == ("dense" if has_no_kernel or has_full_dropout else "short")
  assert selected_name(512) == ("dense" if has_no_kernel else "fused")
  assert selected_name(2048) == expected
  if "causal" in kind:
    assert selected_name(2048, aligned=False) == "chunked"


@pytest.mark.parametrize(
  "capability, name",
  [("7.5", "chunked"), ("gfx942", "chunked"), ("8.0", "cudnn"), ("12.0", "cudnn")],
)
def test_gpus_without_cudnn_attention_use_the_chunked_core(capability, name):
  """These are NVIDIA's before Ampere, and AMD's."""
  device = types.SimpleNamespace(device_kind="a GPU", compute_capability=capability)
  mesh = types.SimpleNamespace(devices=np.array([device]))
  x = jax.ShapeDtypeStruct((2, 1024, 4, 64), jnp.bfloat16)
  mask = cases.mask("full", 1024)
  with use_platform("gpu"), use_layout(types.SimpleNamespace(mesh=mesh, ways=lambda name: 1)):
    assert Auto().select(x, x, mask, Softmax()).name == name


def test_dropout_selects_the_fused_kernel_up_to_its_maximal_length():
  softmax = Softmax(dropout=Dropout(0.1))

  def selected_name(T, aligned=True):
    x = jax.ShapeDtypeStruct((2, T, 4, 64), jnp.bfloat16)
    mask = dataclasses.replace(cases.mask("causal", T), aligned=aligned)
    with use_platform("tpu"):
      return Auto().select(x, x, mask, softmax).name

  assert selected_name(1024) == "fused"
  assert selected_name(1024, aligned=False) == "chunked"
  assert selected_name(2048) == "chunked"


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_auto_supports_long_arrays_of_biases(platform):
  """DeBERTa's biases depend on the query, so cores cannot compute them block by block."""
  mask = Mask(positions(1024), positions(1024))
  q = jax.ShapeDtypeStruct((1, 1024, 2, 8), jnp.bfloat16)
  bias = jax.ShapeDtypeStruct((1, 2, 1024, 1024), jnp.bfloat16)
  with use_platform(platform):
    out = jax.eval_shape(lambda q, bias: Auto()(q, q, q, mask, bias, scale=0.4), q, bias)
  assert out.shape == q.shape
