"""BASIC embeds images with a CoAtNet."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from t5x_like.contrib.multiscale.models import basic, coatnet


@pytest.mark.more
def test_basic_embeds_images_with_a_coatnet():
  image = dataclasses.replace(coatnet.VARIANTS["coatnet-tiny"], resolution=40)
  variant = dataclasses.replace(basic.VARIANTS["basic-tiny"], image=image)
  dual_encoder = basic.Model(nnx.Rngs(params=jax.random.key(0)), variant=variant)
  images = np.random.default_rng(0).standard_normal((3, 40, 40, 3)).astype(np.float32)
  tokens = np.random.default_rng(1).integers(3, 64, (3, 7)).astype(np.int32)
  tokens[:, 4] = variant.tokens.eos
  outputs = dual_encoder({"image": images, "text_input_tokens": tokens})
  assert outputs["image_embeddings"].shape == (3, 64)
  assert outputs["logits"].shape == (3, 3)
  assert dual_encoder.features({"image": images}).shape == (3, 64)
