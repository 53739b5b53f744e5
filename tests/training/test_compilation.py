"""The count of a model's FLOPs equals closed forms."""

import types

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from more import beyond
from t5x_like.models import gpt, t5
from t5x_like.nn import lora, params
from t5x_like.objectives import decoder
from t5x_like.objectives.encoder_decoder import Objective
from t5x_like.training import compilation, device_peak, flops, jaxpr_flops

B = 8
S = 128
T = 32


def batch():
  lengths = {"encoder_input_tokens": S, "decoder_input_tokens": T, "decoder_target_tokens": T}
  features = {
    name: jax.ShapeDtypeStruct((B, length), jnp.int32) for name, length in lengths.items()
  }
  return features | {"decoder_loss_weights": jax.ShapeDtypeStruct((B, T), jnp.float32)}


@pytest.mark.parametrize(
  "form", [{"layers": "scan"}, {"layers": "loop"}, {"remat": "full"}, {"remat": "dots"}]
)
def test_flops_of_t5_small_equal_the_sum_by_hand(form):
  model = jax.eval_shape(
    lambda key: t5.Model(nnx.Rngs(params=key), variant="t5-v1_1-small", vocab_size=32128, **form),
    jax.random.key(0),
  )
  L = 8
  D = 512
  F = 1024
  NH = 384
  encoder = B * S * L * (4 * D * NH + 3 * D * F)
  decoder = B * T * (L * (6 * D * NH + 3 * D * F) + D * 32128) + B * S * L * 2 * D * NH
  attention = B * L * 2 * NH * (S * S + T * T / 2 + T * S)  # the decoder's is causal
  position_bias = 32 * 6 * (S * S + T * T)  # a one-hot product
  expected = 6 * (encoder + decoder + attention + position_bias)
  assert flops.step_flops(model, Objective(), batch()) == expected == 200_591_671_296


def test_exact_cores_count_as_the_dense_one():
  def count(core, **design):
    def make(key):
      return t5.Model(nnx.Rngs(params=key), variant="t5-tiny", design={"core": core} | design)

    model = jax.eval_shape(make, jax.random.key(0))
    before = jax.tree.structure(model)
    counted = flops.step_flops(model, Objective(), batch())
    assert jax.tree.structure(model) == before, "the model keeps its core"
    return counted

  dense = count("dense", position="none")
  assert (
    dense
    == count("auto", position="none")
    == count("chunked", position="none")
    == count("ring", position="none")
  )
  assert dense > count({"name": "local", "window": 16}, position="none")


@pytest.mark.parametrize("core", ["dense", "chunked", "local"])
@pytest.mark.parametrize("form", [{"layers": "scan"}, {"layers": "loop", "remat": "full"}])
def test_causal_attention_counts_half(core, form):
  design = {"core": core} | ({"windows": [16]} if core == "local" else {})

  def make(key):
    return gpt.Model(
      nnx.Rngs(params=key), variant="gpt2-tiny", vocab_size=384, design=design, **form
    )

  model = jax.eval_shape(make, jax.random.key(0))
  batch = {"decoder_input_tokens": jnp.zeros((B, S), jnp.int32)}
  L = 4
  D = 256
  keys = 32 if core == "local" else S  # the local core computes two windows of 16 for each query
  projections = B * S * (L * 12 * D * D + 384 * D)
  flops = [jaxpr_flops.forward_flops(lambda model, batch: model(batch)["logits"], model, batch)]
  flops.append(
    jaxpr_flops.forward_flops(
      lambda m, b: m(b)["logits"],
      model,
      batch | {"decoder_causal_attention": batch["decoder_input_tokens"]},
    )
  )
  assert flops[0] == 2 * (projections + B * L * S * keys * D)
  assert flops[1] == 2 * (projections + B * L * S * {"local": 48}.get(core, S) * 2 * D), (
    "a prefix hides less: in full"
  )


def test_windows_count_the_keys_that_they_leave():
  """Queries see 30 keys on average, half of that by causality: the mean of 1, 2, …, 16, 16, …."""
  counts = []
  for windows in ([16], [16, None], [None]):

    def make(key, w=windows):
      return gpt.Model(
        nnx.Rngs(params=key),
        variant="gpt2-tiny",
        vocab_size=384,
        design={"windows": w, "position": "alibi"},
      )

    model = flops.with_dense_cores(jax.eval_shape(make, jax.random.key(0)))
    batch = {"decoder_input_tokens": jnp.zeros((B, S), jnp.int32)}
    counts.append(
      jaxpr_flops.forward_flops(lambda model, batch: model(batch)["logits"], model, batch)
    )
  L = 4
  D = 256
  assert [counts[2] - count for count in counts] == [
    2 * B * S * layers * (S - 30) * D for layers in (L, L // 2, 0)
  ]


@pytest.mark.parametrize("form", [{"layers": "scan"}, {"layers": "loop", "remat": "full"}])
def test_frozen_parameters_save_flops_of_the_backward_pass(form):
  """Trained are adapters of queries, then the last norm alone."""
  rank = 4
  L = 4
  D = 256

  def make(key):
    return gpt.Model(nnx.Rngs(params=key), variant="gpt2-tiny", vocab_size=384, **form)

  model = jax.eval_shape(make, jax.random.key(0))
  tokens = jax.ShapeDtypeStruct((B, S), jnp.int32)
  inputs = {
    "decoder_input_tokens": tokens,
    "decoder_target_tokens": tokens,
    "decoder_loss_weights": tokens,
  }
  inputs["decoder_loss_weights"] = jax.ShapeDtypeStruct((B, S), jnp.float32)
  projections = B * S * (L * 12 * D * D + 384 * D)
  attention = B * L * S * S * D
  adapters = B * S * L * 2 * D * rank

  def count(model, trained):
    return flops.step_flops(model, decoder.Objective(), inputs, trained)

  assert count(model, None) == 6 * (projections + attention)
  assert count(model, set(params.arrays(model))) == 6 * (projections + attention)
  adapted = jax.eval_shape(
    lambda key: lora.add_adapters(make(key), ("query",), rank, 1.0, key), jax.random.key(0)
  )
  trained = {name for name in params.arrays(adapted) if "lora" in name}
  # The first layer reads what nothing trained changes, and so do its keys and values; a scan's
  # layers are all alike.
  first = 0 if form["layers"] == "scan" else B * S * (3 * D * D + D * rank + S * D)
  assert count(adapted, trained) == 4 * projections + 6 * (attention + adapters) - 2 * first
  assert (
    count(model, {"decoder/final_norm/scale"})
    == 2 * (projections + attention) + 2 * B * S * 384 * D
  )


@pytest.mark.parametrize("quantization", beyond(1, ["int8", "fp8"]))
def test_8_bit_products_count_as_others_do_where_adapters_are_trained(quantization):
  """Frozen kernels cost two passes; attention and adapters three."""
  design = {"quantization": quantization}
  tokens = jax.ShapeDtypeStruct((B, S), jnp.int32)

  def make(key):
    return gpt.Model(nnx.Rngs(params=key), variant="gpt2-tiny", vocab_size=384, design=design)

  adapted = jax.eval_shape(
    lambda key: lora.add_adapters(make(key), ("query",), 4, 1.0, key), jax.random.key(0)
  )
  inputs = {"decoder_input_tokens": tokens, "decoder_target_tokens": tokens}
  inputs["decoder_loss_weights"] = jax.ShapeDtypeStruct((B, S), jnp.float32)
  trained = {name for name in params.arrays(adapted) if "lora" in name}
  L = 4
  D = 256
  products = 4 * B * S * (L * 12 * D * D + 384 * D) + 6 * (
    B * L * S * S * D + B * S * L * 2 * D * 4
  )
  assert flops.step_flops(adapted, decoder.Objective(), inputs, trained) == products


def test_counts_through_control_flow():
  a = jnp.ones((4, 5))

  def function(a):
    def product(x):
      return x @ x.T @ x  # 2*4*5*4 twice

    a = jax.lax.scan(lambda x, _: (product(x), None), a, None, length=3)[0]
    a = jax.lax.cond(a.sum() > 0, product, lambda x: x, a)
    return jax.checkpoint(jax.jit(product))(a)

  assert jaxpr_flops.forward_flops(function, a) == (3 + 1 + 1) * 2 * 160


def test_flops_of_a_ragged_product():
  x = jnp.ones((7, 4))
  kernels = jnp.ones((3, 4, 5))
  sizes = jnp.array([2, 0, 5])
  assert jaxpr_flops.forward_flops(jax.lax.ragged_dot, x, kernels, sizes) == 2 * 7 * 4 * 5


def test_flops_of_a_convolution():
  x = jnp.ones((2, 8, 8, 3))
  kernel = jnp.ones((3, 3, 3, 16))

  def convolve(x, kernel):
    return jax.lax.conv_general_dilated(
      x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

  assert jaxpr_flops.forward_flops(convolve, x, kernel) == 2 * (2 * 8 * 8 * 16) * (3 * 3 * 3)


@pytest.mark.parametrize(
  "kind, peak",
  [
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5p", 459e12),
    ("TPU v6 lite", 918e12),
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA H100 NVL", 835e12),
    ("NVIDIA A100-SXM4-80GB", 312e12),
    ("NVIDIA L4", 121e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA A10G", 70e12),
  ],
)
def test_peak_flops_are_those_of_data_sheets(kind, peak):
  peak_flops, source = device_peak.peak_flops(
    types.SimpleNamespace(device_kind=kind, platform="any")
  )
  assert peak_flops == peak
  assert "data sheet" in source


@pytest.mark.parametrize("kind", ["Riva 128", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"])
def test_an_unknown_accelerator_and_a_part_of_one_have_no_peak(kind):
  peak, source = device_peak.peak_flops(types.SimpleNamespace(device_kind=kind, platform="gpu"))
  assert peak == 0
  assert "set --config.peak_flops" in source


@pytest.mark.more
def test_the_peak_of_a_cpu_is_measured():
  rate, source = device_peak.peak_flops(jax.devices("cpu")[0])
  assert rate > 1e8
  assert "measured" in source


@pytest.mark.parametrize(
  "every, flags, expected",
  [(5, "", True), (0, "", False), (5, "--xla_gpu_deterministic_ops=0", False)],
)
def test_steps_that_are_computed_twice_are_deterministic_on_gpus(
  every, flags, expected, monkeypatch
):
  monkeypatch.setenv("XLA_FLAGS", flags)
  gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")
  config = types.SimpleNamespace(recompute_every=every)
  assert compilation.gpu_options(config, gpu) == (
    {"xla_gpu_deterministic_ops": True} if expected else {}
  )
  assert compilation.gpu_options(config, jax.devices()[0]) == {}
  options = compilation.gpu_options(config, gpu)
  lowered = types.SimpleNamespace(compile=lambda compiler_options=None: compiler_options)
  assert compilation.compile_lowered_step(lowered, gpu, **options) == (options or None, options)
  lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
  assert lowered.compile(compiler_options=options)(jnp.ones(3)).sum() == 6  # the option exists
