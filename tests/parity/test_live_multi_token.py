"""DeepSeek-V3's block of the second token against `transformers`' (`make parity`)."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parity import cases, reference
from t5x_like.interop import hf

pytestmark = pytest.mark.parity
LAYERS = 3
EXPERTS = 6


def extended(path):
  """Adds the tensors of the block to a file, as published ones have them; returns them by their
  last names."""
  tensors = load_file(path)
  shapes = {
    n.split(".", 3)[3]: x.shape
    for n, x in tensors.items()
    if n.startswith(f"model.layers.{LAYERS - 1}.")
  }
  D = tensors["model.norm.weight"].size
  shapes |= dict.fromkeys(("enorm.weight", "hnorm.weight", "shared_head.norm.weight"), (D,)) | {
    "eh_proj.weight": (D, 2 * D)
  }
  block = {n: cases.tensor(f"model.layers.{LAYERS}.{n}", shape) for n, shape in shapes.items()}
  shared = {
    "embed_tokens.weight": "model.embed_tokens.weight",
    "shared_head.head.weight": "lm_head.weight",
  }
  more = block | {n: tensors[of] for n, of in shared.items()}
  save_file(
    tensors | {f"model.layers.{LAYERS}.{n}": x for n, x in more.items()},
    path,
    metadata={"format": "pt"},
  )
  return block


def theirs_of(block, config):
  """Their module with these tensors."""
  import torch
  from transformers.modeling_layers import MtpLayer
  from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

  made = MtpLayer(config, v3.DeepseekV3DecoderLayer, v3.DeepseekV3RMSNorm, LAYERS - 1).eval()
  own = ("enorm", "hnorm", "eh_proj")
  state = {
    n if n.split(".")[0] in own else f"mtp_block.{n}": x
    for n, x in block.items()
    if ".experts." not in n
  }
  state["post_norm.weight"] = state.pop("mtp_block.shared_head.norm.weight")
  gate, up, down = (
    [block[f"mlp.experts.{e}.{name}_proj.weight"] for e in range(EXPERTS)]
    for name in ("gate", "up", "down")
  )
  state["mtp_block.mlp.experts.gate_up_proj"] = np.stack(
    [np.concatenate(both) for both in zip(gate, up, strict=True)]
  )
  state["mtp_block.mlp.experts.down_proj"] = np.stack(down)
  made.load_state_dict({n: torch.tensor(x) for n, x in state.items()})
  return made


def test_same_logits_of_the_second_token_and_the_same_file_back(tmp_path):
  import torch

  case = cases.CASES["deepseek-v3"]
  model = reference.make(case, tmp_path / "theirs")
  block = extended(tmp_path / "theirs" / "model.safetensors")
  tokens = np.random.default_rng(0).integers(2, 64, (2, 11)).astype(np.int32)
  layer = theirs_of(block, model.config)
  with torch.no_grad():
    states = model.model(torch.tensor(tokens.astype(np.int64))).last_hidden_state[:, :-1]
    vectors = model.model.embed_tokens(torch.tensor(tokens[:, 1:].astype(np.int64)))
    places = torch.arange(1, 11)[None]
    angles = model.model.rotary_emb(vectors, places)
    hidden = torch.full((10, 10), float("-inf")).triu(1)[None, None].expand(2, 1, 10, 10)
    out = layer(vectors, states, angles, hidden, places, None)
    expected = model.lm_head(out[0] if isinstance(out, tuple) else out).numpy()

  ours = hf.load(str(tmp_path / "theirs"))
  assert ours.mtp_depth == 1
  got = jax.jit(lambda m, b: m(b)["next_logits"])(ours, {"decoder_input_tokens": tokens})[:, :-1]
  print(f"next_logits: {np.abs(got - expected).max():.2e} of {np.abs(expected).max():.3g}")
  assert np.abs(got - expected).max() <= 1e-4

  hf.save(ours, str(tmp_path / "back"))
  before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "back"))
  copies = {
    f"model.layers.{LAYERS}.{name}" for name in ("embed_tokens.weight", "shared_head.head.weight")
  }
  assert before.keys() - copies == after.keys() and all(
    np.array_equal(before[n], after[n]) for n in after
  )
