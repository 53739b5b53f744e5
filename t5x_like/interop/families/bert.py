"""BERT.

A `BertModel` becomes a model whose logits are the last hidden states, with `pooled` beside them if
the file has a pooler. A pooler that a class does not use is not part of the model; it is written
back unchanged from the file.

`HEADS` lists the heads of each class, with the names of their tensors: Hugging Face's -> ours.
Every family has these functions; `interop/families/__init__.py` describes them.
"""

from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.encoders import Head, nest_paths
from t5x_like.interop.tensor_mapping import TensorMapping
from t5x_like.models import bert

MODEL_TYPES = ("bert",)
MODELS = (bert.Model,)

MLM = {
  "cls.predictions.transform.dense": "dense",
  "cls.predictions.transform.LayerNorm": "norm",
  "cls.predictions.bias": "lm/bias",
}
POOLER = {"bert.pooler.dense": "pooler/dense"}
NEXT = {"cls.seq_relationship": "next_sentence"}
CLASSIFIER = {"classifier": "out"}
HEADS = (
  Head("ForPreTraining", "pretraining", nest_paths("mlm", MLM) | POOLER | NEXT),
  Head(
    "ForMaskedLM", "pretraining", nest_paths("mlm", MLM) | POOLER | NEXT
  ),  # as in the hub's files
  Head("ForMaskedLM", "mlm", MLM),
  Head("ForNextSentencePrediction", "next_sentence", POOLER | {"cls.seq_relationship": "out"}),
  Head("ForSequenceClassification", "classification", POOLER | CLASSIFIER),
  Head("ForMultipleChoice", "multiple_choice", POOLER | CLASSIFIER),
  Head("ForTokenClassification", "tokens", CLASSIFIER),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "pooled", {"pooler.dense": "pooler/dense"}),
  Head("Model", "none", {}),
)


def canonical_name(name: str) -> str:
  """Rename the scales and biases of norms, which older files name as TensorFlow does."""
  return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
    "LayerNorm.beta", "LayerNorm.bias"
  )


def read_config(fields: Fields, tensor_names: set[str]):
  fields.ignore(
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
  )
  activation = fields.choose("hidden_act", encoders.ACTIVATIONS, "gelu")
  base = bert.VARIANTS["bert-base-uncased"]
  return bert.Model, {
    "variant": encoders.read_variant(
      fields, tensor_names, base, "Bert", HEADS, activation=activation
    )
  }


def write_config(model, model_type: str | None) -> dict:
  return encoders.write_config(model, "bert", "Bert", HEADS)


def map_tensors(mapping: TensorMapping) -> None:
  encoders.map_tensors(mapping, "bert", HEADS)
  mapping.tied = {  # tied tensors that a file may hold twice: copy -> original
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
  }
