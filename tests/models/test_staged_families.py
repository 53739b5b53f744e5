"""Image encoders in stages attend within windows, merge patches, and resize their positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from refusals import refuses
from t5x_like.architectures.image_encoder import drop_path_shares
from t5x_like.architectures.windows import PatchMerging, WindowAttention
from t5x_like.interop.families import swin as swin_files
from t5x_like.nn import params
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.cores.short import Short
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions import Grid, log_cpb, relative_2d
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.training import warm_start
from tests import topics
from tests.models import families
from tests.models.families import assert_close
from tests.models.image_families import case


@pytest.mark.parametrize("side, window, shift", [(8, 4, 2), (7, 3, 1), (6, 3, 0), (5, 5, 0)])
def test_attention_stays_within_windows_and_does_not_wrap_around(side, window, shift):
  dims = Dims(4, 1, 1, 4, 8, 1)

  def make(key):
    return WindowAttention(
      dims, nnx.Rngs(params=key), scale=1.0, grid=Grid(side, side), side=window, shift=shift
    )

  layer = jax.jit(make)(jax.random.key(0))
  pos = positions(window**2)
  x_BTD = jax.random.normal(jax.random.key(1), (2, side**2, 4))

  def run(x_BTD):
    return layer(x_BTD, Context(mask=Mask(pos, pos)), None, None)[0]

  reach = np.abs(np.asarray(jax.jit(jax.jacobian(run))(x_BTD))).max((2, 5))  # [B, T, B, T]
  # A shifted grid begins with `shift` remaining rows (and columns), followed by whole windows.
  group = (np.arange(side) - shift) // window
  together = (group[:, None, None, None] == group[None, None, :, None]) & (
    group[:, None, None] == group
  )
  allowed = np.eye(2, dtype=bool)[:, None, :, None] & together.reshape(side**2, -1)[:, None]
  assert np.array_equal(reach > 0, allowed)


@pytest.mark.parametrize("rows, columns, shift", [(10, 7, 2), (8, 8, 0)])
def test_windows_in_the_short_core_equal_the_dense_core(rows, columns, shift):
  """In outputs and gradients of x and all parameters, also where windows are padded."""
  dims = Dims(64, 4, 4, 16, 8, 1)
  grid = Grid(4, 4)

  def make(core):
    rngs = nnx.Rngs(params=jax.random.key(0))
    position = relative_2d.make(rngs, dims, grid)
    kind = dict(
      scale=0.25, grid=Grid(rows, columns), side=4, shift=shift, position=position, core=core
    )
    return nnx.split(WindowAttention(dims, rngs, **kind))

  x_BTD = jax.random.normal(jax.random.key(1), (3, rows * columns, 64))

  def outputs_and_gradients(core):
    graph, state = make(core)

    def loss(x_BTD, state):
      y_BTD = nnx.merge(graph, state)(x_BTD, Context(mask=None), None, None)[0]
      return (y_BTD * jnp.cos(jnp.arange(y_BTD.size).reshape(y_BTD.shape))).sum(), y_BTD

    return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(x_BTD, state))

  results = zip(outputs_and_gradients(Short()), outputs_and_gradients(Dense()), strict=True)
  for short, dense in results:
    assert_close(short, dense)


def test_patch_merging_concatenates_two_by_two_patches():
  layer = jax.eval_shape(
    lambda key: PatchMerging(
      Grid(3, 3), 2, 8, nnx.Rngs(key), init=params.zeros, norm=lambda x: x, norm_first=True
    ),
    jax.random.key(0),
  )
  layer = params.with_arrays(layer, {"linear/kernel": jnp.eye(8)})
  x = np.arange(18.0, dtype=np.float32).reshape(1, 9, 2)
  merged = np.asarray(layer(jnp.asarray(x), None, None, None)[0]).reshape(2, 2, 4, 2)
  padded = np.pad(x.reshape(3, 3, 2), ((0, 1), (0, 1), (0, 0)))
  for row, column in np.ndindex(2, 2):
    for column_in, row_in in np.ndindex(2, 2):
      np.testing.assert_array_equal(
        merged[row, column, 2 * column_in + row_in],
        padded[2 * row + row_in, 2 * column + column_in],
      )


def test_drop_path_rates_increase_over_the_layers():
  chosen = case("swin", depths=(1, 1))
  shares = [drop_path_shares("linear", (2, 4), n) for n in range(2)]
  np.testing.assert_allclose(sum(shares, ()), np.linspace(0, 1, 6))
  model = families.model(chosen, drop_path=0.9)
  batch = families.full_rows(chosen, 8)

  @jax.jit
  def stages(key):
    x, _ = model.stage_1(model.inputs(model.patches(jnp.asarray(batch["image"])), None), key)
    return x, model.stage_2(x, key)[0]

  (first, last), *runs = (
    jax.tree.map(np.asarray, stages(key)) for key in (None, jax.random.key(0), jax.random.key(1))
  )
  for other_first, after in runs:
    np.testing.assert_array_equal(other_first, first)  # the first rate is 0
    assert np.abs(after - last).max() > 0.1
  entry = np.asarray(model.stage_2.entry(jnp.asarray(first), None, None, None)[0])
  dropped = [np.abs(after - entry).max((1, 2)) < 1e-6 for _, after in runs]
  assert 8 <= np.sum(dropped) < 16, "of 16 examples, 13 lose both sublayers on average"


def test_table_of_relative_positions_is_interpolated_for_another_window():
  name = "stage_1/stack/blocks/self_attention_1/layer/position/table"
  source = families.abstract(case("swin", window=3))
  target = families.abstract(case("swin", window=2))
  old = params.named_params(target)[name]
  fresh = params.named_params(source)[name]
  table = jnp.asarray(np.random.default_rng(0).standard_normal(old.shape), jnp.float32)
  resized = np.asarray(
    warm_start._resize_positions(name, table, fresh, (source, target), "elsewhere")
  )
  assert resized.shape == fresh.shape == (1, 25, 2)
  assert old.shape == (1, 9, 2)
  # The row of offset zero is in the middle of both tables.
  np.testing.assert_allclose(resized[0, 12], table[0, 4], atol=1e-6)
  module = source.stage_1.stack.blocks.self_attention_1.layer.position
  np.testing.assert_allclose(
    module.resize(jnp.ones((1, 9, 2)), target.stage_1.stack.blocks.self_attention_1.layer.position),
    1,
    rtol=1e-6,
  )
  np.testing.assert_allclose(module.resize(jnp.asarray(resized), module), resized, atol=1e-6)


def test_logarithmic_offsets_are_the_same_in_a_larger_window():
  small = log_cpb.log_offsets(Grid(8, 8))
  large = log_cpb.log_offsets(Grid(16, 16), 8)
  for offsets, side in ((small, 8), (large, 16)):
    assert offsets.shape == ((2 * side - 1) ** 2, 2)
  np.testing.assert_allclose(np.unique(small), np.unique(large)[8:-8], atol=1e-6)
  np.testing.assert_allclose(small.max(), np.log2(9) / 3)
  order = relative_2d.pair_rows(Grid(8, 8))
  down = small[order[9, 0]]
  right = small[order[0, 9]]
  np.testing.assert_allclose(down, -right)
  np.testing.assert_allclose(down, np.log2(1 + 8 / 7) / 3)


@pytest.mark.parametrize(
  "family, changes, words",
  [
    ("swin", {"window": 7}, ("config.model.window", "11 pixels have 6 patches of 2 in a row")),
    ("swin", {"heads": (2,)}, ("heads: found 1 for 2 stages",)),
    ("swin", {"class_tokens": 1}, ("config.model.class_tokens: found 1",)),
    ("swin_v2", {"pretrained_windows": (2,)}, ("pretrained_windows: found 1 for 2 stages",)),
    ("swin", {"head": {"name": "reconstruction"}}, ("config.model.head: found ", "reconstruction")),
  ],
)
def test_bad_sizes_are_refused(family, changes, words):
  with refuses(*words):
    families.abstract(case(family, **changes))


@pytest.mark.parametrize(
  "position, words",
  [
    ("learned_2d", ("patch_position: found 'learned_2d'", "only 'none' or 'learned_1d'")),
    ("learned_1d", ("resolution: found 11 with positions at patches of 2 pixels",)),
  ],
)
def test_positions_of_patches_that_hugging_face_lacks_are_refused(position, words):
  with refuses(*words):
    swin_files.TYPES[0].write(families.abstract(case("swin", patch_position=position)))


@pytest.mark.parametrize("family", ["swin", *topics.cases("OBLONG_IMAGES")])
@pytest.mark.parametrize(
  "shape, key",
  [((1, 11, 11, 1), "config.model.channels"), ((1, 8, 8, 3), "config.model.resolution")],
)
def test_images_of_other_shapes_are_refused(family, shape, key):
  model = families.abstract(case(family))
  image = jax.ShapeDtypeStruct(shape, jnp.float32)
  with refuses(key):
    jax.eval_shape(lambda m, x: m({"image": x}), model, image)


def test_registers_are_refused_in_encoders_with_stages():
  with refuses("config.model.registers: found 4"):
    families.abstract(case("swin"), registers=4)
