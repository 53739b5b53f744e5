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
from arrays import rngs
from parity import timm_groups
from t5x_like import recipes, slots
from t5x_like.nn import params
from t5x_like.training.build import build_parts
from t5x_like.training.optimizer import build_optimizer
from t5x_like.training.resolve import resolve
from t5x_like.tunings import layer_decay

GOLDEN = json.loads(timm_groups.GOLDEN.read_text())
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
PARTS = {  # our name in a block -> timm's
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
TABLES = {  # our table in a block -> timm's
  "self_attention/layer/position/table": "attn.relative_position_bias_table",
  "self_attention/layer/position/rows": "attn.rel_pos_h",
  "self_attention/layer/position/columns": "attn.rel_pos_w",
}
OUTSIDE = {  # our name outside of the blocks -> timm's
  "patches": "patch_embed.proj",
  "inputs/norm": "patch_embed.norm",
  "encoder/final_norm": "norm",
  "final_norm": "norm",
  "head/norm": "head.norm",
}
CONVOLVED = [  # patterns of our names in a backbone of convolutions -> timm's
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
  """Return timm's names of a parameter, one for each layer of it; `head` is timm's of the head."""
  if name == "tokens":
    return ["cls_token"]
  if name == "inputs/position/table":
    return ["pos_embed"]
  module, _, leaf = name.rpartition("/")
  if module == "head/out":
    return [f"{head}.{LEAVES[leaf]}"]
  if module in OUTSIDE:
    return [f"{OUTSIDE[module]}.{LEAVES[leaf]}"]
  if name.startswith("backbone/"):
    return [timm_backbone_name(module.removeprefix("backbone/"), leaf)]
  merging = re.fullmatch(r"stage_(\d+)/entry/(norm|linear)/(\w+)", name)
  if merging:
    part = {"norm": "norm", "linear": "reduction"}[merging[2]]
    return [f"layers.{int(merging[1]) - 1}.downsample.{part}.{LEAVES[leaf]}"]
  return timm_block_names(name, layers)


def timm_backbone_name(module: str, leaf: str) -> str:
  """Return timm's name of a parameter of a backbone of convolutions."""
  gamma = re.fullmatch(r"stages/(\d)/(\d)/scale", module)
  if gamma:
    return f"stages.{gamma[1]}.blocks.{gamma[2]}.gamma"
  for pattern, template in CONVOLVED:
    if re.fullmatch(pattern, module):
      timm_module = re.sub(pattern, template, module)
      break
  timm_module = re.sub(r"\+(\d)", lambda match: str(int(match[1]) + 1), timm_module)
  return f"{timm_module}.{LEAVES[leaf]}"


def timm_block_names(name: str, layers: int) -> list[str]:
  """Return timm's names of a parameter of a block, one for each layer of it."""
  pattern = r"(?:stage_(\d+)/)?(?:(entry)|(?:stack|encoder)/blocks)/(.*)"
  stage, entry, part = re.fullmatch(pattern, name).groups()
  turn = re.match(r"(?:self_attention|mlp)_(\d)/", part)
  part = re.sub(r"^(self_attention|mlp)_\d/", r"\1/", part)
  if part in TABLES:
    inner = TABLES[part]
  else:
    module, _, leaf = part.rpartition("/")
    inner = f"{PARTS[module]}.{LEAVES[leaf]}"
  if turn:  # Swin: two layers in turn
    return [f"layers.{int(stage) - 1}.blocks.{2 * n + int(turn[1])}.{inner}" for n in range(layers)]
  if stage:  # MViT: the first block of a later stage stands by itself
    first = 0 if entry or stage == "1" else 1
    return [f"stages.{int(stage) - 1}.blocks.{first + n}.{inner}" for n in range(layers)]
  return [f"blocks.{n}.{inner}" for n in range(layers)]


def parameters(family: str, variant: str) -> dict[str, nnx.Param]:
  """Return the abstract parameters of a model by name."""
  spec = {"name": family, "variant": variant}

  def make():
    return slots.make("config.model", spec, t5x_like.models, "Model", rngs=rngs())

  return params.named_params(jax.eval_shape(make))


def names_with_decay(named: dict[str, nnx.Param]) -> set[str]:
  """Return the names of the parameters that AdamW moves by weight decay alone."""
  optimizer = build_optimizer("adamw", lambda step: 1.0, weight_decay=0.5, undecayed="tables")
  small = {}  # one layer of each, whose axes are at most two long
  for name, param in named.items():
    shape = param.shape[1:] if param.axes[:1] == ("layers",) else param.shape
    small[name] = jnp.ones([min(n, 2) for n in shape])
  zeros = jax.tree.map(jnp.zeros_like, small)
  updates, _ = optimizer.update(zeros, optimizer.init(small), small, step=0)
  return {name for name, update in updates.items() if jnp.any(update != 0)}


TIMM_MODELS = [(model, timm_name) for model, (timm_name, _) in timm_groups.MODELS.items()]


@pytest.mark.parametrize("model, timm_name", TIMM_MODELS, ids=str)
def test_rates_and_decays_are_timms_by_name(model, timm_name):
  named = parameters(*model)
  groups = GOLDEN[timm_name]
  head = next(name for name in ("head", "head.fc", "fc") if f"{name}.weight" in groups)
  with_decay = names_with_decay(named)
  covered = set()
  for name, layers_below in layer_decay.layers_below_heads(named).items():
    names = timm_names(name, np.size(layers_below), head)
    covered.update(names)
    for timm_param, layer in zip(names, np.atleast_1d(layers_below), strict=True):
      rate, has_decay = groups[timm_param]
      np.testing.assert_allclose(timm_groups.DECAY**layer, rate, rtol=1e-4, err_msg=timm_param)
      assert (name in with_decay) == has_decay, (name, timm_param)
  assert covered == groups.keys()


def test_a_recipes_update_decays_each_layer_at_its_own_rate():
  """Without gradients an update is weight decay alone: rate of the step, rate of the layer, decay,
  parameter."""
  changes = [
    "model.variant=vit-tiny",
    "model.patch=4",
    "model.resolution=32",
    "schedule.warmup_steps=0",
    "optimizer.weight_decay=0.5",
  ]
  parts = build_parts(resolve(recipes.load("configs/vit/mae_classify.py", changes)))
  arrays = {name: jnp.ones(a.shape) for name, a in params.arrays(parts.model).items()}
  zeros = jax.tree.map(jnp.zeros_like, arrays)
  step = jnp.int32(1)
  state = parts.optimizer.init(arrays)
  updates, _ = parts.optimizer.update(zeros, state, arrays, step=step, accepted=True)
  rate = -0.5 * float(parts.schedule(step))
  shares = {name: np.asarray(update) / rate for name, update in updates.items()}
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
    share = shares["encoder/blocks/mlp/layer/wi/kernel"][layer]
    np.testing.assert_allclose(share, 0.75 ** (4 - layer), rtol=1e-5)


def test_the_layers_of_a_period_are_counted_one_by_one():
  layers_below = layer_decay.layers_below_heads(parameters("gemma2", "tiny"))
  turns = [layers_below[f"decoder/blocks/mlp_{turn}/in_norm/scale"] for turn in (0, 1)]
  np.testing.assert_array_equal(np.stack(turns, 1).reshape(-1), [4, 3, 2, 1])


@pytest.mark.parametrize(
  "family, variant, expected",
  [
    (
      "clip",
      "clip-tiny",
      {"image/patches/kernel": 5, "text/embed/table": 3, "projection/kernel": 0},
    ),
    ("dinov2", "dinov2-tiny-registers", {"registers": 5, "tokens": 5, "patches/kernel": 5}),
  ],
)
def test_the_layers_of_towers_are_counted_one_by_one(family, variant, expected):
  layers_below = layer_decay.layers_below_heads(parameters(family, variant))
  assert {name: layers_below[name] for name in expected} == expected
