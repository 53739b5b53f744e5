"""Process set-up before any device is used, and which of several processes prints."""

import logging
import os

import jax

from t5x_like.parallel import distributed


def prepare() -> None:
  """Joins the job this process belongs to, if any, and sets up jax and logging.

  Raises:
    UserError: the job cannot be joined.
  """
  logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  jax.config.update("jax_threefry_partitionable", True)
  distributed.initialize()


def first() -> bool:
  """Whether this is the one process that prints and writes files."""
  return jax.process_index() == 0


def say(text: str) -> None:
  """Prints in the first process only."""
  if first():
    print(text, flush=True)
