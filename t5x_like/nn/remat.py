"""Rematerialisation (`config.model.remat`): which activations the backward pass recomputes.

The setting is a name of `REMAT_KINDS`, or {"name": …} with arguments. Activations have names
(`NAMES`), given where they are computed, so that a recipe can keep them on the devices or move them
to the hosts' memory until the backward pass.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
from jax.ad_checkpoint import checkpoint_name

from t5x_like import slots
from t5x_like.errors import UserError

NAMES = ("query", "key", "value", "context", "attention_out", "mlp_hidden", "mlp_out")
Name = Literal[NAMES]


@dataclasses.dataclass(frozen=True)
class Remat:
  """The activations that the backward pass does not recompute.

  Attributes:
    keep: "all" activations, "dots" (matrix products without a batch axis), or "named" ones.
    save: names of the activations that stay on the devices.
    offload: names of the activations that go to the hosts' memory.
  """

  keep: Literal["all", "dots", "named"]
  save: tuple[str, ...] = ()
  offload: tuple[str, ...] = ()

  def wrap(self, body: Callable, *, prevent_cse: bool) -> Callable:
    """Wrap `body` so that its backward pass recomputes activations that are not kept."""
    if self.keep == "all":
      return body
    policies = jax.checkpoint_policies
    if self.keep == "dots":
      policy = policies.checkpoint_dots_with_no_batch_dims
    elif self.offload:
      policy = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(self.save),
        names_which_can_be_offloaded=list(self.offload),
        offload_src="device",
        offload_dst="pinned_host",
      )
    else:
      policy = policies.save_only_these_names(*self.save)
    return jax.checkpoint(body, policy=policy, prevent_cse=prevent_cse)


def none() -> Remat:
  """Keep all activations."""
  return Remat("all")


def dots() -> Remat:
  """Keep the products with parameters."""
  return Remat("dots")


def full() -> Remat:
  """Keep only the input of each layer."""
  return Remat("named")


def minimal() -> Remat:
  """Keep every named activation; recompute norms, activation functions and logits."""
  return Remat("named", NAMES)


def save(names: tuple[Name, ...]) -> Remat:
  """Keep the activations `names`."""
  return Remat("named", names)


def offload(names: tuple[Name, ...], save: tuple[Name, ...] = ()) -> Remat:
  """Move the activations `names` to the hosts' memory and back; keep `save` on the devices."""
  in_both = sorted(set(names) & set(save))
  if in_both:
    raise UserError(
      f"config.model.remat: found {in_both[0]!r} in both 'names' and 'save', expected "
      "it in one of them"
    )
  return Remat("named", save, offload=names)


KEEP_ALL = none()
REMAT_KINDS = {
  "none": none,
  "dots": dots,
  "full": full,
  "minimal": minimal,
  "save": save,
  "offload": offload,
}


def build_remat(spec: str | dict) -> Remat:
  """Build a `Remat` from its setting; raise a UserError as `slots.make` does."""
  return slots.make("config.model.remat", spec, REMAT_KINDS)


def name_activation(x: jax.Array, name: Name) -> jax.Array:
  """Name an activation [B, T, ...], so that a recipe can keep it or offload it.

  It is kept with all axes after T merged, because an axis as narrow as a head may need padding.
  """
  return checkpoint_name(x.reshape(*x.shape[:2], -1), name).reshape(x.shape)
