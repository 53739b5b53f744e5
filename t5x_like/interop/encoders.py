"""Shared by the Hugging Face forms of BERT and its descendants: the body, and a table of heads for
each family."""

import dataclasses

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields, find_key
from t5x_like.interop.hf import require_design
from t5x_like.interop.tensor_mapping import TensorMapping, locate_layers
from t5x_like.nn.cores.auto import EXACT_CORES
from t5x_like.nn.dims import Dims

ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
  "quick_gelu": "quick_gelu",
  "relu": "relu",
  "silu": "silu",
  "swish": "silu",
}
ATTENTION_NAMES = ("self.query", "self.key", "self.value", "output.dense")
IGNORED_SUFFIXES = (
  "embeddings.position_ids",
  "embeddings.token_type_ids",
)  # buffers of older versions


@dataclasses.dataclass(frozen=True)
class Head:
  """A class of a family.

  Attributes:
    task: suffix of the class's name, such as "ForMaskedLM"; "Model" for the body alone, whose
      tensors have no prefix.
    name: the name of our head.
    tensors: library's name -> ours, within the head: linear layers, norms, or single tensors that
      end in "bias".
    activation: the pooler's activation.
  """

  task: str
  name: str
  tensors: dict[str, str]
  activation: str = "tanh"

  def spec(self, labels: int) -> str | dict:
    """Return the head in the form of `Variant.head`."""
    options = {"labels": labels} if self.name in ("classification", "tokens") else {}
    if self.activation != "tanh":
      options["activation"] = self.activation
    return {"name": self.name, **options} if options else self.name

  def complete(self, names: set[str]) -> bool:
    """Return whether the head's tensors are all among `names`."""
    return all(n in names or f"{n}.weight" in names for n in self.tensors)


def nest_paths(part: str, tensors: dict[str, str]) -> dict[str, str]:
  """Move the tensors' names under a part of a head."""
  return {theirs: f"{part}/{ours}" for theirs, ours in tensors.items()}


def read_head(fields: Fields, names: set[str], prefix: str, heads: tuple[Head, ...]) -> str | dict:
  """Return the head of a file: the head of `architectures`, or else the first head with all its
  tensors in the file.

  Raises:
    UserError: the class is not among `heads`.
  """
  found = (fields.values.get("architectures") or [None])[0]
  chosen = [h for h in heads if found in (None, prefix + h.task)]
  if not chosen:
    raise fields.refusal(
      "architectures", found, " or ".join(dict.fromkeys(prefix + h.task for h in heads))
    )
  labels = len(fields.values.get("id2label") or {}) or fields.values.get("num_labels") or 2
  return next((h for h in chosen if h.complete(names)), chosen[0]).spec(labels)


def read_special_tokens(fields: Fields, default: Tokens) -> Tokens:
  """Return the ids of padding, start and end of a config; the defaults come from the family's
  variants."""
  pad = fields.take("pad_token_id", None if "pad_token_id" in fields.values else default.pad)
  start = fields.values.get("bos_token_id")
  eos = fields.take("eos_token_id", default.eos)
  return Tokens(
    pad, default.start if start is None else start, eos if isinstance(eos, int) else eos[0]
  )


def read_variant(
  fields: Fields,
  names: set[str],
  base: Variant,
  prefix: str,
  heads: tuple[Head, ...],
  length: int = 512,
  **changes,
) -> Variant:
  """Return the variant of a config with BERT's fields.

  Args:
    base: has the family's design and special tokens; `changes` are made to the design.
    prefix: the prefix of its class names, such as "Bert".
    length: the default number of positions.
  """
  fields.ignore("hidden_dropout_prob", "attention_probs_dropout_prob")
  fields.require("position_embedding_type", "absolute")
  fields.require("tie_word_embeddings", True)
  D = fields.take("hidden_size")
  N = fields.take("num_attention_heads")
  tokens = read_special_tokens(fields, base.tokens)
  offset = 0 if not _offset(base.design) else tokens.pad + 1  # as fairseq numbers positions
  position = {"name": "learned", "length": fields.take("max_position_embeddings", length) - offset}
  design = dataclasses.replace(
    base.design,
    norm_epsilon=fields.take("layer_norm_eps", 1e-12),
    position=position | ({"offset": offset} if offset else {}),
    init_stddev=fields.values.get("initializer_range", 0.02),
    **changes,
  )
  return dataclasses.replace(
    base,
    dims=Dims(D, N, N, D // N, fields.take("intermediate_size"), fields.take("num_hidden_layers")),
    design=design,
    vocab_size=fields.take("vocab_size"),
    tokens=tokens,
    types=fields.take("type_vocab_size", 2),
    head=read_head(fields, names, prefix, heads),
  )


def _offset(design: Design) -> int:
  return design.position.get("offset", 0) if isinstance(design.position, dict) else 0


def require_bert_design(model, **expected) -> None:
  """Refuse designs that are not BERT's in the fields that are not `expected`; raise UserError that
  names the field."""
  usual = dict(
    norm="layernorm",
    norm_position="post",
    parallel="no",
    biases=("qkv", "out", "mlp"),
    qk_norm=False,
    attention_scale=None,
    softcap=None,
    windows=(None,),
    experts=None,
    activation=list(ACTIVATIONS.values()),
    embed_scale=False,
    embed_norm=True,
    logits_scale=False,
    core=[*EXACT_CORES],
  )
  require_design(model, **usual | expected)


def write_config(
  model, model_type: str, prefix: str, heads: tuple[Head, ...], *, offset: int = 0, **expected
) -> dict:
  """Return BERT's fields of a model.

  Args:
    prefix: the prefix of its class names, such as "Bert".
    offset: the row of position 0.
    expected: allowed values of the design's fields, see `refuse_others`.
  Raises:
    UserError: the type cannot express a field of the design, or the head; names it.
  """
  variant = model.variant
  design = model.variant.design
  dims = model.variant.dims
  require_bert_design(model, **expected)
  position = {"name": design.position} if isinstance(design.position, str) else design.position
  if (
    not isinstance(position, dict)
    or position["name"] != "learned"
    or position.get("offset", 0) != offset
  ):
    raise UserError(
      f"design.position is {design.position!r}; {model_type} supports only 'learned' with an "
      f"offset of {offset}"
    )
  if dims.kv_heads != dims.heads or dims.head_dim * dims.heads != dims.embed or not variant.types:
    raise UserError(
      f"{dims} with types={variant.types}: {model_type} has as many key/value heads as heads, "
      "heads that share the width, and token types"
    )
  head, labels = write_head(model_type, variant, heads)
  return {
    "architectures": [prefix + head.task],
    "model_type": model_type,
    "vocab_size": variant.vocab_size,
    "hidden_size": dims.embed,
    "num_hidden_layers": dims.layers,
    "num_attention_heads": dims.heads,
    "intermediate_size": dims.mlp,
    "hidden_act": find_key(ACTIVATIONS, design.activation),
    "max_position_embeddings": position.get("length", 512) + position.get("offset", 0),
    "type_vocab_size": variant.types,
    "layer_norm_eps": design.norm_epsilon,
    "initializer_range": design.init_stddev or 0.02,
    "pad_token_id": variant.tokens.pad,
    "tie_word_embeddings": True,
    **labels,
  }


def write_head(model_type: str, variant: Variant, heads: tuple[Head, ...]) -> tuple[Head, dict]:
  """Return a variant's head, and the fields of a config that name its labels if they are not two.

  Raises:
    UserError: the head is not among `heads`.
  """
  labels = variant.head.get("labels", 2) if isinstance(variant.head, dict) else 2
  head = next((h for h in heads if _meant(h.spec(labels)) == _meant(variant.head)), None)
  if head is None:
    raise UserError(
      f"config.model.head: {model_type} has no head {variant.head!r}; expected one of "
      f"{', '.join(dict.fromkeys(str(h.spec(2)) for h in heads))}"
    )
  if labels == 2:
    return head, {}
  names = {i: f"LABEL_{i}" for i in range(labels)}
  return head, {
    "id2label": {str(i): n for i, n in names.items()},
    "label2id": {n: i for i, n in names.items()},
  }


def _meant(spec: str | dict) -> dict:
  """Return a head's spec with its defaults, without arguments that affect neither tensors nor
  fields."""
  spec = (
    {"name": spec} if isinstance(spec, str) else {n: v for n, v in spec.items() if n != "choices"}
  )
  return {
    "activation": "tanh",
    **({"labels": 2} if spec["name"] in ("classification", "tokens") else {}),
    **spec,
  }


def map_tensors(mapping: TensorMapping, prefix: str, heads: tuple[Head, ...]) -> None:
  """Map every tensor of the body and of the head.

  Args:
    prefix: the prefix of the body's tensors, such as "bert".
  """
  body = map_embeddings_and_head(mapping, prefix, heads)
  for number, (_, index) in enumerate(
    locate_layers(mapping.model.encoder, mapping.model.variant.dims.layers)
  ):
    map_layer(mapping, f"{body}encoder.layer.{number}", index, ATTENTION_NAMES)


def map_layer(mapping: TensorMapping, hf_name: str, index: int, names: tuple[str, ...]) -> None:
  """Map one layer; `names` are those of the four projections of attention."""
  path = "encoder/blocks"
  mapping.attention(f"{hf_name}.attention", f"{path}/self_attention/layer", index, names=names)
  mapping.norm(f"{hf_name}.attention.output.LayerNorm", f"{path}/self_attention/out_norm", index)
  mapping.linear(f"{hf_name}.intermediate.dense", f"{path}/mlp/layer/wi", index)
  mapping.linear(f"{hf_name}.output.dense", f"{path}/mlp/layer/wo", index)
  mapping.norm(f"{hf_name}.output.LayerNorm", f"{path}/mlp/out_norm", index)


def map_embeddings_and_head(
  mapping: TensorMapping, prefix: str, heads: tuple[Head, ...], project: str = "embeddings_project"
) -> str:
  """Map all but the layers; return the prefix of the layers.

  Args:
    project: the name of the projection of a narrower table.
  """
  variant = mapping.model.variant
  name = _meant(variant.head)["name"]
  head = next(h for h in heads if h.name == name)
  body = "" if head.task == "Model" else f"{prefix}."
  mapping.ignored_suffixes = IGNORED_SUFFIXES
  if not any("pooler" in hf_layer for hf_layer in head.tensors):
    mapping.unread_suffixes = tuple(
      f"{prefix}.pooler.{end}" for end in ("dense.weight", "dense.bias", "weight", "bias")
    )
  mapping.copy(f"{body}embeddings.word_embeddings.weight", "embed/table")
  if "inputs/position/table" in mapping.parameter_names:
    mapping.copy(f"{body}embeddings.position_embeddings.weight", "inputs/position/table")
  if "inputs/types/table" in mapping.parameter_names:
    mapping.copy(f"{body}embeddings.token_type_embeddings.weight", "inputs/types/table")
  mapping.norm(f"{body}embeddings.LayerNorm", "inputs/norm")
  if variant.embed:
    mapping.linear(f"{body}{project}", "inputs/project")
  for hf_layer, path in head.tensors.items():
    if path.endswith("bias"):
      mapping.copy(hf_layer, f"head/{path}")
    else:
      (mapping.norm if f"head/{path}/scale" in mapping.parameter_names else mapping.linear)(
        hf_layer, f"head/{path}"
      )
  return body
