"""Counts of FLOPs equal closed forms; devices have the peak FLOPs of their data sheets."""

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


def features(**lengths):
  """Return abstract int32 features of these lengths, and float32 weights of the targets."""
  batch = {name: jax.ShapeDtypeStruct((B, n), jnp.int32) for name, n in lengths.items()}
  target_length = lengths["decoder_target_tokens"]
  return batch | {"decoder_loss_weights": jax.ShapeDtypeStruct((B, target_length), jnp.float32)}


T5_BATCH = features(encoder_input_tokens=S, decoder_input_tokens=T, decoder_target_tokens=T)
GPT_BATCH = features(decoder_input_tokens=S, decoder_target_tokens=S)
# Sizes of gpt2-tiny with 384 tokens, and the numbers of multiplications of its parts for a batch.
L = 4
D = 256
PROJECTIONS = B * S * (L * 12 * D * D + 384 * D)
ATTENTION = B * L * S * S * D
RANK = 4
ADAPTERS = B * S * L * 2 * D * RANK


def make_t5(**arguments):
  return jax.eval_shape(lambda key: t5.Model(nnx.Rngs(params=key), **arguments), jax.random.key(0))


def make_gpt(adapted: bool = False, **arguments):
  """Return an abstract gpt2-tiny; `adapted` adds LoRA adapters to its queries."""

  def make(key):
    model = gpt.Model(nnx.Rngs(params=key), variant="gpt2-tiny", vocab_size=384, **arguments)
    return lora.add_adapters(model, ("query",), RANK, 1.0, key) if adapted else model

  return jax.eval_shape(make, jax.random.key(0))


def adapter_names(model) -> set[str]:
  return {name for name in params.arrays(model) if "lora" in name}


def gpt_forward_flops(model, **features) -> int:
  tokens = jnp.zeros((B, S), jnp.int32)
  batch = {"decoder_input_tokens": tokens} | dict.fromkeys(features, tokens)
  return jaxpr_flops.forward_flops(lambda model, batch: model(batch)["logits"], model, batch)


def gpt_step_flops(model, trained=None) -> int:
  return flops.step_flops(model, decoder.Objective(), GPT_BATCH, trained)


@pytest.mark.parametrize(
  "form", [{"layers": "scan"}, {"layers": "loop"}, {"remat": "full"}, {"remat": "dots"}]
)
def test_flops_of_t5_small_equal_a_sum_over_its_layers(form):
  model = make_t5(variant="t5-v1_1-small", vocab_size=32128, **form)
  L = 8
  D = 512
  F = 1024
  NH = 384
  encoder = B * S * L * (4 * D * NH + 3 * D * F)
  decoder = B * T * (L * (6 * D * NH + 3 * D * F) + D * 32128) + B * S * L * 2 * D * NH
  attention = B * L * 2 * NH * (S * S + T * T / 2 + T * S)  # the decoder's self-attention is causal
  position_bias = 32 * 6 * (S * S + T * T)  # computed as a one-hot product
  expected = 6 * (encoder + decoder + attention + position_bias)
  assert flops.step_flops(model, Objective(), T5_BATCH) == expected == 200_591_671_296


def test_exact_cores_count_like_the_dense_core():
  def count_flops(core):
    model = make_t5(variant="t5-tiny", design={"core": core, "position": "none"})
    before = jax.tree.structure(model)
    count = flops.step_flops(model, Objective(), T5_BATCH)
    assert jax.tree.structure(model) == before, "the model was changed"
    return count

  dense = count_flops("dense")
  assert dense == count_flops("auto") == count_flops("chunked") == count_flops("ring")
  assert dense > count_flops({"name": "local", "window": 16})


@pytest.mark.parametrize(
  "core, causal_keys, prefix_keys",
  [
    ({"core": "dense"}, S, S),
    ({"core": "chunked"}, S, S),
    ({"core": "local", "windows": [16]}, 32, 48),  # whole windows of 16 for each query
  ],
)
@pytest.mark.parametrize("form", [{"layers": "scan"}, {"layers": "loop", "remat": "full"}])
def test_causal_attention_counts_half(core, causal_keys, prefix_keys, form):
  model = make_gpt(design=core, **form)
  assert gpt_forward_flops(model) == 2 * (PROJECTIONS + B * L * S * causal_keys * D)
  # With a prefix mask the whole product is counted.
  with_prefix = gpt_forward_flops(model, decoder_causal_attention=True)
  assert with_prefix == 2 * (PROJECTIONS + B * L * S * prefix_keys * 2 * D)


@pytest.mark.parametrize("windows, short_layers", [([16], L), ([16, None], L // 2)])
def test_windows_count_only_visible_keys(windows, short_layers):
  """A causal query sees 15 keys on average, the mean of 1, 2, …, 16, 16, …: half of 30."""

  def count_flops(windows):
    model = make_gpt(design={"windows": windows, "position": "alibi"})
    return gpt_forward_flops(flops.with_dense_cores(model))

  assert count_flops([None]) - count_flops(windows) == 2 * B * S * short_layers * (S - 30) * D


@pytest.mark.parametrize("form", [{"layers": "scan"}, {"layers": "loop", "remat": "full"}])
def test_frozen_parameters_save_flops_of_the_backward_pass(form):
  """First only adapters of queries are trained, then only the last norm."""
  model = make_gpt(**form)
  assert gpt_step_flops(model) == 6 * (PROJECTIONS + ATTENTION)
  assert gpt_step_flops(model, set(params.arrays(model))) == 6 * (PROJECTIONS + ATTENTION)
  adapted = make_gpt(adapted=True, **form)
  # The inputs of the first layer, its keys and its values do not depend on trained parameters. In
  # a scan all layers are treated alike.
  first = 0 if form["layers"] == "scan" else B * S * (3 * D * D + D * RANK + S * D)
  expected = 4 * PROJECTIONS + 6 * (ATTENTION + ADAPTERS) - 2 * first
  assert gpt_step_flops(adapted, adapter_names(adapted)) == expected
  expected = 2 * (PROJECTIONS + ATTENTION) + 2 * B * S * 384 * D
  assert gpt_step_flops(model, {"decoder/final_norm/scale"}) == expected


@pytest.mark.parametrize("quantization", beyond(1, ["int8", "fp8"]))
def test_8_bit_products_count_like_others_with_trained_adapters(quantization):
  """Frozen kernels cost two passes; attention and adapters cost three."""
  adapted = make_gpt(adapted=True, design={"quantization": quantization})
  expected = 4 * PROJECTIONS + 6 * (ATTENTION + ADAPTERS)
  assert gpt_step_flops(adapted, adapter_names(adapted)) == expected


def test_flops_inside_control_flow_are_counted():
  a = jnp.ones((4, 5))

  def function(a):
    def product(x):
      return x @ x.T @ x  # two products of 2 * 4 * 5 * 4 FLOPs

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
def test_peak_flops_equal_data_sheets(kind, peak):
  peak_flops, source = device_peak.peak_flops(
    types.SimpleNamespace(device_kind=kind, platform="any")
  )
  assert peak_flops == peak
  assert "data sheet" in source


@pytest.mark.parametrize("kind", ["Riva 128", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"])
def test_unknown_accelerators_and_mig_slices_have_no_peak(kind):
  peak, source = device_peak.peak_flops(types.SimpleNamespace(device_kind=kind, platform="gpu"))
  assert peak == 0
  assert "set --config.peak_flops" in source


@pytest.mark.more
def test_peak_of_a_cpu_is_measured():
  rate, source = device_peak.peak_flops(jax.devices("cpu")[0])
  assert rate > 1e8
  assert "measured" in source


@pytest.mark.parametrize(
  "every, flags, expected",
  [(5, "", True), (0, "", False), (5, "--xla_gpu_deterministic_ops=0", False)],
)
def test_recomputed_steps_are_compiled_deterministically_on_gpus(
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
  assert lowered.compile(compiler_options=options)(jnp.ones(3)).sum() == 6  # XLA knows the option
