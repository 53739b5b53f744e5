"""Read and write BERT and its descendants: the body, and a table of heads for each family."""

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


_LABELLED = ("classification", "tokens")  # heads with labels


@dataclasses.dataclass(frozen=True)
class Head:
  """A class of a family.

  Attributes:
    task: suffix of the class's name, such as "ForMaskedLM"; "Model" for the body alone, whose
      tensors have no prefix.
    name: the name of our head.
    tensors: name in the library -> path within our head: linear layers, norms, or single tensors
      that end in "bias".
    activation: the pooler's activation.
  """

  task: str
  name: str
  tensors: dict[str, str]
  activation: str = "tanh"

  def spec(self, labels: int) -> str | dict:
    """Return the head in the form of `Variant.head`."""
    arguments = {}
    if self.name in _LABELLED:
      arguments["labels"] = labels
    if self.activation != "tanh":
      arguments["activation"] = self.activation
    return {"name": self.name, **arguments} if arguments else self.name

  def is_complete(self, tensor_names: set[str]) -> bool:
    """Return whether all tensors of the head are there."""
    return all(name in tensor_names or f"{name}.weight" in tensor_names for name in self.tensors)


def label_fields(labels: int) -> dict[str, dict]:
  """Return the fields of a config that define the number of classes."""
  names = [f"LABEL_{i}" for i in range(labels)]
  return {
    "id2label": {str(i): name for i, name in enumerate(names)},
    "label2id": {name: i for i, name in enumerate(names)},
  }


def nest_paths(part: str, tensors: dict[str, str]) -> dict[str, str]:
  """Move the paths of tensors under a part of a head."""
  return {hf_name: f"{part}/{path}" for hf_name, path in tensors.items()}


def read_head(
  fields: Fields, tensor_names: set[str], prefix: str, heads: tuple[Head, ...]
) -> str | dict:
  """Return the head of a file.

  It is the head of the class in `architectures`. Without that field, or if the class has several
  heads, it is the first whose tensors are all in the file.

  Args:
    prefix: the prefix of the family's class names, such as "Bert".
  Raises:
    UserError: the class is not among `heads`.
  """
  class_name = (fields.values.get("architectures") or [None])[0]
  candidates = [head for head in heads if class_name in (None, prefix + head.task)]
  if not candidates:
    class_names = dict.fromkeys(prefix + head.task for head in heads)
    raise fields.refusal("architectures", class_name, " or ".join(class_names))
  labels = len(fields.values.get("id2label") or {}) or fields.values.get("num_labels") or 2
  complete = [head for head in candidates if head.is_complete(tensor_names)]
  return (complete or candidates)[0].spec(labels)


def read_special_tokens(fields: Fields, default: Tokens) -> Tokens:
  """Return the ids of padding, start and end of a config.

  Args:
    default: the ids of the family's variants. A null padding id means none.
  """
  pad_default = None if "pad_token_id" in fields.values else default.pad
  pad = fields.take("pad_token_id", pad_default)
  start = fields.values.get("bos_token_id")
  if start is None:
    start = default.start
  eos = fields.take("eos_token_id", default.eos)
  if not isinstance(eos, int):
    eos = eos[0]
  return Tokens(pad, start, eos)


def read_variant(
  fields: Fields,
  tensor_names: set[str],
  base: Variant,
  prefix: str,
  heads: tuple[Head, ...],
  length: int = 512,
  **changes,
) -> Variant:
  """Return the variant of a config with BERT's fields.

  Args:
    base: a variant with the family's design and special tokens.
    prefix: the prefix of the family's class names, such as "Bert".
    length: the default number of positions.
    changes: replace fields of the design.
  """
  fields.ignore("hidden_dropout_prob", "attention_probs_dropout_prob")
  fields.require("position_embedding_type", "absolute")
  fields.require("tie_word_embeddings", True)
  D = fields.take("hidden_size")
  N = fields.take("num_attention_heads")
  tokens = read_special_tokens(fields, base.tokens)
  offset = tokens.pad + 1 if _has_offset(base.design) else 0  # as fairseq numbers positions
  length = fields.take("max_position_embeddings", length)
  position = {"name": "learned", "length": length - offset}
  if offset:
    position["offset"] = offset
  design = dataclasses.replace(
    base.design,
    norm_epsilon=fields.take("layer_norm_eps", 1e-12),
    position=position,
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
    head=read_head(fields, tensor_names, prefix, heads),
  )


def _has_offset(design: Design) -> bool:
  return isinstance(design.position, dict) and bool(design.position.get("offset"))


def require_bert_design(model, **expected) -> None:
  """Refuse designs that are not BERT's.

  Args:
    expected: allowed values of fields in which the family differs.
  Raises:
    UserError: a field has another value; names it.
  """
  bert = dict(
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
  require_design(model, **bert | expected)


def write_config(
  model, model_type: str, prefix: str, heads: tuple[Head, ...], *, offset: int = 0, **expected
) -> dict:
  """Return BERT's fields of a model.

  Args:
    prefix: the prefix of the family's class names, such as "Bert".
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
  head, head_fields = write_head(model_type, variant, heads)
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
    **head_fields,
  }


def write_head(
  model_type: str, variant: Variant, heads: tuple[Head, ...]
) -> tuple[Head, dict[str, dict]]:
  """Return a variant's head, and the fields of a config that name its labels if they are not two.

  Raises:
    UserError: the head is not among `heads`.
  """
  labels = variant.head.get("labels", 2) if isinstance(variant.head, dict) else 2
  spec = _complete_spec(variant.head)
  for head in heads:
    if _complete_spec(head.spec(labels)) == spec:
      return head, {} if labels == 2 else label_fields(labels)
  names = dict.fromkeys(str(head.spec(2)) for head in heads)
  raise UserError(
    f"config.model.head: {model_type} has no head {variant.head!r}; expected one of "
    f"{', '.join(names)}"
  )


def _complete_spec(spec: str | dict) -> dict:
  """Return the spec of a head with its defaults.

  Arguments that affect neither tensors nor fields are left out.
  """
  spec = {"name": spec} if isinstance(spec, str) else spec
  complete = {"activation": "tanh"}
  if spec["name"] in _LABELLED:
    complete["labels"] = 2
  return complete | {name: value for name, value in spec.items() if name != "choices"}


def map_tensors(mapping: TensorMapping, prefix: str, heads: tuple[Head, ...]) -> None:
  """Map every tensor of the body and of the head.

  Args:
    prefix: the prefix of the body's tensors, such as "bert".
  """
  body = map_embeddings_and_head(mapping, prefix, heads)
  model = mapping.model
  for layer, (_, index) in enumerate(locate_layers(model.encoder, model.variant.dims.layers)):
    map_layer(mapping, f"{body}encoder.layer.{layer}", index, ATTENTION_NAMES)


def map_layer(
  mapping: TensorMapping, hf_name: str, index: int, attention_names: tuple[str, ...]
) -> None:
  """Map one layer.

  Args:
    attention_names: the names of the four projections of attention.
  """
  blocks = "encoder/blocks"
  mapping.attention(
    f"{hf_name}.attention", f"{blocks}/self_attention/layer", index, names=attention_names
  )
  mapping.norm(f"{hf_name}.attention.output.LayerNorm", f"{blocks}/self_attention/out_norm", index)
  mapping.linear(f"{hf_name}.intermediate.dense", f"{blocks}/mlp/layer/wi", index)
  mapping.linear(f"{hf_name}.output.dense", f"{blocks}/mlp/layer/wo", index)
  mapping.norm(f"{hf_name}.output.LayerNorm", f"{blocks}/mlp/out_norm", index)


def map_embeddings_and_head(
  mapping: TensorMapping,
  prefix: str,
  heads: tuple[Head, ...],
  projection: str = "embeddings_project",
) -> str:
  """Map all but the layers; return the prefix of the layers.

  Args:
    projection: the name of the projection of a narrower table.
  """
  variant = mapping.model.variant
  name = _complete_spec(variant.head)["name"]
  head = next(head for head in heads if head.name == name)
  body = "" if head.task == "Model" else f"{prefix}."
  mapping.ignored_suffixes = IGNORED_SUFFIXES
  if not any("pooler" in hf_name for hf_name in head.tensors):
    mapping.unread_suffixes = tuple(
      f"{prefix}.pooler.{suffix}" for suffix in ("dense.weight", "dense.bias", "weight", "bias")
    )
  mapping.copy(f"{body}embeddings.word_embeddings.weight", "embed/table")
  if "inputs/position/table" in mapping.parameter_names:
    mapping.copy(f"{body}embeddings.position_embeddings.weight", "inputs/position/table")
  if "inputs/types/table" in mapping.parameter_names:
    mapping.copy(f"{body}embeddings.token_type_embeddings.weight", "inputs/types/table")
  mapping.norm(f"{body}embeddings.LayerNorm", "inputs/norm")
  if variant.embed:
    mapping.linear(f"{body}{projection}", "inputs/project")
  map_head(mapping, head)
  return body


def map_head(mapping: TensorMapping, head: Head) -> None:
  """Map the tensors of a head: linear layers, norms and single biases."""
  for hf_name, path in head.tensors.items():
    if path.endswith("bias"):
      mapping.copy(hf_name, f"head/{path}")
    elif f"head/{path}/scale" in mapping.parameter_names:
      mapping.norm(hf_name, f"head/{path}")
    else:
      mapping.linear(hf_name, f"head/{path}")
