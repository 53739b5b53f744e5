"""Image families that no converter reads have the logits of timm and torchvision."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # before tensorflow, after which triton cannot be loaded
hybrid = pytest.importorskip("timm.models.vision_transformer_hybrid")

from timm.models.vision_transformer import VisionTransformer  # noqa: E402

from t5x_like.architectures.image_encoder import ImageVariant  # noqa: E402
from t5x_like.models import vit  # noqa: E402
from t5x_like.nn.dims import Dims  # noqa: E402
from tests.parity.vision import (  # noqa: E402
  HEAD,
  block,
  check_logits,
  dense,
  norm,
  random_images,
  randomize,
)

pytestmark = pytest.mark.parity


def test_a_hybrid_has_timms_logits():
  depths = (2, 1)
  side = 56
  layers = 2
  backbone = hybrid._resnetv2(layers=depths)
  embed = functools.partial(hybrid.HybridEmbed, backbone=backbone)
  sizes = dict(embed_dim=16, depth=layers, num_heads=4, mlp_ratio=2, num_classes=5)
  timm_model = VisionTransformer(img_size=side, patch_size=1, embed_layer=embed, **sizes).eval()
  p = randomize(timm_model)

  def unit(timm_name: str, number: str, our_name: str) -> dict[str, np.ndarray]:
    kernel = p[f"{timm_name}.conv{number}.weight"].transpose(2, 3, 1, 0)
    arrays = norm(p, f"{timm_name}.norm{number}", f"backbone/{our_name}/norm")
    return arrays | {f"backbone/{our_name}/conv/kernel": kernel}

  arrays = unit("patch_embed.backbone.stem", "", "stem")
  for stage, depth in enumerate(depths):
    for i in range(depth):
      timm_name = f"patch_embed.backbone.stages.{stage}.blocks.{i}"
      our_name = f"stages/{stage}/{i}"
      for number in range(3):
        arrays |= unit(timm_name, str(number + 1), f"{our_name}/units/{number}")
      if i == 0:
        arrays |= unit(f"{timm_name}.downsample", "", f"{our_name}/shortcut")
  blocks = [block(p, f"blocks.{i}") for i in range(layers)]
  for name in blocks[0]:
    arrays[f"encoder/blocks/{name}"] = np.stack(
      [arrays_of_block[name] for arrays_of_block in blocks]
    )
  arrays |= {"tokens": p["cls_token"][0], "inputs/position/table": p["pos_embed"][0]}
  arrays |= dense(p, "patch_embed.proj", "patches")
  arrays |= dense(p, "head", "head/out")
  arrays |= norm(p, "norm", "encoder/final_norm")
  stem = {"name": "bit", "widths": (256, 512), "depths": depths}
  variant = ImageVariant(
    Dims(16, 4, 4, 4, 32, layers), vit.DESIGN, 8, side, head=HEAD, backbone=stem
  )
  build = functools.partial(vit.Model, variant=variant)
  check_logits(build, arrays, timm_model, random_images(side))
