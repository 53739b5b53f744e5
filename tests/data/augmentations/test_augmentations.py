"""Augmentations equal Pillow's; mixing, boxes and RandAugment follow their papers."""

import itertools

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from t5x_like import slots
from t5x_like.data import augmentations
from t5x_like.data.augmentations import _box, _pixels, randaugment
from t5x_like.data.images.mixing import NUM_DRAWS, Mixing, _beta
from t5x_like.quiet_tensorflow import tf

PHOTO = np.kron(np.random.default_rng(1).integers(20, 230, (5, 6, 3)), np.ones((4, 4, 1))).astype(
  np.uint8
)
PHOTO = PHOTO + np.random.default_rng(2).integers(0, 20, PHOTO.shape).astype(np.uint8)
PILLOW_PHOTO = Image.fromarray(PHOTO)

# name: (our function, Pillow's function, the tolerance in levels of 0 to 255)
CASES = {
  "brightness": (
    lambda x: _pixels.brightness(x, 1.7),
    lambda im: ImageEnhance.Brightness(im).enhance(1.7),
    1,
  ),
  "contrast": (
    lambda x: _pixels.contrast(x, 0.4),
    lambda im: ImageEnhance.Contrast(im).enhance(0.4),
    2,
  ),
  "saturation": (
    lambda x: _pixels.saturation(x, 1.8),
    lambda im: ImageEnhance.Color(im).enhance(1.8),
    2,
  ),
  "sharpness": (
    lambda x: _pixels.sharpness(x, 0.1),
    lambda im: ImageEnhance.Sharpness(im).enhance(0.1),
    2,
  ),
  "posterize": (lambda x: _pixels.posterize(x, 4), lambda im: ImageOps.posterize(im, 4), 0),
  "solarize": (lambda x: _pixels.solarize(x, 100.0), lambda im: ImageOps.solarize(im, 100), 0),
  "autocontrast": (_pixels.autocontrast, ImageOps.autocontrast, 1),
  "equalize": (_pixels.equalize, ImageOps.equalize, 0),
  "grey": (_pixels.to_grey, lambda im: im.convert("L").convert("RGB"), 1),
  "blur": (lambda x: _pixels.blur(x, 1.0), lambda im: im.filter(ImageFilter.GaussianBlur(1.0)), 6),
  "shift": (
    lambda x: _pixels.affine(x, [1.0, 0.0, 3.0, 0.0, 1.0, -2.0]),
    lambda im: im.transform(im.size, Image.AFFINE, (1, 0, 3, 0, 1, -2), fillcolor=(128,) * 3),
    1,
  ),
  "quarter turn": (
    lambda x: _pixels.affine(x[:20, :20], [0.0, -1.0, 0.0, 1.0, 0.0, 0.0]),
    lambda im: im.crop((0, 0, 20, 20)).transpose(Image.ROTATE_90),
    1,
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_image_operations_equal_pillows(name):
  augment, augment_by_pillow, levels = CASES[name]
  actual = augment(tf.constant(PHOTO, tf.float32)).numpy()
  expected = np.asarray(augment_by_pillow(PILLOW_PHOTO)).astype(np.float32)
  assert np.abs(actual - expected).max() <= levels + 0.5
  assert np.abs(actual - PHOTO[: len(actual), : actual.shape[1]]).max() > 10  # not a no-op


def test_blur_of_a_small_image_reflects_it_repeatedly():
  small = PHOTO[:1, :3].astype(np.float32)
  expected = scipy.ndimage.gaussian_filter(small, (1.5, 1.5, 0), mode="reflect", radius=(5, 5, 0))
  np.testing.assert_allclose(_pixels.blur(tf.constant(small), 1.5), expected, rtol=1e-5)


def test_color_jitter_applies_its_changes_in_the_drawn_order():
  jitter = slots.make(
    "x", {"name": "color_jitter", "brightness": 0.9, "contrast": 0.9}, augmentations, "make"
  )
  factors = (1.5, 0.6, 1.2)
  steps = (_pixels.brightness, _pixels.contrast, _pixels.saturation)
  # Uniform draws that result in these factors, whose ranges are 0.1-1.9, 0.1-1.9 and 0.7-1.3.
  u = [(factors[0] - 0.1) / 1.8, (factors[1] - 0.1) / 1.8, (factors[2] - 0.7) / 0.6]
  for number, order in enumerate(itertools.permutations(range(3))):
    expected = tf.constant(PHOTO, tf.float32)
    for n in order:
      expected = steps[n](expected, factors[n])
    actual = jitter(tf.constant(PHOTO, tf.float32), tf.constant([*u, (number + 0.5) / 6]))
    np.testing.assert_allclose(actual, expected, atol=1e-2)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", slots.names(augmentations))
def test_augmentation_is_a_function_of_its_random_numbers(name, channels):
  image_facts = dict(resolution=12, mean=(0.5,) * channels, std=(0.25,) * channels)
  augmentation = slots.make("augmentations", name, augmentations, "make", **image_facts)
  apply = tf.function(lambda u: augmentation(tf.constant(PHOTO[..., :channels], tf.float32), u))
  generator = np.random.default_rng(0)
  images = set()
  for _ in range(12):
    u = generator.random(augmentation.numbers, np.float32)
    image = apply(u).numpy()
    np.testing.assert_array_equal(image, apply(u).numpy())
    assert np.isfinite(image).all()
    assert image.shape[-1] == channels
    if name != "erase":  # its noise has no bounds
      assert image.min() >= 0
      assert image.max() <= 255.001
    images.add(image.tobytes())
  assert len(images) > 1


@tf.function
def draw_box(u, height, width):
  """Draw a box of 30 to 60 % of an image with an aspect ratio of 1/2 to 2."""
  return _box.draw_box(u, height, width, (0.3, 0.6), (0.5, 2.0))


def test_boxes_lie_inside_the_image_with_areas_and_ratios_in_their_ranges():
  shares = []
  for seed in range(60):
    u = np.random.default_rng(seed).random(_box.NUMBERS, np.float32)
    box, has_fitted = draw_box(u, 40, 60)
    y, x, h, w = box.numpy()
    assert has_fitted
    assert 0 <= y <= y + h <= 40
    assert 0 <= x <= x + w <= 60
    assert 0.45 < w / h < 2.2
    shares.append(h * w / (40 * 60))
  assert 0.28 < min(shares) < 0.36
  assert 0.54 < max(shares) < 0.63


@pytest.mark.parametrize("height, width", [(1, 1), (1, 50), (50, 1)])
def test_box_in_a_thin_image_lies_inside_and_is_not_empty(height, width):
  box, _ = draw_box(np.full(_box.NUMBERS, 0.7, np.float32), height, width)
  y, x, h, w = box.numpy()
  assert h >= 1
  assert w >= 1
  assert y + h <= height
  assert x + w <= width


@pytest.mark.parametrize(
  "mixing", [Mixing(mixup=0.8), Mixing(cutmix=1.0), Mixing(mixup=0.2, cutmix=0.5)], ids=str
)
def test_label_share_equals_the_share_of_the_first_image(mixing):
  """Mixup blends all pixels and CutMix none; with both, one of them is drawn."""
  black = np.zeros((20, 30, 3), np.float32)
  white = np.ones((20, 30, 3), np.float32)
  mix = tf.function(lambda u: mixing(tf.constant(white), tf.constant(black), u))
  shares = []
  unblended = 0
  for seed in range(40):
    u = np.random.default_rng(seed).random(NUM_DRAWS, np.float32)
    mixed, share = mix(u)
    assert 0 <= share <= 1
    assert np.mean(mixed) == pytest.approx(float(share), abs=1e-5)
    unblended += set(np.unique(mixed)) <= {0.0, 1.0}
    shares.append(share)
  assert (unblended == 40) == (mixing.mixup == 0)
  assert (unblended == 0) == (mixing.cutmix == 0)
  assert np.std(shares) > 0.1


@pytest.mark.parametrize("middle", [(0.0, 0.5), (0.5, 0.0), (0.0, 0.0)])
def test_cutmix_with_a_box_below_half_a_pixel_changes_nothing(middle):
  white = tf.ones((28, 28, 1))
  black = tf.zeros((28, 28, 1))
  mixed, share = Mixing(cutmix=1.0)(white, black, tf.constant([0.0, 0.0, 1 - 2e-4, *middle]))
  assert mixed.shape == (28, 28, 1)
  assert np.all(mixed == 1)
  assert share == 1


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0])
def test_mixing_shares_have_a_beta_distribution(alpha):
  u = (np.arange(4000) + 0.5) / 4000
  actual = _beta(alpha, tf.constant(u, tf.float32)).numpy()
  distance = scipy.stats.kstest(actual, scipy.stats.beta(alpha, alpha).cdf).statistic
  assert distance < 0.02  # float32 is coarse near 0 and 1


def test_randaugment_draws_changes_and_magnitudes_as_timm_does():
  """`rand-m9-mstd0.5-inc1` applies one of 15 changes, or none (number -1) with probability 1/2.

  The level of a change is clip(N(9, 0.5), 0, 10), and its sign is random.
  """
  u = np.random.default_rng(0).random((10_000, randaugment.NUMBERS), np.float32)
  change, level, sign = randaugment.draw_changes(tf.constant(u), 9.0, 0.5, 0.5)
  counts = np.bincount(change.numpy() + 1, minlength=16)
  assert len(randaugment.NAMES) == 15
  assert abs(counts[0] / 10_000 - 0.5) < 0.02
  assert scipy.stats.chisquare(counts[1:]).pvalue > 0.01
  level = level.numpy()
  assert level.max() == 10
  assert abs((level == 10).mean() - scipy.stats.norm.sf(2)) < 0.005
  unclipped = scipy.stats.truncnorm(-18, 2, 9, 0.5)
  assert scipy.stats.kstest(level[level < 10], unclipped.cdf).pvalue > 0.01
  assert abs(np.mean(sign)) < 0.03
  assert abs(np.corrcoef(sign, change)[0, 1]) < 0.03


def test_randaugment_applies_its_changes_in_sequence():
  augmentation = randaugment.make((0.5,) * 3, ops=2, deviation=0.0)
  apply = tf.function(lambda u: augmentation.apply(tf.constant(PHOTO, tf.float32), u))
  invert = [2.5 / 15, 0.1, 0.5, 0.9]
  skipped_invert = [2.5 / 15, 0.6, 0.5, 0.9]
  photo = PHOTO.astype(np.float32)
  for numbers, expected in (
    (invert + skipped_invert, 255 - photo),
    (invert + invert, photo),
    (skipped_invert + skipped_invert, photo),
  ):
    np.testing.assert_array_equal(apply(tf.constant(numbers, tf.float32)).numpy(), expected)


# name of a change: (Pillow's function at level 9 and sign 1, the tolerance in levels of 0 to 255)
_CHANGES = {
  "invert": (ImageOps.invert, 0),
  "posterize": (lambda im: ImageOps.posterize(im, 1), 0),
  "solarize": (lambda im: ImageOps.solarize(im, 256 - 230), 0),
  "solarize_add": (
    lambda im: im.point([min(255, i + 99) if i < 128 else i for i in range(256)] * 3),
    0,
  ),
  "color": (lambda im: ImageEnhance.Color(im).enhance(1.81), 2),
  "sharpness": (lambda im: ImageEnhance.Sharpness(im).enhance(1.81), 2),
  "shear_x": (
    lambda im: im.transform(
      im.size, Image.AFFINE, (1, 0.27, 0, 0, 1, 0), Image.BILINEAR, fillcolor=GREY
    ),
    2,
  ),
  "shear_y": (
    lambda im: im.transform(
      im.size, Image.AFFINE, (1, 0, 0, 0.27, 1, 0), Image.BILINEAR, fillcolor=GREY
    ),
    2,
  ),
}
GREY = (124, 116, 104)


@pytest.mark.parametrize("name", _CHANGES)
def test_changes_of_randaugment_equal_timms(name):
  augment_by_pillow, levels = _CHANGES[name]
  image = tf.constant(PHOTO, tf.float32)
  changes = randaugment.changes(image, tf.constant(9.0), tf.constant(1.0), GREY)
  actual = changes[randaugment.NAMES.index(name)]().numpy()
  expected = np.asarray(augment_by_pillow(PILLOW_PHOTO)).astype(np.float32)
  differences = np.abs(actual - expected)[1:-1, 1:-1]
  if name.startswith("shear"):  # the border of the image blends differently
    differences = np.sort(differences.reshape(-1))[: int(0.9 * differences.size)]
  assert differences.max() <= levels + 0.5
