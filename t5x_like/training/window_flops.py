"""Count the FLOPs of windowed attention by the keys that a window leaves on average."""

from t5x_like.nn.cores import Softmax
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.mask import Mask


class WindowedDense(Dense):
  """Dense products on fewer keys, for `flops.with_dense_cores`; the results are meaningless.

  Of S keys, a window of w on both sides leaves w (2 - w / S) to a query on average. A causal window
  leaves half as many, by which `jaxpr_flops` multiplies all causal attention.
  """

  def attend(self, q, k, v, mask, softmax):
    S = k.shape[1]
    w = mask.window or k.shape[1]
    if w >= S:
      return super().attend(q, k, v, mask, softmax)
    n = round(w * (2 - w / S))
    bias = softmax.total_bias(mask.q_pos, mask.k_pos)  # whole, as cores compute it
    softmax = Softmax(
      None if bias is None else bias[..., :n], dropout=softmax.dropout, key=softmax.key
    )
    return super().attend(q, k[:, :n], v[:, :n], Mask(mask.q_pos, mask.k_pos[:, :n]), softmax)
