"""BERT.

A `BertModel` becomes a model whose logits are the last hidden states, with `pooled` next to them if
the file has a pooler. A pooler that a class does not use is not part of the model; a written file
has it unchanged from the file that was read.

`HEADS` lists the heads of each class, with the names of their tensors: Hugging Face's -> ours.
"""

from t5x_like.interop import encoders
from t5x_like.interop.config_table import Ignored, ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens, nest_paths
from t5x_like.models import bert

MLM = {
  "cls.predictions.transform.dense": "dense",
  "cls.predictions.transform.LayerNorm": "norm",
  "cls.predictions.bias": "lm/bias",
}
POOLER = {"bert.pooler.dense": "pooler/dense"}
NEXT_SENTENCE = {"cls.seq_relationship": "next_sentence"}
CLASSIFIER = {"classifier": "out"}
HEADS = (
  Head("ForPreTraining", "pretraining", nest_paths("mlm", MLM) | POOLER | NEXT_SENTENCE),
  # The Hub's files of this class have both heads of pretraining.
  Head("ForMaskedLM", "pretraining", nest_paths("mlm", MLM) | POOLER | NEXT_SENTENCE),
  Head("ForMaskedLM", "mlm", MLM),
  Head("ForNextSentencePrediction", "next_sentence", POOLER | {"cls.seq_relationship": "out"}),
  Head("ForSequenceClassification", "classification", POOLER | CLASSIFIER),
  Head("ForMultipleChoice", "multiple_choice", POOLER | CLASSIFIER),
  Head("ForTokenClassification", "tokens", CLASSIFIER),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "pooled", {"pooler.dense": "pooler/dense"}),
  Head("Model", "none", {}),
)


def _canonical_name(name: str) -> str:
  """Rename the scales and biases of norms, which older files name as TensorFlow does."""
  return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
    "LayerNorm.beta", "LayerNorm.bias"
  )


BERT = (
  *encoders.BODY,
  encoders.LENGTH,
  encoders.ACTIVATION,
  SpecialTokens(bert.TOKENS),
  Classes("Bert", HEADS),
  Ignored("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
  Ignored("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
)
# Tied tensors that a file may hold twice: copy -> original.
TIED = {
  "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
  "cls.predictions.decoder.bias": "cls.predictions.bias",
}
TYPES = (
  ModelType(
    "bert",
    "",  # `Classes` writes the class name.
    bert.Model,
    bert.VARIANTS["bert-base-uncased"],
    BERT,
    EncoderTensors("bert", HEADS, encoders.TENSORS),
    tied=TIED,
    canonical_name=_canonical_name,
    **encoders.FILES,
  ),
)
