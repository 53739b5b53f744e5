"""Compare image families with models of torch: their arrays under our names, and their logits."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

from t5x_like.nn import params

HEAD = {"name": "image_classification", "labels": 5}


def randomize(torch_model) -> dict[str, np.ndarray]:
  """Give every tensor of a module random values and return them all; scales of norms are near 1."""
  torch.manual_seed(0)
  with torch.no_grad():
    for name, tensor in torch_model.named_parameters():
      stddev = 0.1 if tensor.ndim < 2 else tensor[0].numel() ** -0.5
      tensor.copy_(torch.randn_like(tensor) * stddev)
      if tensor.ndim == 1 and "norm" in name and name.endswith("weight"):
        tensor.add_(1)
  return {name: tensor.numpy() for name, tensor in torch_model.state_dict().items()}


def check_logits(build, arrays: dict[str, np.ndarray], torch_model, image: np.ndarray) -> None:
  """Check that the models give the same logits of images [B, Y, X, C] to 1e-4, and that the logits
  differ by image."""
  shapes = jax.eval_shape(lambda key: build(nnx.Rngs(params=key)), jax.random.key(0))
  named = params.named_params(shapes)
  assert {n: p.shape for n, p in named.items()} == {n: x.shape for n, x in arrays.items()}
  model = params.with_arrays(shapes, {n: jnp.asarray(x) for n, x in arrays.items()})
  logits = np.asarray(jax.jit(lambda m, x: m({"image": x})["logits"])(model, image))
  with torch.no_grad():
    expected = torch_model(torch.tensor(image).permute(0, 3, 1, 2)).numpy()
  assert np.abs(expected[0] - expected[1]).max() > 1e-2
  assert np.abs(logits - expected).max() <= 1e-4 * max(1, np.abs(expected).max())


def dense(p: dict, torch_name: str, our_name: str) -> dict[str, np.ndarray]:
  """Return the arrays of a linear layer or a convolution by its pixels, under our names."""
  kernel = p[f"{torch_name}.weight"]
  arrays = {f"{our_name}/kernel": kernel.reshape(len(kernel), -1).T}
  if f"{torch_name}.bias" in p:
    arrays[f"{our_name}/bias"] = p[f"{torch_name}.bias"]
  return arrays


def norm(p: dict, torch_name: str, our_name: str) -> dict[str, np.ndarray]:
  """Return the arrays of a layer norm or group norm, under our names."""
  return {
    f"{our_name}/scale": p[f"{torch_name}.weight"],
    f"{our_name}/bias": p[f"{torch_name}.bias"],
  }


def attention_inputs(p: dict, torch_name: str) -> dict[str, np.ndarray]:
  """Return the query, key and value projections that torch stores as one layer, `torch_name`."""
  arrays = {}
  for n, part in enumerate(("query", "key", "value")):
    weight = np.split(p[f"{torch_name}.weight"], 3)[n]
    arrays[f"self_attention/layer/{part}/kernel"] = weight.T
    arrays[f"self_attention/layer/{part}/bias"] = np.split(p[f"{torch_name}.bias"], 3)[n]
  return arrays


def block(p: dict, torch_name: str) -> dict[str, np.ndarray]:
  """Return the arrays of a block of timm's ViT, under our names."""
  arrays = attention_inputs(p, f"{torch_name}.attn.qkv")
  arrays |= dense(p, f"{torch_name}.attn.proj", "self_attention/layer/out")
  arrays |= norm(p, f"{torch_name}.norm1", "self_attention/in_norm")
  arrays |= norm(p, f"{torch_name}.norm2", "mlp/in_norm")
  arrays |= dense(p, f"{torch_name}.mlp.fc1", "mlp/layer/wi")
  return arrays | dense(p, f"{torch_name}.mlp.fc2", "mlp/layer/wo")


def random_images(side: int) -> np.ndarray:
  generator = np.random.default_rng(0)
  return generator.standard_normal((2, side, side, 3)).astype(np.float32)
