"""XLNet's rows mask no input, and predict a sixth of their tokens in a random order."""

import numpy as np

from chances import assert_fits
from t5x_like.data import task
from t5x_like.data.tasks import permutation_lm
from t5x_like.quiet_tensorflow import tf


def read_batch(xlnet_task, epoch: int) -> dict[str, np.ndarray]:
  features = xlnet_task.batch(
    tf.range(64, dtype=tf.int64), tf.fill([64], tf.cast(epoch, tf.int64)), 0
  )
  return {name: x.numpy() for name, x in features.items()}


def test_a_sixth_of_the_tokens_have_a_place_in_the_order():
  xlnet_task = task.build("permutation_lm", "train", store="builtin", length=64)
  batch = read_batch(xlnet_task, epoch=0)
  order = batch["encoder_order"]
  is_predicted = batch["encoder_loss_weights"] > 0
  assert set(batch) == set(xlnet_task.features)
  assert xlnet_task.name.endswith("_permutation_lm")
  np.testing.assert_array_equal(order > 0, is_predicted)
  np.testing.assert_array_equal(
    batch["encoder_target_tokens"][is_predicted], batch["encoder_input_tokens"][is_predicted]
  )
  for row in order:
    numbers = row[row > 0]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
  assert 9 <= is_predicted.sum(1).max() <= 10
  assert xlnet_task.features["encoder_masked_positions"].shape == (11,)


def test_an_order_is_drawn_for_each_epoch():
  xlnet_task = task.build("permutation_lm", "train", store="builtin", length=64)
  order = read_batch(xlnet_task, epoch=0)["encoder_order"]
  np.testing.assert_array_equal(order, read_batch(xlnet_task, epoch=0)["encoder_order"])
  assert not np.array_equal(order, read_batch(xlnet_task, epoch=1)["encoder_order"])


def test_orders_are_drawn_uniformly():
  chosen = np.tile([False, True, False, True, True], (6000, 1))
  words = np.random.default_rng(0).integers(0, 2**32, chosen.shape, dtype=np.uint32)
  orders = permutation_lm.draw_order(tf.constant(chosen), tf.constant(words)).numpy()
  assert not orders[:, [0, 2]].any()
  _, counts = np.unique(orders, axis=0, return_counts=True)
  assert_fits(counts, np.full(6, 1 / 6))
