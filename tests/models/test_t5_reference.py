"""T5's logits equal its definition in numpy, and its variants have their published sizes."""

import jax
import numpy as np
import pytest
import t5_reference
from flax import nnx

import tiny
from t5x_like.models import t5
from t5x_like.nn import params

EXACT = {"t5-small": 60_506_624, "t5-v1_1-small": 76_961_152}
MILLIONS = {
  "t5-small": 60.51,
  "t5-base": 222.90,
  "t5-large": 737.67,
  "t5-v1_1-small": 76.96,
  "t5-v1_1-base": 247.58,
  "t5-v1_1-large": 783.15,
  "mt5-small": 300.18,
  "mt5-base": 582.40,
  "byt5-small": 299.64,
  "byt5-base": 581.65,
  "t5-base-6": 123.79,  # t5-base without six layers of 7,079,424 and six of 9,439,488
  # t5-base without the 12 x 7,079,424 of its encoder, its final norm and its table
  "t5-base-shared": 137.95,
}
BILLIONS = {
  "t5-3b": 2.852,
  "t5-11b": 11.307,
  "t5-v1_1-xl": 2.850,
  "t5-v1_1-xxl": 11.135,
  "mt5-large": 1.230,
  "mt5-xl": 3.743,
  "mt5-xxl": 12.921,
  "byt5-large": 1.228,
  "byt5-xl": 3.738,
  "byt5-xxl": 12.907,
}


def abstract(variant, **arguments):
  return jax.eval_shape(
    lambda key: t5.Model(nnx.Rngs(params=key), variant=variant, **arguments), jax.random.key(0)
  )


@pytest.mark.parametrize("layers", ["scan", "loop"])
@pytest.mark.parametrize("variant", sorted({*MILLIONS, *BILLIONS}))
def test_published_parameter_counts(variant, layers):
  model = abstract(variant, layers=layers)
  count = params.count(model)
  assert count == EXACT.get(variant, count)
  if variant in MILLIONS:
    assert round(count / 1e6, 2) == MILLIONS[variant]
  else:
    assert round(count / 1e9, 3) == BILLIONS[variant]
  assert count == sum(a.size for a in params.named_params(model).values())


UMT5 = ("small", "base", "xl", "xxl")


@pytest.mark.parametrize("size", UMT5)
def test_umt5_is_mt5_with_more_tokens_and_a_position_table_in_every_layer(size):
  dims = t5.VARIANTS[f"mt5-{size}"].dims
  tokens = 2 * (256_384 - 250_112) * dims.embed
  tables = 2 * (dims.layers - 1) * 32 * dims.heads
  assert (
    params.count(abstract(f"umt5-{size}"))
    == params.count(abstract(f"mt5-{size}")) + tokens + tables
  )


def test_every_variant_is_counted_or_ours():
  our_variants = {"t5-tiny", "t5-mini", "t5-v1_1-micro", "t5-v1_1-tiny", "t5-v1_1-mini"}
  assert set(t5.VARIANTS) - {"nano", "odd"} == our_variants | set(MILLIONS) | set(BILLIONS) | {
    f"umt5-{size}" for size in UMT5
  }


@pytest.mark.parametrize(
  "size",
  [
    tiny.sizes("1.0"),
    tiny.sizes("1.1"),
    tiny.sizes("1.1", heads=3, head_dim=8, layers=3),  # inner width other than D, as in 1.1-small
    tiny.sizes("1.0", heads=2, head_dim=16, layers=1),
  ],
  ids=["1.0", "1.1", "wide", "one_layer"],
)
def test_logits_equal_the_numpy_reference(size):
  model = tiny.model(size)
  batch = tiny.batch(2, 27, 23)  # long enough for logarithmic buckets of both stacks
  assert (batch["encoder_input_tokens"] == 0).any()
  logits = np.asarray(jax.jit(lambda m, b: m(b)["logits"])(model, batch))
  assert logits.dtype == np.float32
  assert logits.shape == (2, 23, tiny.VOCAB)
  reference = t5_reference.T5(size, params.arrays(model))
  for row in range(2):
    expected = reference.logits(
      batch["encoder_input_tokens"][row], batch["decoder_input_tokens"][row]
    )
    assert expected.std() > 0.3  # the comparison below means something
    np.testing.assert_allclose(logits[row], expected, rtol=2e-5, atol=1e-5 * np.abs(expected).max())


def test_every_parameter_of_every_layer_is_used():
  size = tiny.sizes("1.1")
  model = tiny.model(size)
  batch = tiny.batch(2, 27, 23)
  names = params.named_params(model)

  @jax.jit
  def gradients(arrays):
    return jax.grad(lambda a: (params.with_arrays(model, a)(batch)["logits"] ** 2).sum())(arrays)

  for name, gradient in gradients(params.arrays(model)).items():
    layers = gradient if names[name].axes[0] == "layers" else gradient[None]
    assert all(float(np.abs(g).max()) > 1e-4 for g in layers), name
