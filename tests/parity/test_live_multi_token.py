"""DeepSeek-V3's block of the second token has the logits of `transformers`."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from parity import cases, reference
from t5x_like.interop import hf

pytestmark = pytest.mark.parity
LAYERS = 3
EXPERTS = 6


def add_block(path):
  """Add the block's tensors to a file, as published files have them; return them by short names.

  The block is a layer like the last one, with two norms and a projection of its inputs and a norm
  of its output; its embeddings and head are copies of the model's.
  """
  tensors = load_file(path)
  D = tensors["model.norm.weight"].size
  shapes = {
    "enorm.weight": (D,),
    "hnorm.weight": (D,),
    "shared_head.norm.weight": (D,),
    "eh_proj.weight": (D, 2 * D),
  }
  last_layer = f"model.layers.{LAYERS - 1}."
  for name, array in tensors.items():
    if name.startswith(last_layer):
      shapes[name.removeprefix(last_layer)] = array.shape
  prefix = f"model.layers.{LAYERS}"
  block = {name: cases.tensor(f"{prefix}.{name}", shape) for name, shape in shapes.items()}
  tensors |= {f"{prefix}.{name}": array for name, array in block.items()}
  tensors[f"{prefix}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
  tensors[f"{prefix}.shared_head.head.weight"] = tensors["lm_head.weight"]
  save_file(tensors, path, metadata={"format": "pt"})
  return block


def make_torch_block(block, config):
  """Return the library's module with the tensors of `block`."""
  import torch
  from transformers.modeling_layers import MtpLayer
  from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3

  module = MtpLayer(config, v3.DeepseekV3DecoderLayer, v3.DeepseekV3RMSNorm, LAYERS - 1).eval()
  state = {}
  for name, array in block.items():
    if name.split(".")[0] in ("enorm", "hnorm", "eh_proj"):
      state[name] = array
    elif ".experts." not in name:
      state[f"mtp_block.{name}"] = array
  state["post_norm.weight"] = state.pop("mtp_block.shared_head.norm.weight")
  gate_up = []
  down = []
  for e in range(EXPERTS):
    gate = block[f"mlp.experts.{e}.gate_proj.weight"]
    up = block[f"mlp.experts.{e}.up_proj.weight"]
    gate_up.append(np.concatenate([gate, up]))
    down.append(block[f"mlp.experts.{e}.down_proj.weight"])
  state["mtp_block.mlp.experts.gate_up_proj"] = np.stack(gate_up)
  state["mtp_block.mlp.experts.down_proj"] = np.stack(down)
  module.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
  return module


def test_same_logits_of_the_second_token_and_the_same_file_back(tmp_path):
  import torch

  case = cases.CASES["deepseek-v3"]
  original = tmp_path / "original"
  exported = tmp_path / "exported"
  hf_model = reference.make(case, original)
  block = add_block(original / "model.safetensors")
  B = 2
  T = 10
  tokens = np.random.default_rng(0).integers(2, 64, (B, T + 1)).astype(np.int32)
  hf_tokens = torch.tensor(tokens.astype(np.int64))
  layer = make_torch_block(block, hf_model.config)
  with torch.no_grad():
    states = hf_model.model(hf_tokens).last_hidden_state[:, :-1]
    vectors = hf_model.model.embed_tokens(hf_tokens[:, 1:])
    positions = torch.arange(1, T + 1)[None]
    angles = hf_model.model.rotary_emb(vectors, positions)
    causal_bias = torch.full((T, T), float("-inf")).triu(1)[None, None].expand(B, 1, T, T)
    out = layer(vectors, states, angles, causal_bias, positions, None)
    expected = hf_model.lm_head(out[0] if isinstance(out, tuple) else out).numpy()

  model = hf.load(str(original))
  assert model.mtp_depth == 1
  run = jax.jit(lambda model, batch: model(batch)["next_logits"])
  logits = run(model, {"decoder_input_tokens": tokens})[:, :-1]
  distance = np.abs(logits - expected).max()
  print(f"next_logits: {distance:.2e} of {np.abs(expected).max():.3g}")
  assert distance <= 1e-4

  hf.save(model, str(exported))
  before = load_file(original / "model.safetensors")
  after = load_file(exported / "model.safetensors")
  # The copies of the embeddings and of the head are not written.
  del before[f"model.layers.{LAYERS}.embed_tokens.weight"]
  del before[f"model.layers.{LAYERS}.shared_head.head.weight"]
  assert before.keys() == after.keys()
  for name, array in before.items():
    assert np.array_equal(array, after[name]), name
