"""No positions: the order of patches has no effect."""

from t5x_like.nn.positions import Position

make = Position
