"""MViT and CoAtNet have the logits of torchvision and timm."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # before tensorflow, after which triton cannot be loaded
pytest.importorskip("timm")

from tests.parity.vision import (  # noqa: E402
  HEAD,
  attention_inputs,
  block,
  check_logits,
  dense,
  norm,
  random_images,
  randomize,
)

pytestmark = pytest.mark.parity


def test_the_first_mvit_has_torchvisions_logits_of_one_frame():
  """Blocks of torchvision's MViT for videos, with kernels of one frame."""
  mvit = pytest.importorskip("torchvision.models.video.mvit")
  from t5x_like.contrib.multiscale.models import mvit_v1

  side = 44
  depths = (1, 3, 1)
  heads = (1, 2, 4)
  embed = 8
  kv_stride = 2
  settings = []
  order = []
  for stage, depth in enumerate(depths):
    for i in range(depth):
      D = embed << stage
      last = i == depth - 1 and stage < len(depths) - 1
      pooled = stage > 0 and i == 0
      order.append((stage, i))
      settings.append(
        mvit.MSBlockConfig(
          num_heads=heads[stage],
          input_channels=D,
          output_channels=D * 2 if last else D,
          kernel_q=[1, 3, 3] if pooled else [],
          kernel_kv=[1, 3, 3],
          stride_q=[1, 2, 2] if pooled else [],
          stride_kv=[1, *[max(kv_stride >> stage, 1)] * 2],
        )
      )
  patch = dict(
    patch_embed_kernel=(1, 7, 7), patch_embed_stride=(1, 4, 4), patch_embed_padding=(0, 3, 3)
  )
  v1 = dict(
    residual_pool=False, residual_with_cls_embed=False, rel_pos_embed=False, proj_after_attn=False
  )
  torch_model = mvit.MViT((side, side), 1, settings, num_classes=5, **v1, **patch).eval()
  p = randomize(torch_model)
  arrays = {
    "patches/kernel": p["conv_proj.weight"][:, :, 0].transpose(2, 3, 1, 0),
    "patches/bias": p["conv_proj.bias"],
  }
  stacks = {}
  arrays["patches/tokens"] = p["pos_encoding.class_token"][None]
  cells = p["pos_encoding.spatial_pos"] + p["pos_encoding.temporal_pos"]
  arrays["inputs/position/table"] = np.concatenate([p["pos_encoding.class_pos"][None], cells])
  for number, (stage, i) in enumerate(order):
    torch_name = f"blocks.{number}"
    block_arrays = first_mvit_block(p, torch_name)
    if stage > 0 and i == 0:
      prefix = f"stage_{stage + 1}/entry"
    elif f"{torch_name}.project.weight" in p:
      prefix = f"stage_{stage + 1}/last"
    else:
      for name, array in block_arrays.items():
        stacks.setdefault(f"stage_{stage + 1}/stack/blocks/{name}", []).append(array)
      continue
    for name, array in block_arrays.items():
      arrays[f"{prefix}/{name}"] = array
  arrays |= {name: np.stack(layers) for name, layers in stacks.items()}
  arrays |= norm(p, "norm", "final_norm") | dense(p, "head.1", "head/out")
  variant = mvit_v1.FirstPoolingVariant(
    embed, depths, heads, mvit_v1.DESIGN, resolution=side, kv_stride=kv_stride, head=HEAD
  )

  def run_one_frame(image_BCYX):
    return torch_model(image_BCYX[:, :, None])

  build = functools.partial(mvit_v1.Model, variant=variant)
  check_logits(build, arrays, run_one_frame, random_images(side))


def first_mvit_block(p: dict, torch_name: str) -> dict[str, np.ndarray]:
  """Return the arrays of a block of torchvision's MViT, under our names."""
  arrays = attention_inputs(p, f"{torch_name}.attn.qkv")
  for part in ("query", "key", "value"):
    torch_pool = f"{torch_name}.attn.pool_{part[0]}"
    our_pool = f"self_attention/layer/pool_{part}"
    if f"{torch_pool}.pool.weight" in p:
      kernel_DYX = p[f"{torch_pool}.pool.weight"][:, 0, 0]
      arrays[f"{our_pool}/kernel"] = kernel_DYX.transpose(1, 2, 0)
      arrays |= norm(p, f"{torch_pool}.norm_act.0", f"{our_pool}/norm")
  arrays |= norm(p, f"{torch_name}.norm1", "self_attention/in_norm")
  arrays |= norm(p, f"{torch_name}.norm2", "mlp/in_norm")
  arrays |= dense(p, f"{torch_name}.attn.project.0", "self_attention/layer/out")
  arrays |= dense(p, f"{torch_name}.mlp.0", "mlp/layer/wi")
  arrays |= dense(p, f"{torch_name}.mlp.3", "mlp/layer/wo")
  if f"{torch_name}.project.weight" in p:
    arrays |= dense(p, f"{torch_name}.project", "mlp/shortcut")
  return arrays


def test_the_second_mvit_has_timms_logits():
  mvitv2 = pytest.importorskip("timm.models.mvitv2")
  from t5x_like.contrib.multiscale.models import mvit
  from t5x_like.contrib.multiscale.pooling_encoder import PoolingVariant

  side = 64
  depths = (1, 3)
  heads = (2, 4)
  embed = 8
  kv_stride = 2
  strides = dict(stride_q=((1, 1), (2, 2)), stride_kv_adaptive=(kv_stride, kv_stride))
  sizes = mvitv2.MultiScaleVitCfg(depths=depths, embed_dim=embed, num_heads=heads[0], **strides)
  timm_model = mvitv2.MultiScaleVit(sizes, img_size=(side, side), num_classes=5).eval()
  p = randomize(timm_model)
  arrays = {"patches/kernel": p["patch_embed.proj.weight"].transpose(2, 3, 1, 0)}
  arrays["patches/bias"] = p["patch_embed.proj.bias"]
  stacks = {}
  for stage, depth in enumerate(depths):
    for i in range(depth):
      t = f"stages.{stage}.blocks.{i}"
      block_arrays = block(p, t)
      for part in ("query", "key", "value"):
        pool = f"self_attention/layer/pool_{part}"
        kernel_DYX = p[f"{t}.attn.pool_{part[0]}.weight"][:, 0]
        block_arrays[f"{pool}/kernel"] = kernel_DYX.transpose(1, 2, 0)
        block_arrays |= norm(p, f"{t}.attn.norm_{part[0]}", f"{pool}/norm")
      block_arrays["self_attention/layer/position/rows"] = p[f"{t}.attn.rel_pos_h"]
      block_arrays["self_attention/layer/position/columns"] = p[f"{t}.attn.rel_pos_w"]
      if stage > 0 and i == 0:
        block_arrays |= dense(p, f"{t}.shortcut_proj_attn", "self_attention/shortcut")
        for name, array in block_arrays.items():
          arrays[f"stage_{stage + 1}/entry/{name}"] = array
        continue
      for name, array in block_arrays.items():
        stacks.setdefault(f"stage_{stage + 1}/stack/blocks/{name}", []).append(array)
  arrays |= {name: np.stack(layers) for name, layers in stacks.items()}
  arrays |= norm(p, "norm", "final_norm") | dense(p, "head.fc", "head/out")
  variant = PoolingVariant(
    embed, depths, heads, mvit.DESIGN, resolution=side, kv_stride=kv_stride, head=HEAD
  )
  build = functools.partial(mvit.Model, variant=variant)
  check_logits(build, arrays, timm_model, random_images(side))


def coatnet_attention_inputs(p: dict, timm_name: str) -> dict[str, np.ndarray]:
  """Return the projections that timm stores as one layer, ordered by head, then by part."""
  head_dim = 4
  arrays = {}
  for n, part in enumerate(("query", "key", "value")):
    for kind in ("weight", "bias"):
      joint = p[f"{timm_name}.attn.qkv.{kind}"]
      columns = joint[0].size
      split = joint.reshape(-1, 3, head_dim, columns)[:, n].reshape(-1, columns)
      if kind == "weight":
        arrays[f"self_attention/layer/{part}/kernel"] = split.T
      else:
        arrays[f"self_attention/layer/{part}/bias"] = split[:, 0]
  return arrays


def coatnet_convolution(p: dict, timm_name: str) -> dict[str, np.ndarray]:
  """Return the arrays of an inverted bottleneck with squeeze and excitation, under our names."""
  arrays = norm(p, f"{timm_name}.pre_norm", "in_norm")
  arrays |= norm(p, f"{timm_name}.norm1", "expand_norm")
  arrays |= norm(p, f"{timm_name}.norm2", "depthwise_norm")
  arrays |= dense(p, f"{timm_name}.conv1_1x1", "expand")
  arrays |= dense(p, f"{timm_name}.se.fc1", "gate/down")
  arrays |= dense(p, f"{timm_name}.se.fc2", "gate/up")
  arrays |= dense(p, f"{timm_name}.conv3_1x1", "shrink")
  arrays["depthwise/kernel"] = p[f"{timm_name}.conv2_kxk.weight"][:, 0].transpose(1, 2, 0)
  return arrays


def test_a_coatnet_has_the_logits_of_timm_with_layer_norm():
  """timm's blocks take the paper's strides and pools, and our norms."""
  maxxvit = pytest.importorskip("timm.models.maxxvit")
  from t5x_like.contrib.multiscale.hybrid_encoder import HybridVariant
  from t5x_like.contrib.multiscale.models import coatnet

  side = 64
  widths = (8, 12, 16, 24)
  depths = (1, 2, 3, 1)
  convolutions = maxxvit.MaxxVitConvCfg(
    stride_mode="1x1",
    pool_type="max2",
    attn_act_layer="gelu",
    norm_layer="layernorm2d",
    norm_eps=1e-5,
  )
  attention = maxxvit.MaxxVitTransformerCfg(dim_head=4, pool_type="max2", norm_eps=1e-5)
  sizes = maxxvit.MaxxVitCfg(widths, depths, stem_width=4, stem_bias=True)
  sizes.conv_cfg = convolutions
  sizes.transformer_cfg = attention
  timm_model = maxxvit.MaxxVit(sizes, img_size=side, num_classes=5).eval()
  p = randomize(timm_model)
  arrays = {}
  stacks = {}
  number = 0
  for timm_name, our_name in ("conv1", "first"), ("conv2", "second"):
    arrays[f"{our_name}/kernel"] = p[f"stem.{timm_name}.weight"].transpose(2, 3, 1, 0)
    arrays[f"{our_name}/bias"] = p[f"stem.{timm_name}.bias"]
  arrays |= norm(p, "stem.norm1", "first_norm")
  arrays |= norm(p, "norm", "norm")
  arrays |= dense(p, "head.fc", "head/out")
  for stage, depth in enumerate(depths):
    for i in range(depth):
      t = f"stages.{stage}.blocks.{i}"
      project = f"{t}.shortcut.expand"
      if stage < 2:
        for name, array in coatnet_convolution(p, t).items():
          arrays[f"convolutions/{number}/{name}"] = array
        if i == 0:
          arrays |= dense(p, project, f"convolutions/{number}/project")
        number += 1
        continue
      block_arrays = coatnet_attention_inputs(p, t)
      table = p[f"{t}.attn.rel_pos.relative_position_bias_table"]
      block_arrays["self_attention/layer/position/table"] = table
      block_arrays |= dense(p, f"{t}.attn.proj", "self_attention/layer/out")
      timm_norm = f"{t}.norm1.norm" if i == 0 else f"{t}.norm1"
      block_arrays |= norm(p, timm_norm, "self_attention/in_norm")
      block_arrays |= norm(p, f"{t}.norm2", "mlp/in_norm")
      block_arrays |= dense(p, f"{t}.mlp.fc1", "mlp/layer/wi")
      block_arrays |= dense(p, f"{t}.mlp.fc2", "mlp/layer/wo")
      our_stage = "third" if stage == 2 else "fourth"
      if i == 0:  # the first block has its own module with shorter names
        for name, array in block_arrays.items():
          name = name.replace("self_attention/layer", "attention")
          name = name.replace("self_attention/in_norm", "norm")
          arrays[f"{our_stage}/{name}"] = array
        arrays |= dense(p, project, f"{our_stage}/project")
        continue
      for name, array in block_arrays.items():
        stacks.setdefault(f"{our_stage}/stack/blocks/{name}", []).append(array)
  arrays |= {name: np.stack(layers) for name, layers in stacks.items()}
  variant = HybridVariant(4, widths, depths, coatnet.DESIGN, 4, resolution=side, head=HEAD)
  build = functools.partial(coatnet.Model, variant=variant)
  check_logits(build, arrays, timm_model, random_images(side))
