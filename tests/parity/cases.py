"""Describe tiny random models of `transformers` and their inputs, without importing torch.

There is one case for each variation of a family that the converters know. The values of a tensor
follow from its name and shape, so a golden file stores only names, shapes and outputs.
"""

import dataclasses
import zlib

import numpy as np

from parity import decoders
from parity.resnets import RESNET
from tests import topics

VOCAB = 64


@dataclasses.dataclass(frozen=True)
class Case:
  """A random model, and the shape of the batch that it is compared on.

  Attributes:
    model, config: classes of `transformers`.
    values: arguments of the config.
    kind: "encoder_decoder", "decoder", "encoder", "image", "image_text" or "detection", which
      decides the inputs.
    untied: whether the output has its own matrix although the library ties it by default.
    length: tokens of a row of the inputs.
    rows: rows of the inputs.
    outputs: the library's name of an output -> our name, besides logits.
    logits: the library's name of the logits; empty if the model has none.
    size: height and width of padded images.
    predicted: number of tokens that a query stream predicts in a random order.
  """

  model: str
  config: str
  values: dict
  kind: str
  untied: bool = False
  length: int = 11
  rows: int = 3
  outputs: dict = dataclasses.field(default_factory=dict)
  logits: str = "logits"
  size: tuple[int, int] = (0, 0)
  predicted: int = 0


T5 = dict(
  vocab_size=VOCAB, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0
)
GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)

BART = dict(
  vocab_size=VOCAB,
  d_model=16,
  encoder_layers=2,
  decoder_layers=2,
  encoder_attention_heads=4,
  decoder_attention_heads=4,
  encoder_ffn_dim=32,
  decoder_ffn_dim=32,
  max_position_embeddings=32,
)
MARIAN = dict(pad_token_id=63, eos_token_id=0, decoder_start_token_id=63, decoder_vocab_size=VOCAB)

BERT = dict(
  vocab_size=VOCAB,
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=32,
  max_position_embeddings=64,
)
ELECTRA = BERT | dict(embedding_size=8)
ALBERT = BERT | dict(
  hidden_size=20,
  num_hidden_layers=3,
  num_attention_heads=5,
  intermediate_size=28,
  embedding_size=12,
)
DEBERTA = ALBERT | dict(
  embedding_size=20,
  type_vocab_size=0,
  relative_attention=True,
  share_att_key=True,
  position_biased_input=False,
  norm_rel_ebd="layer_norm",
  pos_att_type=["p2c", "c2p"],
  position_buckets=6,
  max_relative_positions=-1,
  max_position_embeddings=11,
)
XLNET = dict(vocab_size=VOCAB, d_model=20, n_layer=3, n_head=5, d_inner=28)
XLM = dict(vocab_size=VOCAB, emb_dim=20, n_layers=3, n_heads=5, max_position_embeddings=13)
MODERN = dict(
  vocab_size=VOCAB,
  hidden_size=16,
  num_hidden_layers=5,
  num_attention_heads=4,
  intermediate_size=24,
  local_attention=4,
  pad_token_id=0,
  bos_token_id=1,
  cls_token_id=1,
  eos_token_id=2,
  sep_token_id=2,
)
NEXT = dict(logits="prediction_logits", outputs={"seq_relationship_logits": "next_sentence_logits"})
SPANS = dict(logits="", outputs={"start_logits": "start_logits", "end_logits": "end_logits"})
POOLED = dict(logits="last_hidden_state", outputs={"pooler_output": "pooled"})


def _encoder(task: str, prefix: str = "Bert", values: dict = BERT, **options) -> Case:
  values = dict(values)
  config = f"{prefix}Config"
  if "Roberta" in prefix:
    values |= dict(type_vocab_size=1, layer_norm_eps=1e-5)
  if "Classification" in task:
    values |= dict(num_labels=3)
  rows = 4 if "Choice" in task else 3
  return Case(f"{prefix}{task}", config, values, "encoder", rows=rows, **options)


CASES = {
  "t5": Case("T5ForConditionalGeneration", "T5Config", T5, "encoder_decoder"),
  "t5-gated-relu": Case(
    "T5ForConditionalGeneration",
    "T5Config",
    T5 | GATED | dict(feed_forward_proj="gated-relu"),
    "encoder_decoder",
    untied=True,
  ),
  "t5-v1_1": Case(
    "T5ForConditionalGeneration", "T5Config", T5 | GATED, "encoder_decoder", untied=True
  ),
  "byt5": Case(
    "T5ForConditionalGeneration",
    "T5Config",
    T5 | GATED | dict(num_layers=3, num_decoder_layers=1),
    "encoder_decoder",
    untied=True,
  ),
  "mt5": Case("MT5ForConditionalGeneration", "MT5Config", T5, "encoder_decoder", untied=True),
  "umt5": Case("UMT5ForConditionalGeneration", "UMT5Config", T5, "encoder_decoder", untied=True),
  "switch": Case(
    "SwitchTransformersForConditionalGeneration",
    "SwitchTransformersConfig",
    T5
    | dict(
      num_layers=4,
      num_decoder_layers=4,
      num_sparse_encoder_layers=2,
      num_sparse_decoder_layers=2,
      num_experts=4,
    ),
    "encoder_decoder",
  ),
  "bart": Case("BartForConditionalGeneration", "BartConfig", BART, "encoder_decoder"),
  "bart-deep": Case(
    "BartForConditionalGeneration",
    "BartConfig",
    BART | dict(encoder_layers=3, scale_embedding=True, activation_function="relu"),
    "encoder_decoder",
  ),
  "bart-heads": Case(
    "BartForConditionalGeneration",
    "BartConfig",
    BART | dict(decoder_attention_heads=2, decoder_ffn_dim=24),
    "encoder_decoder",
  ),
  "mbart": Case("MBartForConditionalGeneration", "MBartConfig", BART, "encoder_decoder"),
  "marian": Case("MarianMTModel", "MarianConfig", BART | MARIAN, "encoder_decoder"),
  "bert": _encoder("ForPreTraining", **NEXT),
  "bert-mlm": _encoder("ForMaskedLM", values=BERT | dict(hidden_act="gelu_new")),
  "bert-next-sentence": _encoder("ForNextSentencePrediction"),
  "bert-classification": _encoder("ForSequenceClassification"),
  "bert-multiple-choice": _encoder("ForMultipleChoice"),
  "bert-tokens": _encoder("ForTokenClassification"),
  "bert-spans": _encoder("ForQuestionAnswering", **SPANS),
  "bert-body": _encoder("Model", **POOLED),
  "roberta": _encoder("ForMaskedLM", "Roberta"),
  "roberta-classification": _encoder("ForSequenceClassification", "Roberta"),
  "roberta-multiple-choice": _encoder("ForMultipleChoice", "Roberta"),
  "roberta-tokens": _encoder("ForTokenClassification", "Roberta"),
  "roberta-spans": _encoder("ForQuestionAnswering", "Roberta", **SPANS),
  "roberta-body": _encoder("Model", "Roberta", **POOLED),
  "xlm-roberta": _encoder("ForMaskedLM", "XLMRoberta"),
  "electra": _encoder("ForPreTraining", "Electra", ELECTRA),
  "electra-generator": _encoder("ForMaskedLM", "Electra", ELECTRA),
  "electra-wide": _encoder("ForMaskedLM", "Electra", ELECTRA | dict(embedding_size=16)),
  "electra-classification": _encoder("ForSequenceClassification", "Electra", ELECTRA),
  "electra-multiple-choice": _encoder("ForMultipleChoice", "Electra", ELECTRA),
  "electra-tokens": _encoder("ForTokenClassification", "Electra", ELECTRA),
  "electra-spans": _encoder("ForQuestionAnswering", "Electra", ELECTRA, **SPANS),
  "electra-body": _encoder("Model", "Electra", ELECTRA, logits="last_hidden_state"),
  "albert": _encoder(
    "ForPreTraining",
    "Albert",
    ALBERT,
    logits="prediction_logits",
    outputs={"sop_logits": "next_sentence_logits"},
  ),
  "albert-mlm": _encoder("ForMaskedLM", "Albert", ALBERT | dict(hidden_act="gelu")),
  "albert-groups": _encoder(
    "ForMaskedLM", "Albert", ALBERT | dict(num_hidden_layers=5, num_hidden_groups=2)
  ),
  "albert-inner": _encoder(
    "ForMaskedLM",
    "Albert",
    ALBERT | dict(num_hidden_layers=3, num_hidden_groups=2, inner_group_num=2),
  ),
  "albert-classification": _encoder("ForSequenceClassification", "Albert", ALBERT),
  "albert-multiple-choice": _encoder("ForMultipleChoice", "Albert", ALBERT),
  "albert-tokens": _encoder("ForTokenClassification", "Albert", ALBERT),
  "albert-spans": _encoder("ForQuestionAnswering", "Albert", ALBERT, **SPANS),
  "albert-body": _encoder("Model", "Albert", ALBERT, **POOLED),
  "deberta-v3": _encoder("ForMaskedLM", "DebertaV2", DEBERTA),
  "deberta-v3-classification": _encoder("ForSequenceClassification", "DebertaV2", DEBERTA),
  "deberta-v3-tokens": _encoder(
    "ForTokenClassification", "DebertaV2", DEBERTA | dict(position_buckets=4)
  ),
  "deberta-v3-spans": _encoder("ForQuestionAnswering", "DebertaV2", DEBERTA, **SPANS),
  "deberta-v3-body": _encoder("Model", "DebertaV2", DEBERTA, logits="last_hidden_state"),
  "xlnet": _encoder("LMHeadModel", "XLNet", XLNET),
  "xlnet-permuted": _encoder(
    "LMHeadModel", "XLNet", XLNET, predicted=4, logits="", outputs={"logits": "permutation_logits"}
  ),
  "xlnet-tokens": _encoder(
    "ForTokenClassification", "XLNet", XLNET | dict(ff_activation="relu", d_model=24, n_head=4)
  ),
  "xlnet-spans": _encoder("ForQuestionAnsweringSimple", "XLNet", XLNET, **SPANS),
  "xlnet-body": _encoder("Model", "XLNet", XLNET, logits="last_hidden_state"),
  "xlm": _encoder("WithLMHeadModel", "XLM", XLM | dict(n_langs=3)),
  "xlm-tokens": _encoder("ForTokenClassification", "XLM", XLM | dict(gelu_activation=False)),
  "xlm-spans": _encoder("ForQuestionAnsweringSimple", "XLM", XLM, **SPANS),
  "xlm-body": _encoder("Model", "XLM", XLM | dict(n_langs=2), logits="last_hidden_state"),
  "modernbert": Case("ModernBertForMaskedLM", "ModernBertConfig", MODERN, "encoder"),
  "modernbert-short": Case(
    "ModernBertForMaskedLM",
    "ModernBertConfig",
    MODERN | dict(num_hidden_layers=1, norm_bias=True),
    "encoder",
  ),
}

VIT = dict(
  hidden_size=16,
  num_hidden_layers=3,
  num_attention_heads=4,
  intermediate_size=24,
  image_size=15,
  patch_size=3,
  num_labels=5,
)
GREY = dict(num_channels=1, qkv_bias=False, hidden_act="gelu_new", image_size=14, patch_size=7)
MAE = dict(
  decoder_hidden_size=12,
  decoder_num_hidden_layers=2,
  decoder_num_attention_heads=3,
  decoder_intermediate_size=20,
  mask_ratio=0.75,
)
TEACHER = dict(cls_logits="class_logits", distillation_logits="distillation_logits")
CASES |= {
  "vit": Case("ViTForImageClassification", "ViTConfig", VIT, "image"),
  "vit-grey": Case("ViTForImageClassification", "ViTConfig", VIT | GREY, "image"),
  "deit": Case(
    "DeiTForImageClassificationWithTeacher", "DeiTConfig", VIT, "image", outputs=TEACHER
  ),
  "deit-plain": Case("DeiTForImageClassification", "DeiTConfig", VIT | dict(num_labels=3), "image"),
  "vit-body": Case("ViTModel", "ViTConfig", VIT, "image", **POOLED),
  "vit-mae": Case("ViTMAEForPreTraining", "ViTMAEConfig", VIT | MAE, "image"),
}
DINO = {key: value for key, value in VIT.items() if key != "intermediate_size"} | dict(mlp_ratio=2)
CASES |= {
  "dinov2": Case("Dinov2ForImageClassification", "Dinov2Config", DINO, "image"),
  "dinov2-registers": Case(
    "Dinov2WithRegistersForImageClassification",
    "Dinov2WithRegistersConfig",
    DINO | dict(num_register_tokens=3, use_swiglu_ffn=True, qkv_bias=False),
    "image",
  ),
}
CLIP_TEXT = dict(
  vocab_size=VOCAB,
  hidden_size=12,
  intermediate_size=20,
  num_hidden_layers=2,
  num_attention_heads=3,
  max_position_embeddings=13,
  bos_token_id=62,
  eos_token_id=1,
  pad_token_id=0,
)
CLIP_IMAGE = {key: VIT[key] for key in VIT if key != "num_labels"}
# EOS as published configs have it, where it is the highest id
PUBLISHED = dict(eos_token_id=2, hidden_act="gelu")
EMBEDDED = dict(
  logits="logits_per_image",
  outputs=dict(image_embeds="image_embeddings", text_embeds="text_embeddings"),
)


def _clip(text: dict, image: dict, **options) -> Case:
  values = dict(text_config=CLIP_TEXT | text, vision_config=CLIP_IMAGE | image, projection_dim=10)
  return Case("CLIPModel", "CLIPConfig", values, "image_text", **options, **EMBEDDED)


CASES |= {
  "clip": _clip({}, {}),
  "clip-published": _clip(
    PUBLISHED, dict(image_size=14, patch_size=7, num_channels=1), rows=5, length=9
  ),
}
SIGNED = dict(
  text_config=CLIP_TEXT | dict(hidden_size=16, num_attention_heads=4),
  vision_config=CLIP_IMAGE | dict(image_size=16),
)
CASES |= {
  "siglip": Case("SiglipModel", "SiglipConfig", SIGNED, "image_text", length=13, **EMBEDDED)
}
MAPS = dict(logits="", outputs=dict(pooler_output="pooled"))
IN_RESNET = {key: value for key, value in RESNET.items() if key != "model_type"} | dict(
  image_size=45, num_labels=5
)
CASES |= {"resnet": Case("ResNetForImageClassification", "ResNetConfig", IN_RESNET, "image")}
CONVNEXT = dict(
  num_stages=3,
  hidden_sizes=[8, 16, 12],
  depths=[1, 2, 1],
  patch_size=3,
  image_size=41,
  num_labels=5,
)
CASES |= {
  "convnext": Case("ConvNextForImageClassification", "ConvNextConfig", CONVNEXT, "image"),
  "convnext-body": Case(
    "ConvNextModel", "ConvNextConfig", CONVNEXT | dict(num_channels=1), "image", **MAPS
  ),
}
SWIN = dict(
  embed_dim=12,
  depths=[2, 3],
  num_heads=[2, 4],
  window_size=3,
  image_size=15,
  patch_size=2,
  num_labels=5,
)
DEEP = dict(
  depths=[4, 2, 1], num_heads=[2, 3, 4], mlp_ratio=2.0, patch_size=4, image_size=46, num_channels=1
)
WIDE = dict(
  depths=[2, 2],
  window_size=4,
  patch_size=4,
  image_size=24,
  pretrained_window_sizes=[2, 3],
  qkv_bias=False,
)
ABSOLUTE = dict(use_absolute_embeddings=True, image_size=16)
CASES |= {
  "swin": Case("SwinForImageClassification", "SwinConfig", SWIN, "image"),
  "swin-grey": Case(
    "SwinForImageClassification", "SwinConfig", SWIN | DEEP | dict(qkv_bias=False), "image"
  ),
  "swin-absolute": Case("SwinForImageClassification", "SwinConfig", SWIN | ABSOLUTE, "image"),
  "swinv2": Case("Swinv2ForImageClassification", "Swinv2Config", SWIN, "image"),
  "swinv2-window": Case("Swinv2ForImageClassification", "Swinv2Config", SWIN | WIDE, "image"),
  "swinv2-grey": Case("Swinv2ForImageClassification", "Swinv2Config", SWIN | DEEP, "image"),
}
CASES |= {name: Case(*classes, "decoder") for name, classes in decoders.MODELS.items()}
CASES |= {name: Case(**values) for name, values in topics.cases("PARITY").items()}


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Return the float32 values of a tensor: scales of norms near one, the others around zero."""
  generator = np.random.default_rng(zlib.crc32(name.encode()))
  noise = generator.standard_normal(shape).astype(np.float32)
  if name.endswith("running_var"):
    return 1 + np.abs(noise)
  is_convolution = name.startswith("model.input_projection") or "convolution.weight" in name
  if len(shape) == 4 and is_convolution:  # He's deviation keeps a ResNet's activations near one
    return np.float32((2 / np.prod(shape[1:])) ** 0.5) * noise
  if name.endswith("weight") and (len(shape) == 1 or "norm" in name.lower()):
    return np.asarray(1 + 0.2 * noise, np.float32)
  if len(shape) > 1:
    return np.asarray(0.3 * noise, np.float32)
  return np.asarray(0.1 * noise, np.float32)


def inputs(case: Case, pad: int, start: int) -> dict[str, np.ndarray]:
  """Return batch features: int32 rows of tokens, two of them padded at the end, or images."""
  generator = np.random.default_rng(7)
  if case.kind == "detection":
    return _padded_images(case, generator)
  if case.kind in ("image", "image_text"):
    return _square_images(case, generator)
  B = case.rows
  T = case.length
  tokens_BT = generator.integers(3, VOCAB, (B, T)).astype(np.int32)
  tokens_BT[1, T - 3 :] = pad
  tokens_BT[2, T // 2 :] = pad
  if case.kind == "decoder":
    return {"decoder_input_tokens": tokens_BT}
  batch = {"encoder_input_tokens": tokens_BT}
  if case.kind == "encoder_decoder":
    decoder = generator.integers(3, VOCAB, (B, T - 2)).astype(np.int32)
    decoder[:, 0] = start
    return batch | {"decoder_input_tokens": decoder}
  if _token_types(case) > 1:
    types_T = (np.arange(T) > T // 3).astype(np.int32)
    batch["encoder_token_types"] = np.tile(types_T, (B, 1))
  if case.predicted:
    batch |= _permutation(tokens_BT != pad, case.predicted, generator)
  return batch


def _padded_images(case: Case, generator: np.random.Generator) -> dict[str, np.ndarray]:
  """Return three images: the second is padded below, the third below and on the right."""
  Y, X = case.size
  channels = case.values.get("num_channels", 3)
  size_B2 = np.array([[Y, X], [Y * 2 // 3, X], [Y // 2 + 1, X * 3 // 4]], np.int32)
  image = generator.standard_normal((3, Y, X, channels)).astype(np.float32)
  for row, (y, x) in enumerate(size_B2):
    image[row, y:] = 0
    image[row, :, x:] = 0
  return {"image": image, "image_size": size_B2}


def _square_images(case: Case, generator: np.random.Generator) -> dict[str, np.ndarray]:
  """Return images, with the patches that are masked or the texts that belong to them."""
  B = case.rows
  T = case.length
  values = case.values.get("vision_config", case.values)
  side = values["image_size"]
  channels = values.get("num_channels", 3)
  batch = {"image": generator.standard_normal((B, side, side, channels)).astype(np.float32)}
  if "mask_ratio" in case.values:
    patches = (side // case.values["patch_size"]) ** 2
    order = generator.permuted(np.tile(np.arange(patches, dtype=np.int32), (B, 1)), axis=1)
    visible = int(patches * (1 - case.values["mask_ratio"]))
    batch |= {"visible_patches": order[:, :visible], "masked_patches": order[:, visible:]}
  if case.kind == "image_text":
    eos = case.values["text_config"]["eos_token_id"]
    if eos == 2:  # as published configs have it; the EOS of rows is the highest id
      eos = VOCAB - 1
    tokens = generator.integers(3, VOCAB - 1, (B, T)).astype(np.int32)
    for row in range(B):  # tokens after the first EOS have no influence
      tokens[row, T - 1 - row :] = eos
    batch["text_input_tokens"] = tokens
  return batch


def _token_types(case: Case) -> int:
  """Return the number of token types of an encoder; XLM's languages are passed as types."""
  if case.config == "ModernBertConfig":
    return 0
  if case.config == "XLMConfig":
    return case.values.get("n_langs", 0)
  return case.values.get("type_vocab_size", 2)


def _permutation(
  is_token_BT: np.ndarray, predicted: int, generator: np.random.Generator
) -> dict[str, np.ndarray]:
  """Return a random order, from 1, of `predicted` tokens of each row, and their positions."""
  order = np.zeros(is_token_BT.shape, np.int32)
  for row, is_token_T in enumerate(is_token_BT):
    chosen = generator.permutation(np.flatnonzero(is_token_T))[:predicted]
    order[row, chosen] = 1 + np.arange(predicted)
  positions = np.stack([np.flatnonzero(row) for row in order]).astype(np.int32)
  return {"encoder_order": order, "encoder_masked_positions": positions}


def valid_positions(case: Case, batch: dict[str, np.ndarray], pad: int) -> np.ndarray:
  """Return a Boolean mask of the positions whose outputs are compared: all but padding."""
  if case.kind == "encoder_decoder":
    return np.ones(batch["decoder_input_tokens"].shape, bool)
  if case.kind in ("image", "image_text", "detection"):
    return np.ones(len(batch["image"]), bool)
  return batch[f"{case.kind}_input_tokens"] != pad


def select_valid(output: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Return an output at the positions of `mask`, or whole where a row has a single value."""
  if output.shape[: mask.ndim] == mask.shape:
    return output[mask]
  return output
