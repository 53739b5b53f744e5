"""No positions: the order of patches means nothing."""

from t5x_like.nn.positions import Position

make = Position
