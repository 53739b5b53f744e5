"""Sines and cosines of the index in raster order, added to the patches."""

from t5x_like.errors import UserError
from t5x_like.nn.positions.sinusoidal import SinusoidalPosition


class Sinusoidal1d(SinusoidalPosition):
  """Fixed sinusoidal positions of the patches in raster order, for any resolution.

  The formula is for positions of words in Vaswani et al. 2017, section 3.5.
  """

  def __init__(self, width: int):
    if width % 2:
      raise UserError(
        f"config.model.design.position: sinusoidal_1d needs an even width, found {width}"
      )
    super().__init__()


make = Sinusoidal1d
