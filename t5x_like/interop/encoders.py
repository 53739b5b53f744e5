"""Entries of config tables and tables of tensors that BERT and its descendants share.

Each family adds a table of its heads: a Hugging Face class such as `BertForMaskedLM` is a body with
one head.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.errors import UserError
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import (
  Choice,
  Constant,
  Custom,
  Entry,
  Field,
  Ignored,
  Required,
)
from t5x_like.interop.tensor_mapping import TensorMapping, TensorTable, prefix_table
from t5x_like.interop.variant_paths import complete_spec

ACTIVATIONS = {
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
  "quick_gelu": "quick_gelu",
  "relu": "relu",
  "silu": "silu",
  "swish": "silu",
}
# buffers of older versions
IGNORED_SUFFIXES = (
  "embeddings.position_ids",
  "embeddings.token_type_ids",
)
_TRAINING_ARGUMENTS = ("choices", "dropout")  # arguments of heads that matter only in training


@dataclasses.dataclass(frozen=True)
class Head:
  """A head of a family, and the Hugging Face class that has it.

  Attributes:
    task: suffix of the class's name, such as "ForMaskedLM"; "Model" for the body alone, whose
      tensors have no prefix.
    name: the name of our head.
    tensors: name of a module in the file -> path within our head: linear layers, norms, or single
      tensors that end in "bias".
    arguments: the arguments of our head, except for the number of labels.
  """

  task: str
  name: str
  tensors: dict[str, str]
  arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def spec(self, labels: int) -> str | dict:
    """Return the head in the form of `Variant.head`."""
    arguments: dict[str, Any] = {}
    if "labels" in complete_spec(self.name):
      arguments["labels"] = labels
    arguments |= self.arguments
    return {"name": self.name, **arguments} if arguments else self.name

  def is_complete(self, tensor_names: set[str]) -> bool:
    """Return whether a file with these tensors has all tensors of the head."""
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
  class_names = fields.values.get("architectures")
  class_name = class_names[0] if class_names else None
  candidates = [head for head in heads if class_name in (None, prefix + head.task)]
  if not candidates:
    expected = dict.fromkeys(prefix + head.task for head in heads)
    raise fields.refusal("architectures", class_name, " or ".join(expected))
  complete = [head for head in candidates if head.is_complete(tensor_names)]
  head = complete[0] if complete else candidates[0]
  return head.spec(count_labels(fields))


def count_labels(fields: Fields) -> int:
  """Return the number of classes in a config, 2 by default."""
  names = fields.values.get("id2label")
  if names:
    return len(names)
  return fields.values.get("num_labels") or 2


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


class SpecialTokens(Entry):
  """The ids of padding, start and end.

  Args:
    tokens: the ids in configs without the fields. A null padding id means none.
    names: the fields to write, besides `pad_token_id`.
  """

  def __init__(self, tokens: Tokens, *names: str):
    self.tokens = tokens
    self.names = ("pad_token_id", *names)

  def read(self, fields: Fields) -> dict[str, Any]:
    return {"tokens": read_special_tokens(fields, self.tokens)}

  def write(self, variant: Variant) -> dict[str, Any]:
    tokens = variant.tokens
    ids = {
      "pad_token_id": tokens.pad,
      "bos_token_id": tokens.start,
      "cls_token_id": tokens.start,
      "eos_token_id": tokens.eos,
      "sep_token_id": tokens.eos,
    }
    return {name: ids[name] for name in self.names}


class Classes(Entry):
  """The field `architectures`, whose class name stands for one of a family's heads.

  Args:
    prefix: the prefix of the family's class names, such as "Bert".
    heads: the heads of its classes.
  """

  def __init__(self, prefix: str, heads: tuple[Head, ...]):
    self.prefix = prefix
    self.heads = heads

  def read(self, fields: Fields) -> dict[str, Any]:
    return {"head": read_head(fields, fields.tensor_names, self.prefix, self.heads)}

  def write(self, variant: Any) -> dict[str, Any]:
    head = find_head(variant, self.heads, self.prefix)
    labels = complete_spec(variant.head).get("labels", 2)
    labels_of_classes = {} if labels == 2 else label_fields(labels)
    return {"architectures": [self.prefix + head.task], **labels_of_classes}


class TokenTypes(Field):
  """The number of token types; a variant without any cannot be written."""

  def write(self, variant: Variant) -> dict[str, Any]:
    if not variant.types:
      raise UserError(f"types is {variant.types}; this model type supports only 1 or more")
    return super().write(variant)


def _read_initializer(fields: Fields) -> dict[str, Any]:
  return {"design.init_stddev": fields.values.get("initializer_range", 0.02)}


def _write_initializer(variant: Variant) -> dict[str, Any]:
  return {"initializer_range": variant.design.init_stddev or 0.02}


INITIALIZER = Custom(_read_initializer, _write_initializer)
SIZES = (
  Field("vocab_size", "vocab_size"),
  Field("hidden_size", "dims.embed"),
  Field("num_hidden_layers", "dims.layers"),
  Field("num_attention_heads", "dims.heads"),
  Field("intermediate_size", "dims.mlp"),
  INITIALIZER,
  Constant("tie_word_embeddings", True),
)
DROPOUT_RATES = Ignored("hidden_dropout_prob", "attention_probs_dropout_prob")
LENGTH = Field("max_position_embeddings", "design.position.length", default=512)
BODY = (
  *SIZES,
  TokenTypes("type_vocab_size", "types", default=2),
  Field("layer_norm_eps", "design.norm_epsilon", default=1e-12),
  Required("position_embedding_type", "absolute"),
  DROPOUT_RATES,
)
ACTIVATION = Choice("hidden_act", "design.activation", ACTIVATIONS, default="gelu")
# for families whose heads support no other activation
EXACT_GELU = Choice("hidden_act", "design.activation", {"gelu": "gelu"}, default="gelu")
# Keyword arguments of `ModelType`.
FILES = dict(
  ignored_suffixes=IGNORED_SUFFIXES,
  body_prefix=None,
  # the heads of encoders do not read these fields
  free=("design.tied", "design.logits_softcap", "design.logits_bias"),
)


def find_head(variant: Any, heads: tuple[Head, ...], prefix: str) -> Head:
  """Return the head of a variant among the heads of a family.

  Args:
    prefix: the prefix of the family's class names, for messages.
  Raises:
    UserError: the head is not among them.
  """
  spec = _complete_head(variant, variant.head)
  labels = spec.get("labels", 2)
  for head in heads:
    if _complete_head(variant, head.spec(labels)) == spec:
      return head
  names = dict.fromkeys(str(head.spec(2)) for head in heads)
  raise UserError(
    f"config.model.head: {prefix} has no head {variant.head!r}; expected one of {', '.join(names)}"
  )


def _complete_head(variant: Any, spec: str | dict) -> dict[str, Any]:
  """Return a head with all arguments that affect its function."""
  arguments = complete_spec(spec)
  if "pooling" in arguments and arguments["pooling"] is None:
    arguments["pooling"] = "token" if getattr(variant, "class_tokens", 0) else "mean"
  return {name: value for name, value in arguments.items() if name not in _TRAINING_ARGUMENTS}


LAYER_AFTER_QKV = {
  "attention.output.dense": "self_attention/layer/out",
  "attention.output.LayerNorm": "self_attention/out_norm",
  "intermediate.dense": "mlp/layer/wi",
  "output.dense": "mlp/layer/wo",
  "output.LayerNorm": "mlp/out_norm",
}
LAYER = {
  "attention.self.query": "self_attention/layer/query",
  "attention.self.key": "self_attention/layer/key",
  "attention.self.value": "self_attention/layer/value",
  **LAYER_AFTER_QKV,
}
EMBEDDINGS = {
  "embeddings.word_embeddings": "embed",
  "embeddings.position_embeddings": "inputs/position",
  "embeddings.token_type_embeddings": "inputs/types",
  "embeddings.LayerNorm": "inputs/norm",
}
TENSORS = {
  **EMBEDDINGS,
  "embeddings_project": "inputs/project",
  **prefix_table("encoder.layer.{layer}.", "encoder/blocks/", LAYER),
}
POOLER = ("pooler.dense.weight", "pooler.dense.bias", "pooler.weight", "pooler.bias")


@dataclasses.dataclass(frozen=True)
class EncoderTensors:
  """A function that maps the tensors of a family: of the body and of the model's head.

  Attributes:
    prefix: the prefix of the body's tensors in all classes but "Model", such as "bert".
    heads: the heads of the family's classes.
    body: the tensors of the body, without the prefix.
    unread: tensors of the body that some files contain and their classes do not use.
  """

  prefix: str
  heads: tuple[Head, ...]
  body: TensorTable
  unread: tuple[str, ...] = POOLER

  def __call__(self, mapping: TensorMapping) -> None:
    head = self._find_head(mapping)
    body_prefix = self.body_prefix(mapping)
    head_tensors = prefix_table("", "head/", head.tensors)
    mapping.add_table(prefix_table(body_prefix, "", self.body) | head_tensors)
    unread = tuple(body_prefix + name for name in self.unread)
    if not {tensor.name for tensor in mapping.tensors}.intersection(unread):
      mapping.unread_suffixes = unread

  def body_prefix(self, mapping: TensorMapping) -> str:
    """Return the prefix of the body's tensors in the class that has the model's head."""
    return "" if self._find_head(mapping).task == "Model" else f"{self.prefix}."

  def _find_head(self, mapping: TensorMapping) -> Head:
    return find_head(mapping.model.variant, self.heads, self.prefix)
