"""Image families use patches and positions correctly, and compute the same in every form."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import more
import t5x_like.models
from t5x_like import slots
from t5x_like.architectures.image_encoder import ImageEncoder, patchify
from t5x_like.errors import UserError
from t5x_like.models import convnext, deit, swin, vit
from t5x_like.nn import image_positions, params
from t5x_like.nn.dims import Dims
from t5x_like.nn.image_positions import Grid, learned_1d, relative_2d, sinusoidal_2d
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training import warm_start
from tests import topics
from tests.models import families
from tests.models.families import FORMS, assert_close, assert_same
from tests.models.image_families import case, deviation

NAMES = slots.names(t5x_like.models)
FAMILIES = [n for n in NAMES if issubclass(slots.module(n, t5x_like.models).Model, ImageEncoder)]
POSITIONS = slots.names(image_positions)
CASES = [case(family) for family in FAMILIES] + [
  case(position=name) for name in POSITIONS if name != "learned_1d"
]
CASES += [case(position={"name": "relative_2d", "shared": True}, class_tokens=0)]
POSITIONS_OF_LAYERS = [
  {"name": "learned_1d", "at": "every_layer"},
  {"name": "learned_2d", "at": "every_layer_shared"},
]
CASES += [case(position=position) for position in POSITIONS_OF_LAYERS]
AUTOENCODER = {"name": "reconstruction", "depth": 2, "embed": 8, "heads": 4, "mlp": 16}
CASES += [case(position="sinusoidal_2d", head=AUTOENCODER), case(head={"name": "patch_colours"})]
BIT = {"name": "bit", "stem": 4, "widths": (16,), "depths": (1,), "groups": 2}
HYBRID = case(backbone=BIT, patch=8, resolution=24)
CASES += [dataclasses.replace(HYBRID, name="vit:hybrid")]
# Heights and widths.
OBLONG = {"vit": (6, 10), "swin": (11, 15), "swin_v2": (16, 11)} | topics.cases("OBLONG_IMAGES")
for family, resolution in OBLONG.items():
  oblong = case(family, resolution=resolution)
  CASES.append(dataclasses.replace(oblong, name=f"{family}:oblong"))
# Cases whose parts are in other cases. `more.later` marks them, and `more.beyond` all cases after
# the first few, so that they run in `make test-more` only.
LATER = (
  "vit:oblong",
  "swin:oblong",
  "swin_v2:",
  "dinov2:",
  "vit:log_cpb",
  "vit:none",
  "vit:learned_2d",
  "vit:relative_1d",
  "vit:sinusoidal_1d",
  "vit:{'name': 'learned_1d'",
  *topics.cases("LATER_IMAGE_CASES"),
)
MARKED = [more.later(case) if case.name.startswith(LATER) else case for case in CASES]


@pytest.mark.parametrize("chosen", MARKED, ids=lambda case: case.name)
@pytest.mark.parametrize("turn", more.beyond(1, range(2)))
def test_gradients_are_nonzero_and_equal_in_every_form_and_sharded(chosen, turn):
  """By turns, a case is compared with its sharded form and with one of the other forms."""
  plain = families.plain_value_and_gradients(chosen)
  case_number = CASES.index(chosen)
  for name, gradient in plain[1].items():
    assert np.isfinite(gradient).all(), name
    assert np.abs(gradient).max() > 0, name
  if (case_number + turn) % 2:
    assert_same(families.value_and_gradients(chosen, families.rules(chosen)), plain)
  else:
    assert_same(families.value_and_gradients(chosen, **FORMS[case_number // 2 % 2]), plain)


SPLIT = [
  case(),
  case(position="relative_2d", class_tokens=2),
  case(position="sinusoidal_2d", head=AUTOENCODER),
]


@pytest.mark.parametrize("chosen", more.beyond(2, SPLIT), ids=lambda case: case.name)
def test_sequence_of_a_length_that_devices_do_not_divide_is_split(chosen):
  rules = Rules.make(make_mesh({"data": 2, "sequence": 4}))
  assert_same(
    families.value_and_gradients(chosen, rules), families.plain_value_and_gradients(chosen)
  )
  assert not rules.dropped


@pytest.mark.parametrize("name", [*POSITIONS, *POSITIONS_OF_LAYERS], ids=str)
def test_order_of_patches_matters_only_with_positions(name):
  chosen = case(position=name)
  model = families.model(chosen)
  image = families.full_rows(chosen, 2)["image"]
  order = np.random.default_rng(0).permutation(9)
  tiles = image.reshape(2, 3, 2, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 9, 2, 2, 3)
  shuffled = (
    tiles[:, order].reshape(2, 3, 3, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(image.shape)
  )
  np.testing.assert_array_equal(
    patchify(jnp.asarray(shuffled), chosen.variant),
    patchify(jnp.asarray(image), chosen.variant)[:, order],
  )
  logits = np.asarray(model({"image": image})["logits"])
  shuffled_logits = np.asarray(model({"image": shuffled})["logits"])
  if name == "none":
    assert_close(shuffled_logits, logits)
  else:
    assert np.abs(logits - shuffled_logits).max() > 1e-3 * np.abs(logits).max()
  # Positions are explicit, so patches may be passed in another order with their numbers.
  visible_BK = np.tile(order, (2, 1))
  states = model.encode(image)[0]
  encoded = model.encode(image, visible_BK=jnp.asarray(visible_BK))[0]
  assert_close(np.asarray(encoded[:, 1:]), np.asarray(states[:, 1:][:, order]))
  assert_close(np.asarray(encoded[:, 0]), np.asarray(states[:, 0]))


def test_vit_has_dropout_in_layers_and_after_positions_but_not_after_the_last_norm():
  """As in the authors' code. Dropout before ViT's classifier is set by the head's own argument.

  ConvNeXt's `dropout` is that before its classifier.
  """

  def build_model(**head):
    options = dict(variant="vit-tiny", dropout=0.5, head={"name": "image_classification", **head})
    return jax.eval_shape(lambda: vit.Model(nnx.Rngs(params=jax.random.key(0)), **options))

  plain = build_model()
  block = plain.encoder.blocks
  dropouts = (
    plain.inputs.dropout,
    block.self_attention.dropout,
    block.mlp.dropout,
    block.mlp.layer.dropout,
  )
  assert {dropout.rate for dropout in dropouts} == {0.5}
  assert plain.encoder.dropout.rate == 0.0
  assert plain.head.dropout.rate == 0.0
  assert build_model(dropout=0.3).head.dropout.rate == 0.3
  network = jax.eval_shape(
    lambda: convnext.Model(nnx.Rngs(params=jax.random.key(0)), variant="convnext-tiny", dropout=0.5)
  )
  assert network.head.dropout.rate == 0.5


def test_patches_and_heads_are_initialised_as_in_the_authors_code():
  """The variance of Google's convolutions is 1 / fan_in, and of PyTorch's a third of that.

  DeiT uses the deviation 0.02 for all kernels. Google's heads are zero, and others have the
  deviation of the other kernels.
  """
  assert deviation(vit, "vit-tiny") == pytest.approx(48**-0.5)
  assert deviation(vit, "vit-tiny", design={"init_stddev": 0.02}) == 0.02
  assert deviation(swin, "swin-tiny") == pytest.approx((3 * 12) ** -0.5)
  distilled = dict(design={"init_stddev": 0.02}, name="head/distilled/kernel")
  assert deviation(vit, "vit-tiny", "head/out/kernel") is None  # initialised with zeros
  assert deviation(deit, "deit-tiny", **distilled) == 0.02
  for family, name in ((swin, "swin-tiny"), (convnext, "convnext-tiny")):
    assert deviation(family, name, "head/out/kernel") == 0.02


def test_autoencoder_depends_only_on_visible_patches_in_any_order():
  chosen = case(position="sinusoidal_2d", head=AUTOENCODER)
  model = families.model(chosen)
  batch = families.full_rows(chosen, 2)
  gradient = jax.grad(lambda x: jnp.sum(model(batch | {"image": x})["logits"] ** 2))(batch["image"])
  influences = np.abs(np.asarray(patchify(gradient, chosen.variant))).max(-1) > 0
  assert np.array_equal(
    influences, np.stack([np.isin(np.arange(9), row) for row in batch["visible_patches"]])
  )
  plain = np.asarray(model(batch)["logits"])
  assert plain.shape == (2, 6, 12)
  assert_close(
    np.asarray(model(batch | {"visible_patches": batch["visible_patches"][:, ::-1]})["logits"]),
    plain,
  )
  assert_close(
    np.asarray(model(batch | {"masked_patches": batch["masked_patches"][:, ::-1]})["logits"]),
    plain[:, ::-1],
  )


def test_layer_scale_multiplies_the_output_of_each_sublayer():
  """Folding the scales into the sublayers' output kernels and biases gives the same model."""
  plain = case()
  design = dataclasses.replace(plain.variant.design, layer_scale=1e-4)
  scaled = families.Case(
    "vit:layer_scale", "vit", dataclasses.replace(plain.variant, design=design)
  )
  model = families.model(scaled)
  batch = families.full_rows(plain, 2)
  fresh = params.arrays(scaled.model_class(nnx.Rngs(0), variant=scaled.variant))
  scales = [name for name in fresh if name.endswith("res_norm/scale")]
  assert len(scales) == 2
  assert all((fresh[name] == np.float32(1e-4)).all() for name in scales)
  arrays = params.arrays(model)
  for name in scales:
    scale = arrays.pop(name)
    layer = name.removesuffix("res_norm/scale") + "layer/"
    out = layer + ("out" if "attention" in name else "wo")
    arrays[f"{out}/kernel"] = arrays[f"{out}/kernel"] * scale[:, None]
    arrays[f"{out}/bias"] = arrays[f"{out}/bias"] * scale
  folded = params.with_arrays(families.model(plain), arrays)
  assert_close(np.asarray(model(batch)["logits"]), np.asarray(folded(batch)["logits"]))
  for change in ({"norm_position": "post"}, {"parallel": "two_norms"}):
    with pytest.raises(UserError, match="config.model.design.layer_scale: found 0.1"):
      dataclasses.replace(plain.variant.design, layer_scale=0.1, **change)


@pytest.mark.parametrize("name", more.beyond(1, ["learned_1d", "learned_2d"]))
def test_positions_of_every_layer_repeat_the_shared_ones(name):
  def logits(added_at, arrays):
    chosen = case(position={"name": name, "at": added_at})
    return np.asarray(
      params.with_arrays(families.abstract(chosen), arrays)(families.full_rows(chosen, 2))["logits"]
    )

  arrays = families.arrays(case(position={"name": name, "at": "every_layer"}))
  start = "encoder/blocks/position/scheme/"
  tables = {n.removeprefix(start): x for n, x in arrays.items() if n.startswith(start)}
  other_arrays = {n: x for n, x in arrays.items() if not n.startswith(start)}
  assert tables
  assert all(len(x) == 2 for x in tables.values())
  # Added in the first layer only, positions have the effect of positions added to the inputs.
  first_only = {n: x.at[1].set(0) for n, x in tables.items()}
  at_inputs = logits(
    "inputs", other_arrays | {f"inputs/position/{n}": x[0] for n, x in tables.items()}
  )
  assert_close(
    logits("every_layer", other_arrays | {start + n: x for n, x in first_only.items()}), at_inputs
  )
  shared = logits(
    "every_layer_shared", other_arrays | {f"position/{n}": x[0] for n, x in tables.items()}
  )
  assert_close(
    logits(
      "every_layer", other_arrays | {start + n: x[:1].repeat(2, 0) for n, x in tables.items()}
    ),
    shared,
  )
  assert np.abs(shared - at_inputs).max() > 1e-2


def test_output_depends_on_every_pixel():
  chosen = case()
  image = families.full_rows(chosen, 1)["image"]
  gradient = jax.grad(lambda x: jnp.sum(families.model(chosen)({"image": x})["logits"] ** 2))(image)
  assert (np.abs(gradient) > 0).all()


def test_drop_path_drops_a_sublayer_for_a_whole_example():
  chosen = case(dims=Dims(16, 4, 4, 4, 32, 1))
  batch = families.full_rows(chosen, 8)
  model = families.model(chosen, drop_path=0.5, drop_path_rates="uniform")
  plain = np.asarray(families.model(chosen)(batch)["logits"])
  assert_close(np.asarray(model(batch)["logits"]), plain)
  runs = [np.asarray(model(batch, jax.random.key(n))["logits"]) for n in range(6)]
  np.testing.assert_array_equal(runs[0], np.asarray(model(batch, jax.random.key(0))["logits"]))
  rows = {tuple(np.round(run[0], 4)) for run in runs}
  assert 2 <= len(rows) <= 4, "one layer with two sublayers has four outcomes for an example"


def test_table_of_positions_is_interpolated_for_another_grid():
  def scheme(rows, columns):
    arguments = 4, params.normal(1.0), Grid(rows, columns, 1)
    return jax.eval_shape(lambda key: learned_1d.make(nnx.Rngs(key), *arguments), jax.random.key(0))

  table = np.random.default_rng(0).standard_normal((1 + 12, 4)).astype(np.float32)
  np.testing.assert_allclose(scheme(3, 4).resize(table, scheme(3, 4)), table, atol=1e-6)
  larger = np.asarray(scheme(6, 8).resize(table, scheme(3, 4)))
  np.testing.assert_array_equal(larger[0], table[0])
  np.testing.assert_allclose(learned_1d.cubic_weights(5, 13).sum(1), 1, atol=1e-6)
  # The cubic kernel with a = -0.75, at a quarter of a cell.
  weights = [-0.10546875, 0.87890625, 0.26171875, -0.03515625]
  np.testing.assert_array_equal(learned_1d.cubic_weights(8, 16)[7, 2:6], weights)


@pytest.mark.parametrize(
  "name",
  ["learned_1d", "learned_2d", "relative_1d", "relative_2d", POSITIONS_OF_LAYERS[0]],
  ids=str,
)
def test_every_learned_scheme_is_interpolated_for_another_resolution(name):
  """A table that is linear over the cells remains linear, except at the borders."""
  position = name
  name = name if isinstance(name, str) else name["name"]
  models = [families.abstract(case(position=position, resolution=side)) for side in (12, 24)]
  small, large = (params.named_params(model) for model in models)
  changed = [n for n in small if small[n].shape != large[n].shape]
  assert changed
  assert all("position" in n for n in changed)
  for n in changed:
    rows = small[n].shape[-2]
    extra = {"learned_1d": 1, "relative_2d": 3}.get(name, 0)
    # In learned_1d, the row of the class token is the first. In relative_2d, the three rows of
    # relations of the class token are the last.
    first = extra if name == "learned_1d" else 0
    table = np.zeros(small[n].shape, np.float32)
    # Rows of a square table have this many columns; in other tables, a row is one cell.
    side = {"learned_1d": 6, "relative_2d": 11}.get(name)
    table[..., first : first + rows - extra, :] = (np.arange(rows - extra) // (side or 1))[
      :, None
    ] / (side or rows)
    resized = np.asarray(
      warm_start._resize_positions(n, jnp.asarray(table), large[n], models[::-1], "runs/other")
    )
    assert resized.shape == large[n].shape
    wide = {"learned_1d": 12, "relative_2d": 23}.get(name)
    between = resized[..., first : first + resized.shape[-2] - extra, :].reshape(
      *resized.shape[:-2], -1, wide or 1, resized.shape[-1]
    )
    steps = np.diff(between, axis=-3)
    inner = slice(3 + steps.shape[-3] // 20, -3 - steps.shape[-3] // 20)
    # Cells near the borders are left out, and the cubic kernel overshoots by up to a third.
    np.testing.assert_allclose(steps[..., inner, :, :], 1 / between.shape[-3], rtol=0.35)
    same = warm_start._resize_positions(
      n, jnp.asarray(table), small[n], (models[0], models[0]), "runs/other"
    )
    np.testing.assert_allclose(same, table, atol=1e-6)
  target = families.abstract(
    case(position=position, resolution=24, class_tokens=2, dims=Dims(16, 4, 4, 4, 32, 2))
  )
  if name == "learned_1d":
    with pytest.raises(UserError, match="cannot be resized: 1 extra tokens, expected 2"):
      warm_start._resize_positions(
        changed[0],
        jnp.asarray(table),
        params.named_params(target)[changed[0]],
        (target, models[0]),
        "x",
      )


def test_relative_positions_depend_only_on_offsets():
  grid = Grid(3, 4, 2)
  rows = relative_2d.pair_rows(grid)
  bias_by_offset = {}
  for q in range(12):
    for k in range(12):
      offset = (q // 4 - k // 4, q % 4 - k % 4)
      assert bias_by_offset.setdefault(offset, rows[2 + q, 2 + k]) == rows[2 + q, 2 + k]
  assert len(set(bias_by_offset.values())) == len(bias_by_offset) == 5 * 7
  assert {rows[0, 2], rows[2, 0], rows[0, 1]} == {35, 36, 37}


def test_sinusoidal_positions_encode_rows_and_columns():
  table = sinusoidal_2d.sine_table(16, Grid(3, 4, 1))
  patches = table[1:].reshape(3, 4, 16)
  assert not table[0].any()
  assert len(np.unique(table, axis=0)) == 13
  # Half of the channels encode the column.
  np.testing.assert_array_equal(patches[0, :, :8], patches[2, :, :8])
  np.testing.assert_array_equal(patches[:, 0, 8:], patches[:, 3, 8:])
  np.testing.assert_allclose(patches[2, 3, 0], np.sin(3), atol=1e-6)
  np.testing.assert_allclose(patches[2, 3, 12], np.cos(2), atol=1e-6)


@pytest.mark.parametrize(
  "changes, shape, message",
  [
    (
      {"resolution": 7},
      None,
      "config.model.resolution: found 7 with patches of 2, expected a multiple of the patch",
    ),
    (
      {},
      (1, 8, 8, 3),
      "config.model.resolution: the model is for images of .6, 6, 3., found .8, 8, 3.",
    ),
    (
      {},
      (1, 6, 6, 1),
      "config.model.channels: the model is for images of .6, 6, 3., found .6, 6, 1.",
    ),
    (
      {"class_tokens": 0, "head": {"name": "image_classification", "pooling": "token"}},
      None,
      "found 'token'",
    ),
    (
      {"backbone": BIT | {"groups": 3}, "patch": 4, "resolution": 12},
      None,
      "config.model.backbone.groups: found 3",
    ),
    (
      {"backbone": BIT, "patch": 6},
      None,
      "config.model.patch: found 6, expected a multiple of the backbone's stride, 4",
    ),
    (
      {"backbone": BIT, "patch": 4, "resolution": 12, "head": {"name": "patch_colours"}},
      None,
      "config.model.head: found .*through a backbone patches see their neighbours",
    ),
    (
      {"family": "swin", "position": POSITIONS_OF_LAYERS[0]},
      None,
      "config.model.design.position: found .*'every_layer'.*'at'",
    ),
  ],
)
def test_images_of_other_shapes_and_bad_options_are_refused(changes, shape, message):
  with pytest.raises(UserError, match=message):
    model = families.abstract(case(**changes))
    jax.eval_shape(lambda m, x: m({"image": x}), model, jax.ShapeDtypeStruct(shape, jnp.float32))


def test_last_norm_is_before_pooling_or_after_it_or_both():
  chosen = case(dims=Dims(16, 4, 4, 4, 32, 1))
  generator = np.random.default_rng(0)
  x_BTD = generator.standard_normal((2, 10, 16), np.float32)

  def normalize(x, arrays, name):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]

  before = "encoder/final_norm"
  after = "head/norm"
  for norm, norms in (("before", [before]), ("after", [after]), ("both", [before, after])):
    head = {"name": "image_classification", "labels": 3, "pooling": "mean", "norm": norm}
    model = families.model(
      dataclasses.replace(chosen, variant=dataclasses.replace(chosen.variant, head=head))
    )
    arrays = params.arrays(model)
    assert {name for name in (before, after) if f"{name}/scale" in arrays} == set(norms)
    expected = (normalize(x_BTD, arrays, before) if before in norms else x_BTD)[:, 1:].mean(1)
    expected = normalize(expected, arrays, after) if after in norms else expected
    normalised = model.head.norm(model.head.pool(model.encoder.final_norm(jnp.asarray(x_BTD))))
    assert_close(np.asarray(normalised), np.asarray(expected))
