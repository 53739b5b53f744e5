"""Products of 8-bit floats.

They have twice the rate of bfloat16 on NVIDIA GPUs since Hopper and Ada, and on TPU7x.

Inputs and kernels are rounded to e4m3, whose steps are fine, and gradients to e5m2, whose range is
wide (Micikevicius et al. 2022, https://arxiv.org/abs/2209.05433, section 3). All three products of
a projection multiply them. The formats are the same as on H100 and in OCP: `float8_e4m3fn` and
`float8_e5m2`.

Scales come from the values themselves, not from the largest values of earlier steps ("delayed
scaling"). Those would be state in every checkpoint, which a run that switches to 8 bits would lack;
and the maximum of a row is fused into the operation that computes the row.
"""

from functools import partial

from t5x_like.nn.quantization._scaled import ScaledProduct, quantize_block


def make():
  product = ScaledProduct("float8_e4m3fn", "float8_e5m2", rounds_kernel_gradient=True)
  return partial(quantize_block, product)
