"""The bidirectional LSTM computes the same states as torch's with the same parameters."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

from t5x_like.contrib.recurrent.lstm import BiLstm  # noqa: E402
from t5x_like.nn import params  # noqa: E402

pytestmark = pytest.mark.parity


def test_two_layers_in_both_directions_have_torchs_states():
  """Sequences have different lengths. Torch has two biases, added here, and transposed kernels."""
  B = 3
  T = 7
  D = 5
  H = 6
  lengths = [7, 4, 1]
  x_BTD = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
  torch.manual_seed(0)
  torch_lstm = torch.nn.LSTM(D, H, num_layers=2, batch_first=True, bidirectional=True)
  arrays = {}
  for layer in range(2):
    for side, end in (("forward", ""), ("backward", "_reverse")):

      def read(name, suffix=f"_l{layer}{end}"):
        return getattr(torch_lstm, f"{name}{suffix}").detach().numpy()

      arrays[f"{side}/{layer}/inputs/kernel"] = jnp.asarray(read("weight_ih").T)
      arrays[f"{side}/{layer}/inputs/bias"] = jnp.asarray(read("bias_ih") + read("bias_hh"))
      arrays[f"{side}/{layer}/states/kernel"] = jnp.asarray(read("weight_hh").T)
  lstm = params.with_arrays(BiLstm(D, H, 2, nnx.Rngs(0)), arrays)
  valid = np.arange(T) < np.array(lengths)[:, None]
  packed = torch.nn.utils.rnn.pack_padded_sequence(
    torch.from_numpy(x_BTD), lengths, batch_first=True
  )
  expected, _ = torch.nn.utils.rnn.pad_packed_sequence(
    torch_lstm(packed)[0], batch_first=True, total_length=T
  )
  np.testing.assert_allclose(
    lstm(jnp.asarray(x_BTD), jnp.asarray(valid)), expected.detach().numpy(), atol=1e-6
  )
