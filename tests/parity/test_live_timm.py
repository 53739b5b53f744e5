"""Parameter groups, RandAugment and losses of mixed images agree with the installed timm."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from parity import timm_groups

# Imported before tensorflow, after which triton cannot be loaded.
auto = pytest.importorskip("timm.data.auto_augment")

import torch  # noqa: E402
from timm.data.mixup import mixup_target  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402

from t5x_like.data.augmentations import randaugment  # noqa: E402
from t5x_like.objectives._class_losses import label_losses  # noqa: E402
from t5x_like.quiet_tensorflow import tf  # noqa: E402

pytestmark = pytest.mark.parity


def test_parameter_groups_agree_with_timm():
  written = json.loads(timm_groups.GOLDEN.read_text())
  expected = json.loads(timm_groups.text(timm_groups.golden()))
  assert {name: written[name] for name in expected} == expected


def test_each_change_of_randaugment_agrees_with_timm(monkeypatch):
  """Compare each change of a smooth image at two magnitudes and with both signs.

  Edges are interpolated in different ways, so 5 % of the values may differ by more than 3.
  """
  rows, columns = np.mgrid[:64, :48]
  waves = (np.sin(rows / 9), np.cos(columns / 7), np.sin((rows + columns) / 11))
  image = np.clip(127 + 90 * np.stack(waves, -1), 0, 255).astype(np.uint8)
  names = [op.name for op in auto.rand_augment_transform("rand-m9-mstd0.5-inc1").ops]

  def normalize(name):
    letters = "".join(c for c in name.lower() if c.isalpha())
    return letters.replace("increasing", "").replace("rel", "")

  assert [normalize(name) for name in names] == [normalize(name) for name in randaugment.NAMES]
  options = {"interpolation": Image.BILINEAR, "img_mean": (124, 116, 104)}
  for level in (4.3, 9.0):
    for sign in (1.0, -1.0):
      # timm negates a magnitude if a random number exceeds 0.5.
      random_number = 0.4 if sign > 0 else 0.6
      monkeypatch.setattr(auto.random, "random", lambda number=random_number: number)
      changes = randaugment.changes(
        tf.constant(image, tf.float32), tf.constant(level), tf.constant(sign), (124, 116, 104)
      )
      for name, change in zip(names, changes, strict=True):
        op = auto.AugmentOp(name, prob=1.0, magnitude=level, hparams=options)
        expected = np.asarray(op(Image.fromarray(image))).astype(np.float32)
        difference = np.quantile(np.abs(change().numpy() - expected), 0.95)
        assert difference <= 3, (name, level, sign, difference)


@pytest.mark.parametrize(
  ("kind", "smoothing"), [("softmax", 0.0), ("softmax", 0.1), ("sigmoid", 0.0)]
)
def test_gradients_of_mixed_batches_agree_with_timm(kind, smoothing):
  """Compare gradients with timm's, which mixes image i with image B - 1 - i.

  The binary targets of "sigmoid" are 1 for both labels, as in DeiT III.
  """
  B = 6
  V = 9
  share = 0.3
  generator = np.random.default_rng(0)
  logits = generator.standard_normal((B, V)).astype(np.float32)
  label = generator.integers(0, V, B).astype(np.int32)
  x = torch.tensor(logits, requires_grad=True)
  target = mixup_target(torch.tensor(label).long(), V, lam=share, smoothing=smoothing)
  if kind == "softmax":
    loss = SoftTargetCrossEntropy()(x, target)
  else:
    loss = torch.nn.BCEWithLogitsLoss()(x, target.gt(0.0).float())
  loss.backward()
  batch = {
    "label": label,
    "other_label": label[::-1].copy(),
    "label_share": np.full(B, share, np.float32),
    "example_weights": np.ones(B, np.float32),
  }
  gradient = jax.grad(lambda x: label_losses(x, batch, smoothing, kind)[0] / B)(logits)
  np.testing.assert_allclose(gradient, x.grad.numpy(), atol=1e-6)
