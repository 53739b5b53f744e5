"""Families on images that no converter reads, against timm and torchvision with the same
weights."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # before tensorflow, after which triton cannot be loaded
hybrid = pytest.importorskip("timm.models.vision_transformer_hybrid")

from timm.models.vision_transformer import VisionTransformer  # noqa: E402

from t5x_like.architectures.image_encoder import ImageVariant  # noqa: E402
from t5x_like.models import vit  # noqa: E402
from t5x_like.nn import params  # noqa: E402
from t5x_like.nn.dims import Dims  # noqa: E402

pytestmark = pytest.mark.parity
HEAD = {"name": "image_classification", "labels": 5}


def drawn(theirs) -> dict[str, np.ndarray]:
  """Give every tensor of a module random values and return them all; scales of norms are near 1."""
  torch.manual_seed(0)
  with torch.no_grad():
    for name, tensor in theirs.named_parameters():
      tensor.copy_(
        torch.randn_like(tensor) * (0.1 if tensor.ndim < 2 else tensor[0].numel() ** -0.5)
      )
      if tensor.ndim == 1 and "norm" in name and name.endswith("weight"):
        tensor.add_(1)
  return {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}


def agrees(ours, arrays: dict[str, np.ndarray], theirs, image: np.ndarray) -> None:
  """Check that the models give the same logits of images [B, Y, X, C] to 1e-4, and that the logits
  differ by image."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  shapes = jax.eval_shape(lambda key: ours(nnx.Rngs(params=key)), jax.random.key(0))
  named = params.named_params(shapes)
  assert {n: p.shape for n, p in named.items()} == {n: x.shape for n, x in arrays.items()}
  model = params.with_arrays(shapes, {n: jnp.asarray(x) for n, x in arrays.items()})
  found = np.asarray(jax.jit(lambda m, x: m({"image": x})["logits"])(model, image))
  with torch.no_grad():
    expected = theirs(torch.tensor(image).permute(0, 3, 1, 2)).numpy()
  assert np.abs(expected[0] - expected[1]).max() > 1e-2
  assert np.abs(found - expected).max() <= 1e-4 * max(1, np.abs(expected).max())


def dense(p: dict, theirs: str, ours: str) -> dict[str, np.ndarray]:
  """Return a linear layer's arrays."""
  kernel = p[f"{theirs}.weight"]
  found = {f"{ours}/kernel": kernel.reshape(len(kernel), -1).T}
  return found | ({f"{ours}/bias": p[f"{theirs}.bias"]} if f"{theirs}.bias" in p else {})


def norm(p: dict, theirs: str, ours: str) -> dict[str, np.ndarray]:
  return {f"{ours}/scale": p[f"{theirs}.weight"], f"{ours}/bias": p[f"{theirs}.bias"]}


def block(p: dict, at: str) -> dict[str, np.ndarray]:
  """Return a block of timm's ViT."""
  found = dense(p, f"{at}.attn.proj", "self_attention/layer/out")
  for n, part in enumerate(("query", "key", "value")):
    weight, bias = (np.split(p[f"{at}.attn.qkv.{kind}"], 3)[n] for kind in ("weight", "bias"))
    found |= {
      f"self_attention/layer/{part}/kernel": weight.T,
      f"self_attention/layer/{part}/bias": bias,
    }
  for theirs, ours in ("norm1", "self_attention"), ("norm2", "mlp"):
    found |= norm(p, f"{at}.{theirs}", f"{ours}/in_norm")
  return (
    found | dense(p, f"{at}.mlp.fc1", "mlp/layer/wi") | dense(p, f"{at}.mlp.fc2", "mlp/layer/wo")
  )


def test_a_hybrid_is_timms():
  depths = (2, 1)
  side = 56
  layers = 2
  backbone = hybrid._resnetv2(layers=depths)
  embed = functools.partial(hybrid.HybridEmbed, backbone=backbone)
  sizes = dict(embed_dim=16, depth=layers, num_heads=4, mlp_ratio=2, num_classes=5)
  theirs = VisionTransformer(img_size=side, patch_size=1, embed_layer=embed, **sizes)
  p = drawn(theirs)

  def unit(theirs: str, number: str, ours: str) -> dict[str, np.ndarray]:
    kernel = p[f"{theirs}.conv{number}.weight"].transpose(2, 3, 1, 0)
    return {f"backbone/{ours}/conv/kernel": kernel} | norm(
      p, f"{theirs}.norm{number}", f"backbone/{ours}/norm"
    )

  arrays = unit("patch_embed.backbone.stem", "", "stem")
  for stage, depth in enumerate(depths):
    for at in range(depth):
      name = f"patch_embed.backbone.stages.{stage}.blocks.{at}"
      ours = f"stages/{stage}/{at}"
      for number in range(3):
        arrays |= unit(name, str(number + 1), f"{ours}/units/{number}")
      arrays |= unit(f"{name}.downsample", "", f"{ours}/shortcut") if at == 0 else {}
  blocks = [block(p, f"blocks.{at}") for at in range(layers)]
  arrays |= {
    f"encoder/blocks/{name}": np.stack([each[name] for each in blocks]) for name in blocks[0]
  }
  arrays |= {"tokens": p["cls_token"][0], "inputs/position/table": p["pos_embed"][0]}
  arrays |= (
    dense(p, "patch_embed.proj", "patches")
    | dense(p, "head", "head/out")
    | norm(p, "norm", "encoder/final_norm")
  )
  stem = {"name": "bit", "widths": (256, 512), "depths": depths}
  variant = ImageVariant(
    Dims(16, 4, 4, 4, 32, layers), vit.DESIGN, 8, side, head=HEAD, backbone=stem
  )
  image = np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)
  agrees(functools.partial(vit.Model, variant=variant), arrays, theirs.eval(), image)


def test_the_first_mvit_is_torchvisions_over_one_frame():
  """Blocks of torchvision's MViT for videos, with kernels of one frame."""
  mvit = pytest.importorskip("torchvision.models.video.mvit")
  from t5x_like.models import mvit_v1

  side = 44
  depths = (1, 3, 1)
  heads = (1, 2, 4)
  embed = 8
  kv_stride = 2
  settings = []
  order = []
  for stage, depth in enumerate(depths):
    for at in range(depth):
      D = embed << stage
      last = at == depth - 1 and stage < len(depths) - 1
      pooled = stage > 0 and at == 0
      order.append((stage, at))
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
  theirs = mvit.MViT((side, side), 1, settings, num_classes=5, **v1, **patch)
  p = drawn(theirs.eval())
  arrays = {
    "patches/kernel": p["conv_proj.weight"][:, :, 0].transpose(2, 3, 1, 0),
    "patches/bias": p["conv_proj.bias"],
  }
  stacks = {}
  arrays["patches/tokens"] = p["pos_encoding.class_token"][None]
  cells = p["pos_encoding.spatial_pos"] + p["pos_encoding.temporal_pos"]
  arrays["inputs/position/table"] = np.concatenate([p["pos_encoding.class_pos"][None], cells])
  for number, (stage, at) in enumerate(order):
    t = f"blocks.{number}"
    found = norm(p, f"{t}.norm1", "self_attention/in_norm") | norm(p, f"{t}.norm2", "mlp/in_norm")
    for n, part in enumerate(("query", "key", "value")):
      weight, bias = (np.split(p[f"{t}.attn.qkv.{kind}"], 3)[n] for kind in ("weight", "bias"))
      found |= {
        f"self_attention/layer/{part}/kernel": weight.T,
        f"self_attention/layer/{part}/bias": bias,
      }
      pool = f"{t}.attn.pool_{part[0]}"
      if f"{pool}.pool.weight" in p:
        found[f"self_attention/layer/pool_{part}/kernel"] = p[f"{pool}.pool.weight"][
          :, 0, 0
        ].transpose(1, 2, 0)
        found |= norm(p, f"{pool}.norm_act.0", f"self_attention/layer/pool_{part}/norm")
    found |= dense(p, f"{t}.attn.project.0", "self_attention/layer/out")
    found |= dense(p, f"{t}.mlp.0", "mlp/layer/wi") | dense(p, f"{t}.mlp.3", "mlp/layer/wo")
    found |= dense(p, f"{t}.project", "mlp/shortcut") if f"{t}.project.weight" in p else {}
    inside = (
      "entry" if stage and not at else "last" if f"{t}.project.weight" in p else "stack/blocks"
    )
    name = f"stage_{stage + 1}/{inside}/"
    if inside == "stack/blocks":
      for key, x in found.items():
        stacks.setdefault(name + key, []).append(x)
    else:
      arrays |= {name + key: x for key, x in found.items()}
  arrays |= {name: np.stack(each) for name, each in stacks.items()}
  arrays |= norm(p, "norm", "final_norm") | dense(p, "head.1", "head/out")
  variant = mvit_v1.FirstPoolingVariant(
    embed, depths, heads, mvit_v1.DESIGN, resolution=side, kv_stride=kv_stride, head=HEAD
  )
  image = np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)
  whole = lambda x: theirs(x[:, :, None])  # noqa: E731
  agrees(functools.partial(mvit_v1.Model, variant=variant), arrays, whole, image)


def test_the_second_mvit_is_timms():
  mvitv2 = pytest.importorskip("timm.models.mvitv2")
  from t5x_like.architectures.pooling_encoder import PoolingVariant
  from t5x_like.models import mvit

  side = 64
  depths = (1, 3)
  heads = (2, 4)
  embed = 8
  kv_stride = 2
  strides = dict(stride_q=((1, 1), (2, 2)), stride_kv_adaptive=(kv_stride, kv_stride))
  sizes = mvitv2.MultiScaleVitCfg(depths=depths, embed_dim=embed, num_heads=heads[0], **strides)
  theirs = mvitv2.MultiScaleVit(sizes, img_size=(side, side), num_classes=5).eval()
  p = drawn(theirs)
  arrays = {"patches/kernel": p["patch_embed.proj.weight"].transpose(2, 3, 1, 0)}
  arrays["patches/bias"] = p["patch_embed.proj.bias"]
  stacks = {}
  for stage, depth in enumerate(depths):
    for at in range(depth):
      t = f"stages.{stage}.blocks.{at}"
      found = block(p, t)
      for part in ("query", "key", "value"):
        pool = f"self_attention/layer/pool_{part}"
        found[f"{pool}/kernel"] = p[f"{t}.attn.pool_{part[0]}.weight"][:, 0].transpose(1, 2, 0)
        found |= norm(p, f"{t}.attn.norm_{part[0]}", f"{pool}/norm")
      for theirs_, ours in ("rel_pos_h", "rows"), ("rel_pos_w", "columns"):
        found[f"self_attention/layer/position/{ours}"] = p[f"{t}.attn.{theirs_}"]
      if stage and not at:
        found |= dense(p, f"{t}.shortcut_proj_attn", "self_attention/shortcut")
        arrays |= {f"stage_{stage + 1}/entry/{name}": x for name, x in found.items()}
        continue
      for name, x in found.items():
        stacks.setdefault(f"stage_{stage + 1}/stack/blocks/{name}", []).append(x)
  arrays |= {name: np.stack(each) for name, each in stacks.items()}
  arrays |= norm(p, "norm", "final_norm") | dense(p, "head.fc", "head/out")
  variant = PoolingVariant(
    embed, depths, heads, mvit.DESIGN, resolution=side, kv_stride=kv_stride, head=HEAD
  )
  image = np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)
  agrees(functools.partial(mvit.Model, variant=variant), arrays, theirs, image)


def test_a_coatnet_is_timms_with_layer_norm():
  """timm's blocks with the paper's strides and pools, and the norms that are ours."""
  maxxvit = pytest.importorskip("timm.models.maxxvit")
  from t5x_like.architectures.hybrid_encoder import HybridVariant
  from t5x_like.models import coatnet

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
  theirs = maxxvit.MaxxVit(sizes, img_size=side, num_classes=5).eval()
  p = drawn(theirs)
  arrays = {}
  stacks = {}
  number = 0
  for theirs_, ours in ("conv1", "first"), ("conv2", "second"):
    arrays[f"{ours}/kernel"] = p[f"stem.{theirs_}.weight"].transpose(2, 3, 1, 0)
    arrays[f"{ours}/bias"] = p[f"stem.{theirs_}.bias"]
  arrays |= (
    norm(p, "stem.norm1", "first_norm") | norm(p, "norm", "norm") | dense(p, "head.fc", "head/out")
  )
  for stage, depth in enumerate(depths):
    for at in range(depth):
      t = f"stages.{stage}.blocks.{at}"
      project = f"{t}.shortcut.expand"
      if stage < 2:
        o = f"convolutions/{number}"
        names = {"pre_norm": "in_norm", "norm1": "expand_norm", "norm2": "depthwise_norm"}
        for theirs_, ours in names.items():
          arrays |= norm(p, f"{t}.{theirs_}", f"{o}/{ours}")
        names = {
          "conv1_1x1": "expand",
          "se.fc1": "gate/down",
          "se.fc2": "gate/up",
          "conv3_1x1": "shrink",
        }
        for theirs_, ours in names.items():
          arrays |= dense(p, f"{t}.{theirs_}", f"{o}/{ours}")
        arrays[f"{o}/depthwise/kernel"] = p[f"{t}.conv2_kxk.weight"][:, 0].transpose(1, 2, 0)
        arrays |= dense(p, project, f"{o}/project") if at == 0 else {}
        number += 1
        continue
      table = p[f"{t}.attn.rel_pos.relative_position_bias_table"]
      found = {"self_attention/layer/position/table": table} | dense(
        p, f"{t}.attn.proj", "self_attention/layer/out"
      )
      for n, part in enumerate(("query", "key", "value")):
        # by head, then by part
        weight, bias = (p[f"{t}.attn.qkv.{kind}"] for kind in ("weight", "bias"))
        weight, bias = (
          x.reshape(-1, 3, 4, x[0].size)[:, n].reshape(-1, x[0].size) for x in (weight, bias)
        )
        name = f"self_attention/layer/{part}"
        found |= {f"{name}/kernel": weight.T, f"{name}/bias": bias[:, 0]}
      found |= norm(p, f"{t}.norm1.norm" if at == 0 else f"{t}.norm1", "self_attention/in_norm")
      found |= norm(p, f"{t}.norm2", "mlp/in_norm")
      found |= dense(p, f"{t}.mlp.fc1", "mlp/layer/wi") | dense(p, f"{t}.mlp.fc2", "mlp/layer/wo")
      o = "third" if stage == 2 else "fourth"
      if at == 0:
        entry = {"self_attention/layer": "attention", "self_attention/in_norm": "norm"}
        for name, x in found.items():
          start = next((start for start in entry if name.startswith(start)), None)
          arrays[f"{o}/{name if start is None else entry[start] + name.removeprefix(start)}"] = x
        arrays |= dense(p, project, f"{o}/project")
        continue
      for name, x in found.items():
        stacks.setdefault(f"{o}/stack/blocks/{name}", []).append(x)
  arrays |= {name: np.stack(each) for name, each in stacks.items()}
  variant = HybridVariant(4, widths, depths, coatnet.DESIGN, 4, resolution=side, head=HEAD)
  image = np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)
  agrees(functools.partial(coatnet.Model, variant=variant), arrays, theirs, image)
