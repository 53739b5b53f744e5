"""The bidirectional LSTM against torch's, whose parameters it has in other places."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

from t5x_like.nn import params  # noqa: E402
from t5x_like.nn.lstm import BiLstm  # noqa: E402

pytestmark = pytest.mark.parity


def test_two_layers_in_both_directions_are_torchs():
  """Of sequences of different lengths; torch adds two biases, and transposes kernels."""
  B = 3
  T = 7
  D = 5
  H = 6
  lengths = [7, 4, 1]
  x_BTD = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
  torch.manual_seed(0)
  theirs = torch.nn.LSTM(D, H, num_layers=2, batch_first=True, bidirectional=True)
  given = {}
  for layer in range(2):
    for side, end in (("forward", ""), ("backward", "_reverse")):

      def of(name, end=end, layer=layer):
        return getattr(theirs, f"{name}_l{layer}{end}").detach().numpy()

      given[f"{side}/{layer}/inputs/kernel"] = jnp.asarray(of("weight_ih").T)
      given[f"{side}/{layer}/inputs/bias"] = jnp.asarray(of("bias_ih") + of("bias_hh"))
      given[f"{side}/{layer}/states/kernel"] = jnp.asarray(of("weight_hh").T)
  ours = params.with_arrays(BiLstm(D, H, 2, nnx.Rngs(0)), given)
  valid = np.arange(T) < np.array(lengths)[:, None]
  packed = torch.nn.utils.rnn.pack_padded_sequence(
    torch.from_numpy(x_BTD), lengths, batch_first=True
  )
  expected, _ = torch.nn.utils.rnn.pad_packed_sequence(
    theirs(packed)[0], batch_first=True, total_length=T
  )
  np.testing.assert_allclose(
    ours(jnp.asarray(x_BTD), jnp.asarray(valid)), expected.detach().numpy(), atol=1e-6
  )
