"""XLNet, without the memory of earlier rows."""

import dataclasses

import numpy as np

from t5x_like.errors import UserError
from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.encoders import Head
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.models import xlnet
from t5x_like.nn.dims import Dims

MODEL_TYPES = ("xlnet",)
MODELS = (xlnet.Model,)
POOLED = {"sequence_summary.summary": "pooler/dense", "logits_proj": "out"}
HEADS = (
  Head("LMHeadModel", "lm", {"lm_loss.bias": "bias"}),
  Head("ForSequenceClassification", "classification", POOLED),
  Head("ForMultipleChoice", "multiple_choice", POOLED),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnsweringSimple", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)
KERNELS = {"q": "query", "k": "key", "v": "value", "r": "relative"}
VECTORS = {"r_w_bias": "content_bias", "r_r_bias": "position_bias", "r_s_bias": "type_bias"}


def read_config(fields: Fields, tensor_names: set[str]):
  for name, *values in (
    ("attn_type", "bi"),
    ("bi_data", False),
    ("clamp_len", -1),
    ("same_length", False),
    ("untie_r", True),
    ("tie_word_embeddings", True),
  ):
    fields.require(name, *values)
  for name, value in (
    ("summary_type", "last"),
    ("summary_use_proj", True),
    ("summary_activation", "tanh"),
  ):
    fields.require(name, value)
  fields.ignore(
    "dropout", "mem_len", "reuse_len", "use_mems_eval", "use_mems_train", "start_n_top", "end_n_top"
  )
  D = fields.take("d_model", 1024)
  N = fields.take("n_head", 16)
  fields.require("d_head", D // N, None)
  dims = Dims(D, N, N, D // N, fields.take("d_inner", 4096), fields.take("n_layer", 24))
  design = dataclasses.replace(
    xlnet.DESIGN,
    norm_epsilon=fields.take("layer_norm_eps", 1e-12),
    activation=fields.choose("ff_activation", encoders.ACTIVATIONS, "gelu"),
    init_stddev=fields.values.get("initializer_range", 0.02),
  )
  pad = encoders.read_special_tokens(fields, xlnet.TOKENS).pad
  start = fields.values.get("cls_token_id")
  if start is None:
    start = xlnet.TOKENS.start
  eos = fields.values.get("sep_token_id")
  if eos is None:
    eos = xlnet.TOKENS.eos
  tokens = dataclasses.replace(xlnet.TOKENS, pad=pad, start=start, eos=eos)
  head = encoders.read_head(fields, tensor_names, "XLNet", HEADS)
  variant = dataclasses.replace(
    xlnet.VARIANTS["xlnet-base"], dims=dims, design=design, tokens=tokens, head=head
  )
  return xlnet.Model, {
    "variant": dataclasses.replace(variant, vocab_size=fields.take("vocab_size", 32_000))
  }


def write_config(model, model_type: str | None) -> dict:
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  require_design(
    model,
    norm="layernorm",
    norm_position="post",
    biases=("mlp",),
    attention_scale=None,
    softcap=None,
    windows=(None,),
    experts=None,
    activation=list(encoders.ACTIVATIONS.values()),
    embed_scale=False,
    embed_norm=False,
    tied=True,
    logits_scale=False,
    logits_softcap=None,
    logits_bias=True,
  )
  if dims.kv_heads != dims.heads or dims.head_dim * dims.heads != dims.embed or variant.embed:
    raise UserError(
      f"{dims} with a table of width {variant.embed}: xlnet has heads that share "
      "the width, and no other"
    )
  head, head_fields = encoders.write_head("xlnet", variant, HEADS)
  config = {
    "architectures": [f"XLNet{head.task}"],
    "model_type": "xlnet",
    "vocab_size": variant.vocab_size,
    "d_model": dims.embed,
    "n_layer": dims.layers,
    "n_head": dims.heads,
    "d_head": dims.head_dim,
    "d_inner": dims.mlp,
    "ff_activation": find_key(encoders.ACTIVATIONS, design.activation),
    "layer_norm_eps": design.norm_epsilon,
    "initializer_range": design.init_stddev or 0.02,
    "mem_len": None,
    "pad_token_id": variant.tokens.pad,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
  }
  tokens = variant.tokens
  if (tokens.start, tokens.eos) != (xlnet.TOKENS.start, xlnet.TOKENS.eos):
    config["cls_token_id"] = tokens.start
    config["sep_token_id"] = tokens.eos
  return config | head_fields


def map_tensors(mapping: TensorMapping) -> None:
  variant = mapping.model.variant
  dims = mapping.model.variant.dims
  N = dims.heads
  H = dims.head_dim
  D = dims.embed
  name = variant.head["name"] if isinstance(variant.head, dict) else variant.head
  head = next(head for head in HEADS if head.name == name)
  body = "" if head.task == "Model" else "transformer."

  def map_heads(hf_name: str, path: str, shape: tuple[int, ...], index: int) -> None:
    """Map a tensor with separate axes N and H, which our parameters merge."""
    merged = (-1, N * H) if len(shape) == 3 else (-1,)
    mapping.fuse(
      hf_name,
      [path],
      index,
      split=lambda x: [x.reshape(merged)],
      join=lambda arrays: arrays[0].reshape(shape),
    )

  mapping.copy(f"{body}word_embedding.weight", "embed/table")
  mapping.fuse(
    f"{body}mask_emb", ["unknown"], split=lambda x: [x[0, 0]], join=lambda xs: xs[0][None, None]
  )
  mapping.tied = {"lm_loss.weight": "transformer.word_embedding.weight"}
  for layer, (_, index) in enumerate(locate_layers(mapping.model.encoder, dims.layers)):
    hf_layer = f"{body}layer.{layer}"
    hf_attention = f"{hf_layer}.rel_attn"
    blocks = "encoder/blocks"
    attention = f"{blocks}/self_attention/layer"
    for hf_name, name in KERNELS.items():
      map_heads(f"{hf_attention}.{hf_name}", f"{attention}/{name}/kernel", (D, N, H), index)
    mapping.fuse(
      f"{hf_attention}.o",
      [f"{attention}/out/kernel"],
      index,
      split=lambda x: [np.ascontiguousarray(x.reshape(D, N * H).T)],
      join=lambda arrays: arrays[0].T.reshape(D, N, H),
    )
    for hf_name, name in VECTORS.items():
      map_heads(f"{hf_attention}.{hf_name}", f"{attention}/{name}", (N, H), index)
    map_heads(f"{hf_attention}.seg_embed", f"{attention}/types", (2, N, H), index)
    mapping.norm(f"{hf_attention}.layer_norm", f"{blocks}/self_attention/out_norm", index)
    mapping.norm(f"{hf_layer}.ff.layer_norm", f"{blocks}/mlp/out_norm", index)
    mapping.linear(f"{hf_layer}.ff.layer_1", f"{blocks}/mlp/layer/wi", index)
    mapping.linear(f"{hf_layer}.ff.layer_2", f"{blocks}/mlp/layer/wo", index)
  encoders.map_head(mapping, head)
