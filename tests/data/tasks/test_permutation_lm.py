"""XLNet's rows: whole inputs, and an order of prediction drawn for each."""

import numpy as np

from chances import assert_fits
from t5x_like.data import task
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.tasks import permutation_lm


def test_a_sixth_is_predicted_in_an_order_of_its_own():
  built_task = task.build("permutation_lm", "train", store="builtin", length=64)
  indices = tf.range(64, dtype=tf.int64)
  epoch = tf.zeros(64, tf.int64)
  rows, again, later = (built_task.batch(indices, epoch + n, 0) for n in (0, 0, 1))
  order, chosen, tokens, targets = (
    rows[f"encoder_{name}"].numpy()
    for name in ("order", "loss_weights", "input_tokens", "target_tokens")
  )
  assert set(rows) == set(built_task.features) and built_task.name.endswith("_permutation_lm")
  assert ((order > 0) == (chosen > 0)).all() and (targets[chosen > 0] == tokens[chosen > 0]).all()
  for row in order:
    assert sorted(row[row > 0]) == list(range(1, (row > 0).sum() + 1))
  assert 9 <= (order > 0).sum(1).max() <= 10 and built_task.features[
    "encoder_masked_positions"
  ].shape == (11,)
  assert np.array_equal(order, again["encoder_order"]) and not np.array_equal(
    order, later["encoder_order"]
  )


def test_every_order_is_as_likely():
  chosen = np.tile([False, True, False, True, True], (6000, 1))
  words = np.random.default_rng(0).integers(0, 2**32, chosen.shape, dtype=np.uint32)
  orders = permutation_lm.draw_order(tf.constant(chosen), tf.constant(words)).numpy()
  assert not orders[:, [0, 2]].any()
  _, counts = np.unique(orders, axis=0, return_counts=True)
  assert_fits(counts, np.full(6, 1 / 6))
