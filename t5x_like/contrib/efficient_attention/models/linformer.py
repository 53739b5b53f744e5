"""Linformer: RoBERTa with keys and values projected to a fixed length.

Wang et al. 2020, https://arxiv.org/abs/2006.04768, section 5: sequences of 512, projected to 128 or
256.

The projections E and F are shared by the heads of a layer ("headwise", section 4). In variants
named `-kv`, E and F are the same; in variants named `-layerwise`, all layers share this one.
"""

from dataclasses import replace

from t5x_like.architectures.design import Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.models import roberta


def _linformer(k, share="headwise", name="roberta-base") -> Variant:
  """Return a variant of RoBERTa with Linformer's core, whose projections have length `k`."""
  core = {"name": "linformer", "k": k, "length": 512, "share": share}
  variant = roberta.VARIANTS[name]
  return replace(variant, design=replace(variant.design, core=core))


VARIANTS = {
  "linformer-tiny-64": _linformer(64, name="roberta-tiny"),  # for debugging
  "linformer-base-256": _linformer(256),
  "linformer-base-256-layerwise": _linformer(256, "layerwise"),
  "linformer-base-256-kv": _linformer(256, "kv"),
  "linformer-base-128": _linformer(128),
  "linformer-base-128-layerwise": _linformer(128, "layerwise"),
  "linformer-base-128-kv": _linformer(128, "kv"),
}


class Model(Encoder):
  """A Linformer in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS
