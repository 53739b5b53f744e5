"""Models share a Linformer's matrix, and refuse what their core refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.architectures.encoder import Encoder
from t5x_like.errors import UserError
from t5x_like.nn import params
from tests.contrib.efficient_attention.cases import CORES
from tests.nn.cores.core_models import DIMS, T, batch, build_model


def test_layerwise_projections_are_one_matrix_in_all_layers():
  """The model is that of key-value sharing whose layers all have the stack's matrix."""
  encoder = build_model(Encoder, CORES["linformer"])
  features = batch("encoder")
  arrays = params.arrays(encoder)
  projection = arrays.pop("encoder/projection")
  of_layers = build_model(Encoder, {**CORES["linformer"], "share": "kv"})
  keys = {
    name: jnp.stack([projection] * DIMS.layers)
    for name in params.arrays(of_layers).keys() - arrays.keys()
  }
  of_layers = params.with_arrays(of_layers, arrays | keys)
  logits = jax.jit(lambda models: [m(features)["logits"] for m in models])([encoder, of_layers])
  np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-6)
  sizes = ({"name": "linformer", "k": k, "length": T, "share": "layerwise"} for k in (4, 6))
  with pytest.raises(
    UserError, match="core: found 'layerwise' projections of .6, 30. and .4, 30., expected one size"
  ):
    build_model(Encoder, tuple(sizes))
