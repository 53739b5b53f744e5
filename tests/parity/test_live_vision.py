"""Families on images that no converter reads, against timm and torchvision with the same weights."""

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
      tensor.copy_(torch.randn_like(tensor) * (0.1 if tensor.ndim < 2 else tensor[0].numel() ** -0.5))
      if tensor.ndim == 1 and "norm" in name and name.endswith("weight"):
        tensor.add_(1)
  return {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}


def agrees(ours, arrays: dict[str, np.ndarray], theirs, image: np.ndarray) -> None:
  """Check that the models give the same logits of images [B, Y, X, C] to 1e-4, and that the logits differ by image."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  shapes = jax.eval_shape(lambda key: ours(nnx.Rngs(params=key)), jax.random.key(0))
  named = params.named_params(shapes)
  assert {n: p.shape for n, p in named.items()} == {n: x.shape for n, x in arrays.items()}
  model = params.with_arrays(shapes, {n: jnp.asarray(x) for n, x in arrays.items()})
  found = np.asarray(jax.jit(lambda m, x: m({"image": x})["logits"])(model, image))
  with torch.no_grad():
    expected = theirs.eval()(torch.tensor(image).permute(0, 3, 1, 2)).numpy()
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
    found |= {f"self_attention/layer/{part}/kernel": weight.T, f"self_attention/layer/{part}/bias": bias}
  for theirs, ours in ("norm1", "self_attention"), ("norm2", "mlp"):
    found |= norm(p, f"{at}.{theirs}", f"{ours}/in_norm")
  return found | dense(p, f"{at}.mlp.fc1", "mlp/layer/wi") | dense(p, f"{at}.mlp.fc2", "mlp/layer/wo")


def test_a_hybrid_is_timms():
  depths, side, layers = (2, 1), 56, 2
  backbone = hybrid._resnetv2(layers=depths)
  embed = functools.partial(hybrid.HybridEmbed, backbone=backbone)
  sizes = dict(embed_dim=16, depth=layers, num_heads=4, mlp_ratio=2, num_classes=5)
  theirs = VisionTransformer(img_size=side, patch_size=1, embed_layer=embed, **sizes)
  p = drawn(theirs)

  def unit(theirs: str, number: str, ours: str) -> dict[str, np.ndarray]:
    kernel = p[f"{theirs}.conv{number}.weight"].transpose(2, 3, 1, 0)
    return {f"backbone/{ours}/conv/kernel": kernel} | norm(p, f"{theirs}.norm{number}", f"backbone/{ours}/norm")

  arrays = unit("patch_embed.backbone.stem", "", "stem")
  for stage, depth in enumerate(depths):
    for at in range(depth):
      name, ours = f"patch_embed.backbone.stages.{stage}.blocks.{at}", f"stages/{stage}/{at}"
      for number in range(3):
        arrays |= unit(name, str(number + 1), f"{ours}/units/{number}")
      arrays |= unit(f"{name}.downsample", "", f"{ours}/shortcut") if at == 0 else {}
  blocks = [block(p, f"blocks.{at}") for at in range(layers)]
  arrays |= {f"encoder/blocks/{name}": np.stack([each[name] for each in blocks]) for name in blocks[0]}
  arrays |= {"tokens": p["cls_token"][0], "inputs/position/table": p["pos_embed"][0]}
  arrays |= (
    dense(p, "patch_embed.proj", "patches") | dense(p, "head", "head/out") | norm(p, "norm", "encoder/final_norm")
  )
  stem = {"name": "bit", "widths": (256, 512), "depths": depths}
  variant = ImageVariant(Dims(16, 4, 4, 4, 32, layers), vit.DESIGN, 8, side, head=HEAD, backbone=stem)
  image = np.random.default_rng(0).standard_normal((2, side, side, 3)).astype(np.float32)
  agrees(functools.partial(vit.Model, variant=variant), arrays, theirs, image)
