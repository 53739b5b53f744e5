"""DeepSeek-V3's block that predicts the token after the next equals that of `transformers`."""

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
  """Add the block's tensors to a file as in published files, and return them by short names.

  The block is a layer like the last one, with two norms and a projection of its inputs, and a norm
  of its output. The file has copies of the model's embeddings and head for it, which are not
  returned.
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
  """Return the block as a module of `transformers`, with the tensors of `block`."""
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


def compute_torch_logits(hf_model, block, tokens):
  """Return the block's logits, [B, T, V], for tokens [B, T + 1]."""
  import torch

  B = tokens.shape[0]
  T = tokens.shape[1] - 1
  tokens = torch.tensor(tokens.astype(np.int64))
  torch_block = make_torch_block(block, hf_model.config)
  with torch.no_grad():
    states = hf_model.model(tokens).last_hidden_state[:, :-1]
    next_vectors = hf_model.model.embed_tokens(tokens[:, 1:])
    positions = torch.arange(1, T + 1)[None]
    angles = hf_model.model.rotary_emb(next_vectors, positions)
    causal_bias = torch.full((T, T), float("-inf")).triu(1)[None, None].expand(B, 1, T, T)
    outputs = torch_block(next_vectors, states, angles, causal_bias, positions, None)
    if isinstance(outputs, tuple):
      outputs = outputs[0]
    return hf_model.lm_head(outputs).numpy()


def test_logits_are_equal_and_the_exported_file_is_the_original(tmp_path):
  original = tmp_path / "original"
  exported = tmp_path / "exported"
  hf_model = reference.make(cases.CASES["deepseek-v3"], original)
  block = add_block(original / "model.safetensors")
  tokens = np.random.default_rng(0).integers(2, 64, (2, 11)).astype(np.int32)
  expected_logits = compute_torch_logits(hf_model, block, tokens)

  model = hf.load(str(original))
  assert model.mtp_depth == 1
  predict = jax.jit(lambda model, batch: model(batch)["next_logits"])
  logits = predict(model, {"decoder_input_tokens": tokens})[:, :-1]
  difference = np.abs(logits - expected_logits).max()
  print(f"next_logits: {difference:.2e} of {np.abs(expected_logits).max():.3g}")
  assert difference <= 1e-4

  hf.save(model, str(exported))
  before = load_file(original / "model.safetensors")
  after = load_file(exported / "model.safetensors")
  # The block's copies of the embeddings and of the head are not exported.
  del before[f"model.layers.{LAYERS}.embed_tokens.weight"]
  del before[f"model.layers.{LAYERS}.shared_head.head.weight"]
  assert before.keys() == after.keys()
  for name, array in before.items():
    assert np.array_equal(array, after[name]), name
