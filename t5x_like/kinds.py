"""Declared types against values that come from recipes and flags."""

import types
import typing
from typing import Any


def fits(value: Any, kind: Any) -> bool:
  """Whether a recipe's value is of a declared type; a whole number is a float too, a truth value is no number."""
  origin = typing.get_origin(kind)
  if hasattr(value, "to_dict"):  # a ConfigDict is a dict here
    value = value.to_dict()
  if kind is typing.Any:
    return True
  if origin in (typing.Union, types.UnionType):
    return any(fits(value, member) for member in typing.get_args(kind))
  if origin is typing.Literal:
    return value in typing.get_args(kind)
  if kind in (int, float):
    return isinstance(value, (int, kind)) and not isinstance(value, bool)
  return isinstance(value, origin or kind)


def type_words(kind: Any) -> str:
  """A declared type as a person would say it."""
  if typing.get_origin(kind) in (typing.Union, types.UnionType):
    return " or ".join(type_words(member) for member in typing.get_args(kind))
  if typing.get_origin(kind) is typing.Literal:
    return " or ".join(map(repr, typing.get_args(kind)))
  return "None" if kind is types.NoneType else getattr(kind, "__name__", str(kind))
