"""Rates by layer and weight decay by kind, as timm and the authors of the families group
parameters."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import t5x_like.models
from parity import timm_groups
from t5x_like import recipes, slots
from t5x_like.nn import params
from t5x_like.training.build import build_parts
from t5x_like.training.optimizer import build_optimizer
from t5x_like.training.resolve import resolve
from t5x_like.tunings import layer_decay

GOLDEN = json.loads(timm_groups.GOLDEN.read_text())
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_PARTS = {  # our name in a block -> timm's
  "self_attention/in_norm": "norm1",
  "self_attention/layer/query": "attn.qkv",
  "self_attention/layer/key": "attn.qkv",
  "self_attention/layer/value": "attn.qkv",
  "self_attention/layer/out": "attn.proj",
  "self_attention/layer/pool_query/norm": "attn.norm_q",
  "self_attention/layer/pool_key/norm": "attn.norm_k",
  "self_attention/layer/pool_value/norm": "attn.norm_v",
  "self_attention/layer/pool_query": "attn.pool_q",
  "self_attention/layer/pool_key": "attn.pool_k",
  "self_attention/layer/pool_value": "attn.pool_v",
  "self_attention/shortcut": "shortcut_proj_attn",
  "mlp/in_norm": "norm2",
  "mlp/layer/wi": "mlp.fc1",
  "mlp/layer/wo": "mlp.fc2",
}
_WHOLE = {
  "self_attention/layer/position/table": "attn.relative_position_bias_table",
  "self_attention/layer/position/rows": "attn.rel_pos_h",
  "self_attention/layer/position/columns": "attn.rel_pos_w",
}
_OUTSIDE = {
  "patches": "patch_embed.proj",
  "inputs/norm": "patch_embed.norm",
  "encoder/final_norm": "norm",
  "final_norm": "norm",
  "head/norm": "head.norm",
}
_CONVOLVED = [  # patterns of our names in a backbone of convolutions -> timm's
  ("patches", "stem.0"),
  ("norm", "stem.1"),
  (r"merge_norms/(\d)", r"stages.+\1.downsample.0"),
  (r"merges/(\d)", r"stages.+\1.downsample.1"),
  (r"stages/(\d)/(\d)/depthwise", r"stages.\1.blocks.\2.conv_dw"),
  (r"stages/(\d)/(\d)/norm", r"stages.\1.blocks.\2.norm"),
  (r"stages/(\d)/(\d)/wi", r"stages.\1.blocks.\2.mlp.fc1"),
  (r"stages/(\d)/(\d)/wo", r"stages.\1.blocks.\2.mlp.fc2"),
  ("stem/conv", "conv1"),
  ("stem/norm", "bn1"),
  (r"stages/(\d)/(\d)/units/(\d)/conv", r"layer+\1.\2.conv+\3"),
  (r"stages/(\d)/(\d)/units/(\d)/norm", r"layer+\1.\2.bn+\3"),
  (r"stages/(\d)/(\d)/shortcut/conv", r"layer+\1.\2.downsample.0"),
  (r"stages/(\d)/(\d)/shortcut/norm", r"layer+\1.\2.downsample.1"),
]


def timm_names(name: str, layers: int, head: str) -> list[str]:
  """Return timm's names of a parameter, one for each layer of it."""
  if name in ("tokens", "inputs/position/table"):
    return ["cls_token" if name == "tokens" else "pos_embed"]
  whole, _, leaf = name.rpartition("/")
  if whole == "head/out":
    return [f"{head}.{_LEAVES[leaf]}"]
  if whole in _OUTSIDE:
    return [f"{_OUTSIDE[whole]}.{_LEAVES[leaf]}"]
  if name.startswith("backbone/"):
    inner = whole.removeprefix("backbone/")
    if gamma := re.fullmatch(r"stages/(\d)/(\d)/scale", inner):
      return [f"stages.{gamma[1]}.blocks.{gamma[2]}.gamma"]
    pattern, other = next(one for one in _CONVOLVED if re.fullmatch(one[0], inner))
    counted = re.sub(r"\+(\d)", lambda found: str(int(found[1]) + 1), re.sub(pattern, other, inner))
    return [f"{counted}.{_LEAVES[leaf]}"]
  if merging := re.fullmatch(r"stage_(\d+)/entry/(norm|linear)/(\w+)", name):
    part = {"norm": "norm", "linear": "reduction"}[merging[2]]
    return [f"layers.{int(merging[1]) - 1}.downsample.{part}.{_LEAVES[leaf]}"]
  stage, entry, rest = re.fullmatch(
    r"(?:stage_(\d+)/)?(?:(entry)|(?:stack|encoder)/blocks)/(.*)", name
  ).groups()
  turn = re.match(r"(?:self_attention|mlp)_(\d)/", rest)
  rest = re.sub(r"^(self_attention|mlp)_\d/", r"\1/", rest)
  inner = _WHOLE.get(rest) or f"{_PARTS[rest.rpartition('/')[0]]}.{_LEAVES[leaf]}"
  if turn:  # Swin: two layers in turn
    return [f"layers.{int(stage) - 1}.blocks.{2 * n + int(turn[1])}.{inner}" for n in range(layers)]
  if stage:  # MViT: the first block of a later stage stands by itself
    first = 0 if entry or stage == "1" else 1
    return [f"stages.{int(stage) - 1}.blocks.{first + n}.{inner}" for n in range(layers)]
  return [f"blocks.{n}.{inner}" for n in range(layers)]


def parameters(family: str, variant: str) -> dict[str, nnx.Param]:
  """Return the abstract parameters of a model by name."""
  spec = {"name": family, "variant": variant}

  def make(key):
    return slots.make("config.model", spec, t5x_like.models, "Model", rngs=nnx.Rngs(params=key))

  return params.named_params(jax.eval_shape(make, jax.random.key(0)))


@pytest.mark.parametrize(
  "ours, theirs", [(ours, theirs) for ours, (theirs, _) in timm_groups.MODELS.items()], ids=str
)
def test_rates_and_decays_are_timms_by_name(ours, theirs):
  named = parameters(*ours)
  golden = GOLDEN[theirs]
  seen = set()
  head = next(name for name in ("head", "head.fc", "fc") if f"{name}.weight" in golden)
  one = {
    n: jax.ShapeDtypeStruct(p.shape[p.axes[:1] == ("layers",) :], p.dtype) for n, p in named.items()
  }
  decayed = _decayed(one)
  for name, below in layer_decay.layers_below_heads(named).items():
    for number, layer in enumerate(np.atleast_1d(below)):
      other = timm_names(name, np.size(below), head)[number]
      seen.add(other)
      np.testing.assert_allclose(
        timm_groups.DECAY**layer, golden[other][0], rtol=1e-4, err_msg=f"{name} {other}"
      )
      assert decayed[name] == golden[other][1], (name, other)
  assert seen == set(golden)


def _decayed(arrays) -> dict[str, bool]:
  """Return which parameters AdamW moves by weight decay alone."""
  optimizer = build_optimizer("adamw", lambda step: 1.0, weight_decay=0.5, undecayed="tables")
  small = {name: jnp.ones([min(n, 2) for n in a.shape]) for name, a in arrays.items()}
  zeros = jax.tree.map(jnp.zeros_like, small)
  updates, _ = optimizer.update(zeros, optimizer.init(small), small, step=0)
  return {name: bool(jnp.any(u != 0)) for name, u in updates.items()}


def test_a_recipes_update_decays_each_layer_at_its_own_rate():
  """Without gradients an update is weight decay alone: rate of the step, rate of the layer, decay,
  parameter."""
  changes = [
    "model.variant=vit-tiny",
    "model.patch=4",
    "model.resolution=32",
    "schedule.warmup_steps=0",
  ]
  built = build_parts(
    resolve(recipes.load("configs/vit/mae_classify.py", [*changes, "optimizer.weight_decay=0.5"]))
  )
  arrays = {name: jnp.ones(a.shape) for name, a in params.arrays(built.model).items()}
  zeros = jax.tree.map(jnp.zeros_like, arrays)
  step = jnp.int32(1)
  extra = {"accepted": True}
  updates, _ = built.optimizer.update(
    zeros, built.optimizer.init(arrays), arrays, step=step, **extra
  )
  shares = {
    name: np.asarray(u) / (-0.5 * float(built.schedule(step))) for name, u in updates.items()
  }
  expected = {
    "head/out/kernel": 1,
    "patches/kernel": 0.75**5,
    "tokens": 0,
    "patches/bias": 0,
    "head/norm/scale": 0,
  }
  for name, share in expected.items():
    np.testing.assert_allclose(shares[name], share, rtol=1e-5)
  for layer in range(4):
    np.testing.assert_allclose(
      shares["encoder/blocks/mlp/layer/wi/kernel"][layer], 0.75 ** (4 - layer), rtol=1e-5
    )


def test_the_layers_of_a_period_and_of_towers_are_counted_one_by_one():
  def below(family, variant):
    return layer_decay.layers_below_heads(parameters(family, variant))

  gemma = below("gemma2", "tiny")
  turns = [gemma[f"decoder/blocks/mlp_{turn}/in_norm/scale"] for turn in (0, 1)]
  np.testing.assert_array_equal(np.stack(turns, 1).reshape(-1), [4, 3, 2, 1])
  clip = below("clip", "clip-tiny")
  assert (clip["image/patches/kernel"], clip["text/embed/table"], clip["projection/kernel"]) == (
    5,
    3,
    0,
  )
  dinov2 = below("dinov2", "dinov2-tiny-registers")
  assert dinov2["registers"] == dinov2["tokens"] == dinov2["patches/kernel"] == 5
