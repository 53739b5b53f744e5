"""No positions."""

from t5x_like.nn.positions import Position

make = Position
