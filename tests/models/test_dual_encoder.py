"""Dual encoders of images and texts have their papers' losses, in every form and sharded."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import more
from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.dual_encoder import DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.errors import UserError
from t5x_like.models import clip
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.objectives import contrastive, pairwise_sigmoid
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tests.models.families import assert_same, random_array

DIMS = Dims(16, 4, 4, 4, 32, 1)
SMALL = DualVariant(
  ImageVariant(DIMS, clip.IMAGE, 2, 6, head="projection", patch_bias=False),
  Variant(DIMS, clip.TEXT, 64, Tokens(pad=0, start=2, eos=1)),
  width=12,
)
B = 16
T = 7
OBJECTIVES = {"contrastive": contrastive.Objective, "pairwise_sigmoid": pairwise_sigmoid.Objective}


def model(arrays=None, **arguments):

  def make(key):
    return clip.Model(nnx.Rngs(params=key), variant=SMALL, bias=-3.0, **arguments)

  abstract = jax.eval_shape(make, jax.random.key(0))
  if arrays is None:
    arrays = {
      name: jnp.asarray(random_array(name, p.shape))
      for name, p in params.named_params(abstract).items()
    }
    arrays |= {"scale": jnp.float32(1.5), "bias": jnp.float32(-2.0)}
  return params.with_arrays(abstract, arrays)


run = jax.jit(lambda model, batch: model(batch))


def batch(rows=B):
  generator = np.random.default_rng(3)
  tokens = generator.integers(3, 64, (rows, T)).astype(np.int32)
  for row in range(rows):
    end = 2 + row % (T - 2)
    tokens[row, end] = 1
    tokens[row, end + 1 :] = 0
  image = generator.standard_normal((rows, 6, 6, 3)).astype(np.float32)
  return {"image": image, "text_input_tokens": tokens, "example_weights": np.ones(rows, np.float32)}


def value_and_gradients(objective, rules=None, features=None, **form):
  features = features or batch()
  start = params.arrays(model())

  def sums_and_gradients(arrays, features):
    def loss(arrays):
      total, sums = objective(model(arrays, **form), features)
      return total / jnp.maximum(sums["weights"], 1), sums

    if rules is None:
      return jax.value_and_grad(loss, has_aux=True)(arrays)
    with rules.activate():
      return jax.value_and_grad(loss, has_aux=True)(arrays)

  if rules is not None:
    start = jax.device_put(start, rules.param_shardings(params.named_params(model())))
    features = jax.device_put(features, rules.batch())
  (value, sums), gradients = jax.tree.map(np.asarray, jax.jit(sums_and_gradients)(start, features))
  return value, gradients, sums


@pytest.fixture(scope="module", params=OBJECTIVES)
def plain(request):
  return OBJECTIVES[request.param], value_and_gradients(OBJECTIVES[request.param]())


def test_losses_equal_the_papers_formulas(plain):
  objective, (value, gradients, sums) = plain
  outputs = {name: np.asarray(x, np.float64) for name, x in run(model(), batch()).items()}
  logits = outputs["logits"]
  z = 2 * np.eye(B) - 1
  if objective is contrastive.Objective:
    rows = -np.log(np.diag(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))).mean()
    columns = -np.log(np.diag(np.exp(logits.T) / np.exp(logits.T).sum(1, keepdims=True))).mean()
    expected = (rows + columns) / 2
  else:
    expected = np.log1p(np.exp(-z * logits)).sum() / B
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  assert sums["correct"] == (logits.argmax(1) == np.arange(B)).sum()
  np.testing.assert_allclose(sums["logit_scale"], B * np.exp(1.5), rtol=1e-6)
  for name, gradient in gradients.items():
    trained = name != "bias" or objective is pairwise_sigmoid.Objective
    assert np.isfinite(gradient).all(), name
    assert (np.abs(gradient).max() > 0) == trained, name


MESHES = [{"data": 2, "fsdp": 2, "tensor": 2}, {"data": 4, "fsdp": 2}]


@pytest.mark.parametrize("mesh", more.beyond(1, MESHES), ids=str)
def test_chunks_and_eight_devices_have_the_loss_of_the_global_batch(plain, mesh):
  objective, expected = plain
  sharded = value_and_gradients(objective(chunks=2), Rules.make(make_mesh(mesh)), remat="full")
  assert_same(sharded[:2], expected[:2])
  assert sharded[2]["correct"] == expected[2]["correct"]


def test_rows_without_weight_do_not_change_the_loss(plain):
  objective, expected = plain
  padded = {name: np.concatenate([x, x[::-1][:3]]) for name, x in batch().items()}
  padded["example_weights"][-3:] = 0
  assert_same(value_and_gradients(objective(), features=padded)[:2], expected[:2])


def test_output_does_not_depend_on_tokens_after_eos():
  features = batch()
  dual_encoder = model()
  expected = run(dual_encoder, features)
  changed_tokens = features["text_input_tokens"].copy()
  for row in changed_tokens:
    row[list(row).index(1) + 1 :] = 9
  np.testing.assert_allclose(
    run(dual_encoder, features | {"text_input_tokens": changed_tokens})["logits"],
    expected["logits"],
    atol=1e-5,
  )
  changed_tokens = features["text_input_tokens"].copy()
  changed_tokens[:, 0] = 9
  difference = np.abs(
    np.asarray(
      run(dual_encoder, features | {"text_input_tokens": changed_tokens})["text_embeddings"]
      - expected["text_embeddings"]
    )
  )
  assert (difference.max(axis=1) > 1e-3).all()
  np.testing.assert_allclose(np.linalg.norm(expected["image_embeddings"], axis=1), 1, rtol=1e-5)


def test_mean_pooling_of_texts_excludes_padding():
  features = batch()
  variant = dataclasses.replace(SMALL, text_pooling="mean")
  dual_encoder = model()
  abstract = jax.eval_shape(
    lambda key: clip.Model(nnx.Rngs(params=key), variant=variant, bias=-3.0), jax.random.key(0)
  )
  bidirectional = params.with_arrays(abstract, params.arrays(dual_encoder))
  expected = np.asarray(run(bidirectional, features)["text_embeddings"])
  assert np.abs(expected - np.asarray(run(dual_encoder, features)["text_embeddings"])).max() > 1e-2
  for row, tokens in enumerate(features["text_input_tokens"][:3]):
    end = list(tokens).index(1) + 1
    alone = bidirectional.embed_texts({"text_input_tokens": tokens[None, :end]})[0][0]
    np.testing.assert_allclose(alone, expected[row], atol=1e-5)


def test_changes_of_the_design_apply_to_both_encoders_except_positions():
  design = {"activation": "gelu", "position": {"image": "sinusoidal_2d", "text": "rope"}}
  dual_encoder = jax.eval_shape(
    lambda key: clip.Model(nnx.Rngs(params=key), variant=SMALL, design=design, vocab_size=32),
    jax.random.key(0),
  )
  designs = dual_encoder.variant.image.design, dual_encoder.variant.text.design
  assert [d.activation for d in designs] == ["gelu"] * 2
  assert [d.position for d in designs] == [
    "sinusoidal_2d",
    "rope",
  ]
  assert dual_encoder.text.embed.table.shape == (32, 16)
  with pytest.raises(
    UserError, match="config.model.design.position: found 'rope', expected one for each encoder"
  ):
    clip.Model(nnx.Rngs(0), variant=SMALL, design={"position": "rope"})
  with pytest.raises(
    UserError, match="config.objective.chunks: found 3, expected a divisor of the batch size 16"
  ):
    contrastive.Objective(chunks=3)(model(), batch())


def test_kernels_of_clip_are_initialised_as_in_its_code():
  """See `initialize_parameters` of openai/CLIP for texts; images have PyTorch's defaults."""

  def make(key):
    return clip.Model(nnx.Rngs(params=key), variant="clip-b32")

  stddevs = {
    name: p.stddev
    for name, p in params.named_params(jax.eval_shape(make, jax.random.key(0))).items()
  }
  text = 512
  out = 24**-0.5  # twelve layers of two sublayers
  image = 768
  expected = {"query": text**-0.5, "value": text**-0.5, "out": text**-0.5 * out}
  expected |= {"wi": (2 * text) ** -0.5, "wo": text**-0.5 * out}
  assert stddevs["image/patches/kernel"] == pytest.approx((3 * 32 * 32 * 3) ** -0.5)
  images = {"query": (2 * image) ** -0.5, "out": (3 * image) ** -0.5, "wi": (3 * image) ** -0.5}
  images["wo"] = (12 * image) ** -0.5
  for encoder, deviations in (("text", expected), ("image", images)):
    for name, deviation in deviations.items():
      part = "mlp" if name in ("wi", "wo") else "self_attention"
      assert stddevs[f"{encoder}/encoder/blocks/{part}/layer/{name}/kernel"] == pytest.approx(
        deviation
      ), name
  assert stddevs["image/tokens"] == pytest.approx(image**-0.5)
  assert stddevs["text/embed/table"] == 0.02
  assert stddevs["text/inputs/position/table"] == 0.01
