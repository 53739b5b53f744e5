"""Recipes of efficient attention have the values of the authors' code."""

from t5x_like import recipes
from t5x_like.training.resolve import resolve


def test_bigbird_masks_whole_words():
  """`numpy_masking` in run_pretraining.py of google-research/bigbird."""
  assert resolve(recipes.load("configs/bigbird/base.py")).task.masking == "words"
