"""LoRA adapters start without effect, can be merged into kernels, and follow their paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from arrays import assert_gradients_close
from more import beyond
from refusals import refuses
from t5x_like.models import bert, gpt, t5
from t5x_like.nn import lora, params
from t5x_like.nn.linear import ADAPTERS, Linear, without_adapters
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.tunings import lora as tunings_lora
from tests.models.families import Case as Family
from tests.models.families import separate_rows, shrink

CASES = {
  "encoder": Family("bert", "bert", shrink(bert.VARIANTS["bert-base-uncased"])),
  "decoder": Family("gpt", "gpt", shrink(gpt.VARIANTS["gpt2"])),
  "encoder_decoder": Family("t5", "t5", shrink(t5.VARIANTS["t5-v1_1-base"])),
}
TARGETS = {
  "encoder": ("query", "value"),
  "decoder": ("*",),
  "encoder_decoder": ("decoder/*/query", "mlp/layer/*"),
}


def build_plain_model(case, layers):
  return case.model_class(nnx.Rngs(params=jax.random.key(1)), variant=case.variant, layers=layers)


def build_adapted_model(kind, layers="scan"):
  return lora.add_adapters(
    build_plain_model(CASES[kind], layers), TARGETS[kind], 2, 6.0, jax.random.key(2)
  )


def randomise_adapters(model):
  """Return a model with random values instead of zeros in B, so that adapters have an effect."""

  def draw(n, x):
    return jax.random.normal(jax.random.key(len(n)), x.shape) if n.endswith("lora_b") else x

  return params.with_arrays(model, {n: draw(n, x) for n, x in params.arrays(model).items()})


@pytest.mark.parametrize(
  ("kind", "layers"),
  beyond(1, [("encoder_decoder", "scan"), ("encoder", "scan"), ("decoder", "loop")]),
)
def test_new_adapters_have_no_effect_and_merged_equals_unmerged(kind, layers):
  plain = jax.jit(lambda: build_plain_model(CASES[kind], layers))()
  zero = jax.jit(lambda: build_adapted_model(kind, layers))()
  randomised = randomise_adapters(zero)
  batch = separate_rows(CASES[kind])
  run = jax.jit(lambda model: model(batch)["logits"])
  before = run(plain)
  randomised_logits = run(randomised)
  np.testing.assert_array_equal(run(zero), before)
  assert np.abs(randomised_logits - before).max() > 0.01
  merged_logits = run(without_adapters(randomised, merged=True))
  np.testing.assert_allclose(
    merged_logits, randomised_logits, atol=1e-5 * np.abs(randomised_logits).max()
  )
  base_arrays = params.arrays(without_adapters(randomised, merged=False))
  for name, array in params.arrays(plain).items():
    np.testing.assert_array_equal(base_arrays.pop(name), array)
  assert not base_arrays


@pytest.mark.parametrize("kind", CASES)
def test_defaults_adapt_queries_and_values(kind):
  tuning = tunings_lora.Tuning()

  def build():
    return tuning.adapt(build_plain_model(CASES[kind], "scan"), jax.random.key(2), {})

  parameters = params.named_params(jax.eval_shape(build))
  adapters = [name.split("/")[-2] for name in parameters if name.endswith(ADAPTERS)]
  assert set(adapters) == {"query", "value"}
  attentions = 3 if kind == "encoder_decoder" else 1
  assert len(adapters) == 4 * attentions  # a and b, of queries and of values
  trained_in_blocks = {name for name in tuning.trained_names(parameters) if "blocks" in name}
  assert trained_in_blocks == {name for name in parameters if name.endswith(ADAPTERS)}


@pytest.mark.parametrize("kind", CASES)
def test_adapters_have_the_names_axes_and_sizes_of_their_kernels(kind):
  before = params.named_params(jax.eval_shape(lambda: build_plain_model(CASES[kind], "scan")))
  after = params.named_params(jax.eval_shape(lambda: build_adapted_model(kind)))
  shapes = {name: p.shape for name, p in after.items() if not name.endswith(ADAPTERS)}
  assert shapes == {name: p.shape for name, p in before.items()}
  new = after.keys() - before.keys()
  assert new
  assert {name.rpartition("/")[2] for name in new} == set(ADAPTERS)
  for name in new:
    kernel = before[name.rpartition("/")[0] + "/kernel"]
    p = after[name]
    *layers, rows, columns = zip(kernel.shape, kernel.axes, kernel.unit)
    rank = (2, None, 1)
    matrix = [rows, rank] if name.endswith("a") else [rank, columns]
    assert list(zip(p.shape, p.axes, p.unit)) == [*layers, *matrix]

  def build_merged():
    return without_adapters(build_adapted_model(kind), merged=True)

  merged = params.named_params(jax.eval_shape(build_merged))
  assert merged.keys() == before.keys()
  for name, p in before.items():
    assert merged[name].shape == p.shape
    assert merged[name].axes == p.axes
    assert merged[name].unit == p.unit


def test_adapter_follows_its_papers_formula():
  rngs = nnx.Rngs(params=3)
  linear = Linear((3, 4), ("embed", "mlp"), params.fan_in_normal(3), rngs, bias=True)
  layer = randomise_adapters(lora.LoraLinear(linear, 2, 0.25, jax.random.key(0)))
  x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
  W = np.asarray(layer.kernel[...], np.float64)
  b = np.asarray(layer.bias[...], np.float64)
  A = np.asarray(layer.lora_a[...], np.float64)
  B = np.asarray(layer.lora_b[...], np.float64)
  np.testing.assert_allclose(layer(jnp.asarray(x)), x @ (W + 0.25 * A @ B) + b, atol=1e-5)


# With FSDP only, several kernels are gathered as one.
@pytest.mark.parametrize("mesh", beyond(1, [{"fsdp": 4, "tensor": 2}, {"fsdp": 8}]))
def test_gradients_of_sharded_adapters_equal_one_device(mesh):
  batch = {name: np.concatenate([x] * 8) for name, x in separate_rows(CASES["decoder"]).items()}
  rules = Rules.make(make_mesh(mesh))
  model = jax.jit(lambda: randomise_adapters(build_adapted_model("decoder")))()
  abstract = jax.eval_shape(lambda: model)
  arrays = params.arrays(model)
  sharded = jax.device_put(arrays, rules.param_shardings(params.named_params(abstract)))
  [adapter] = [x for n, x in sharded.items() if n.endswith("lora_a") and "mlp/layer/wi" in n]
  assert len({str(shard.index) for shard in adapter.addressable_shards}) > 1

  def gradients(arrays, batch):
    def loss(adapters):
      adapted_model = params.with_arrays(abstract, arrays | adapters)
      return (adapted_model(batch)["logits"] ** 2).mean()

    return jax.grad(loss)({name: x for name, x in arrays.items() if name.endswith(ADAPTERS)})

  @jax.jit
  def split(arrays, batch):
    with rules.activate():
      return gradients(arrays, batch)

  sharded_gradients = split(sharded, jax.device_put(batch, rules.batch()))
  expected = jax.jit(gradients)(arrays, batch)
  assert_gradients_close(sharded_gradients, expected, rtol=1e-7, atol=2e-5)


def test_target_that_names_no_kernel_is_refused():
  with refuses("'qurey' names no kernel", "key, out, query, value, wi, wo"):
    targets = ("value", "qurey")
    jax.eval_shape(
      lambda key: lora.add_adapters(
        build_plain_model(CASES["decoder"], "scan"), targets, 2, 1.0, key
      ),
      jax.random.key(0),
    )
