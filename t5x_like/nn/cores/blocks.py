"""What cores share that cut or project sequences."""

from typing import Any, get_args

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError


def padded(x: jax.Array, length: int, axis: int = 1) -> jax.Array:
  """`x` with zeros (False) after its end, up to `length` along `axis`."""
  missing = length - x.shape[axis]
  if missing == 0:
    return x
  return jnp.pad(x, [(0, missing) if a == axis % x.ndim else (0, 0) for a in range(x.ndim)])


def blocked(x: jax.Array, blocks: int, size: int, axis: int = 1) -> jax.Array:
  """[..., length, ...] -> [..., blocks, size, ...], padded with zeros at the end."""
  axis %= x.ndim
  return padded(x, blocks * size, axis).reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])


def capped(logits: jax.Array, softcap: float | None) -> jax.Array:
  return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def check_positive(core: str, **values) -> None:
  """Raises a UserError for an option that is no whole number above zero."""
  for name, value in values.items():
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
      raise UserError(f"core {core!r}: {name}: found {value!r}, expected a whole number above 0")


def check_choice(core: str, choices: Any, **values) -> None:
  """Raises a UserError for an option that is none of a Literal's `choices`."""
  for name, value in values.items():
    if value not in get_args(choices):
      raise UserError(f"core {core!r}: {name}: found {value!r}, expected one of {', '.join(get_args(choices))}")
