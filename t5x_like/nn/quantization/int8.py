"""Products of int8 factors.

They have twice the rate of bfloat16 on TPU v5e, on TPU v5p and on NVIDIA GPUs since Ampere.

The result and the gradient of the input multiply int8 factors. The gradient of the kernel is a sum
over all tokens of a batch, whose wide range the even steps of int8 would not resolve, and stays in
the compute dtype (SwitchBack; Wortsman et al. 2023, https://arxiv.org/abs/2304.13013, section 2).
Of the three products of a projection in a training step, two are int8.
"""

from functools import partial

from t5x_like.nn.quantization._scaled import ScaledProduct, quantize_block


def make():
  product = ScaledProduct("int8", "int8", rounds_kernel_gradient=False)
  return partial(quantize_block, product)
