"""ELECTRA: generators are `ElectraForMaskedLM`; all other classes are discriminators.

A joint `electra.Model` is saved as its two networks: `generator, discriminator = model.networks()`.
"""

from typing import Any

from t5x_like.interop import encoders
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.config_table import Constant, Field, ModelType
from t5x_like.interop.encoders import Classes, EncoderTensors, Head, SpecialTokens
from t5x_like.models import bert, electra

HEADS = (
  Head(
    "ForPreTraining",
    "discriminator",
    {
      "discriminator_predictions.dense": "dense",
      "discriminator_predictions.dense_prediction": "out",
    },
  ),
  Head(
    "ForMaskedLM",
    "mlm",
    {
      "generator_predictions.dense": "dense",
      "generator_predictions.LayerNorm": "norm",
      "generator_lm_head.bias": "lm/bias",
    },
  ),
  Head(
    "ForSequenceClassification",
    "classification",
    {"classifier.dense": "pooler/dense", "classifier.out_proj": "out"},
    arguments={"activation": "gelu"},
  ),
  Head(
    "ForMultipleChoice",
    "multiple_choice",
    {"sequence_summary.summary": "pooler/dense", "classifier": "out"},
    arguments={"activation": "gelu"},
  ),
  Head("ForTokenClassification", "tokens", {"classifier": "out"}),
  Head("ForQuestionAnswering", "spans", {"qa_outputs": "out"}),
  Head("Model", "none", {}),
)


ELECTRA = (
  *encoders.BODY,
  encoders.LENGTH,
  encoders.EXACT_GELU,
  Field("embedding_size", "embed", default=128),
  SpecialTokens(bert.TOKENS),
  Classes("Electra", HEADS),
  Constant("summary_type", "first"),
  Constant("summary_use_proj", True),
  Constant("summary_activation", "gelu"),
)


class _Electra(ModelType):
  """The type of both networks, of which a file holds one, named by its head."""

  def read(self, fields: Fields) -> tuple[type, dict[str, Any]]:
    model_class, arguments = super().read(fields)
    if arguments["variant"].head == "mlm":
      model_class = electra.Generator
    return model_class, arguments


TYPES = (
  _Electra(
    "electra",
    "",
    electra.Discriminator,
    electra.VARIANTS["electra-base"],
    ELECTRA,
    EncoderTensors("electra", HEADS, encoders.TENSORS),
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    other_classes=(electra.Generator,),
    **encoders.FILES,
  ),
)
