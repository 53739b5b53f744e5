"""The features of every task, from its arguments alone: without TensorFlow, a corpus or a store.

Plans are compiled from them where there is no data. A test holds them to what tasks themselves declare.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.data import vocabularies
from t5x_like.data.preprocessors import lengths
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Feature:
  """The shape, without the batch axis, and the dtype's name of a feature."""

  shape: tuple[int, ...]
  dtype: str


Features = dict[str, Feature]


def known(name: str | None) -> bool:
  """Whether a task's features can be told without making it."""
  return name in _TASKS


def of(arguments: Mapping[str, Any]) -> Features:
  """The features of a task, from its name and arguments as recipes give them; what is left out has its default.

  Raises:
    UserError: a task that is not `known`.
  """
  values = dict(arguments)
  name = values.pop("name", None)
  if not known(name):
    raise UserError(f"config.task.name: the features of {name!r} are told only by making the task, from its data")
  return _TASKS[name](**values)


def encoder_decoder(inputs_length: int, targets_length: int, vocabulary=None) -> Features:
  """Of every unpacked encoder-decoder task; where the vocabulary has no padding, segments tell it."""
  targets = Feature((targets_length,), "int32")
  segments = vocabulary is not None and vocabulary.pad_id is None
  return ({"encoder_segment_ids": Feature((inputs_length,), "int32")} if segments else {}) | {
    "encoder_input_tokens": Feature((inputs_length,), "int32"),
    "decoder_input_tokens": targets,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": Feature((targets_length,), "float32"),
  }


def decoder(length: int, *more: str) -> Features:
  """Of every decoder task: windows of `length` tokens, and further features of int32."""
  names = ("input_tokens", "target_tokens", *more)
  described = {f"decoder_{name}": Feature((length,), "int32") for name in names}
  return described | {"decoder_loss_weights": Feature((length,), "float32")}


def encoder(length: int, *more: str) -> Features:
  """Of every encoder task: rows of `length` tokens, and further features of int32."""
  names = ("input_tokens", "token_types", *more)
  return {f"encoder_{name}": Feature((length,), "int32") for name in names}


def images(resolution: int, channels: int, mixed: bool) -> Features:
  """Of tasks on labelled images; `mixed` is whether images are mixed with others."""
  described = {
    "image": Feature((resolution, resolution, channels), "float32"),
    "label": Feature((), "int32"),
    "example_weights": Feature((), "float32"),
  }
  both = {"other_label": Feature((), "int32"), "label_share": Feature((), "float32")}
  return described | (both if mixed else {})


def _image_classification(resolution: int = 224, channels: int = 3, mixing: Any = None, **_) -> Features:
  return images(resolution, channels, mixing is not None)


def image_text(resolution: int = 224, channels: int = 3, length: int = 77, **_) -> Features:
  """Of images and their captions."""
  described = images(resolution, channels, False)
  del described["label"]
  return described | {"text_input_tokens": Feature((length,), "int32")}


def patches(resolution: int, patch: int, mask_ratio: float) -> tuple[int, int]:
  """How many patches of an image are seen, and how many are masked."""
  whole = (resolution // patch) ** 2
  visible = int(whole * (1 - mask_ratio))
  return visible, whole - visible


def masked(described: Features, resolution: int, patch: int, mask_ratio: float) -> Features:
  """Features of images, and the numbers of their patches that are seen and that are masked."""
  names = ("visible_patches", "masked_patches")
  return described | {
    name: Feature((n,), "int32") for name, n in zip(names, patches(resolution, patch, mask_ratio), strict=True)
  }


def corrupted(described: Features, resolution: int, patch: int) -> Features:
  """Features of images, and for each patch what stands in its place, whether it is predicted, and its colour."""
  T = (resolution // patch) ** 2
  dtypes = {"patch_sources": "int32", "patch_weights": "float32", "patch_colours": "int32"}
  return described | {name: Feature((T,), dtype) for name, dtype in dtypes.items()}


def _corrupted_images(resolution: int = 224, channels: int = 3, patch: int = 16, **_) -> Features:
  return corrupted(images(resolution, channels, False), resolution, patch)


def _masked_images(
  resolution: int = 224, channels: int = 3, patch: int = 16, mask_ratio: float = 0.75, **_
) -> Features:
  return masked(images(resolution, channels, False), resolution, patch, mask_ratio)


def detection(resolution: int, channels: int, boxes: int) -> Features:
  """Of images with boxes."""
  return {
    "image": Feature((resolution, resolution, channels), "float32"),
    "image_size": Feature((2,), "int32"),
    "boxes": Feature((boxes, 4), "float32"),
    "box_labels": Feature((boxes,), "int32"),
    "example_weights": Feature((), "float32"),
  }


def _object_detection(resolution: int = 1333, channels: int = 3, boxes: int = 100, **_) -> Features:
  return detection(resolution, channels, boxes)


def _causal_lm(length: int = 1024, document_mask: bool = False, **_) -> Features:
  return decoder(length, *("segment_ids", "positions") * document_mask)


def _prefix_lm(length: int = 512, architecture: str = "decoder", **_) -> Features:
  return decoder(length, "causal_attention") if architecture == "decoder" else encoder_decoder(length, length)


def _bart(length: int = 512, **_) -> Features:
  return encoder_decoder(length, length) | {"encoder_segment_ids": Feature((length,), "int32")}


def _span_corruption(
  inputs_length: int = 512,
  targets_length: int | None = None,
  noise_density: float = 0.15,
  mean_noise_span_length: float = 3.0,
  random_roll: bool = False,
  prefix: str = "",
  store: str = "builtin",
  **_,
) -> Features:
  room = int(random_roll)
  if targets_length is None:
    kept = inputs_length - len(_ids(prefix, store)) - room
    targets_length = lengths.random_spans_lengths(kept, float(noise_density), float(mean_noise_span_length))[1] + room
  return encoder_decoder(inputs_length, targets_length)


def _denoising(style: str, inputs_length: int = 512, noise_density: float = 0.15, **_) -> Features:
  return encoder_decoder(inputs_length, lengths.denoising(style, inputs_length, noise_density)[2])


def _ul2(
  length: int = 512,
  mode_tokens: bool = False,
  rates: Mapping[str, float] = {},  # noqa: B006
  random_roll: bool = False,
  store: str = "builtin",
  **_,
) -> Features:
  inputs, targets = [], []
  for name in lengths.DENOISERS:
    if rates.get(name, 1):
      own = lengths.denoiser(name, length, random_roll)
      inputs.append(own[0] + len(_ids(lengths.MODES[name[0]], store) if mode_tokens else []))
      targets.append(own[1])
  return encoder_decoder(max(inputs), max(targets))


def _salient_spans(inputs_length: int = 512, targets_length: int = 32, **_) -> Features:
  return encoder_decoder(inputs_length, targets_length)


def rows_of(length: int, architecture: str, rows: int | None) -> Features:
  """Of the rows of labelled texts; None is an encoder's only one, without an axis."""
  described = encoder(length) if architecture == "encoder" else decoder(length, "segment_ids")
  if rows is None and architecture == "encoder":
    return described
  return {name: Feature((rows or 1, *one.shape), one.dtype) for name, one in described.items()}


def _classification(
  length: int = 128, labels: Any = None, architecture: str = "encoder", both_orders: bool = False, **_
) -> Features:
  kind = "float32" if labels is None else "int32"
  more = {"label": Feature((), kind), "example_weights": Feature((), "float32")}
  return rows_of(length, architecture, 2 if both_orders else None) | more


def _chat(length: int = 2048, **_) -> Features:
  return decoder(length, "segment_ids", "positions")


def _preferences(length: int = 1024, **_) -> Features:
  return {name: Feature((2, *one.shape), one.dtype) for name, one in decoder(length, "segment_ids").items()}


def multiple_choice(length: int = 128, choices: int = 4, architecture: str = "encoder", **_) -> Features:
  rows = rows_of(length, architecture, choices)
  more = {"option_labels": Feature((choices,), "int32"), "label": Feature((), "int32")}
  return rows | more | {"example_weights": Feature((), "float32")}


def _tagging(length: int = 128, **_) -> Features:
  return encoder(length, "target_tokens") | {"encoder_loss_weights": Feature((length,), "float32")}


def _span_qa(length: int = 384, **_) -> Features:
  ends = {name: Feature((), "int32") for name in ("span_start", "span_end")}
  return encoder(length) | ends | {"example_weights": Feature((), "float32")}


def _mlm(
  length: int = 512,
  input_format: str = "full_sentences",
  masking: str = "tokens",
  rate: float = 0.15,
  segment_ids: bool = True,
  packed: bool = True,
  **_,
) -> Features:
  packed = packed and segment_ids and input_format in ("segment_pair", "doc_sentences")
  more = ["target_tokens"] + ["segment_ids"] * segment_ids + ["positions"] * packed
  more += ["span_starts", "span_ends"] if masking == "spans" else []
  described = encoder(length, *more) | {"encoder_loss_weights": Feature((length,), "float32")}
  described["encoder_masked_positions"] = Feature((max(1, round(rate * length)),), "int32")
  if input_format.endswith("_pair"):
    described["next_sentence_label"] = Feature((), "int32")
  if packed and input_format == "segment_pair":
    pairs = Feature((length // 8,), "int32")
    described |= {"next_sentence_label": pairs, "encoder_cls_positions": pairs}
  return described


def _text_to_text(
  inputs_length: int = 512,
  targets_length: int | None = None,
  architecture: str = "encoder_decoder",
  prefix: bool = False,
  packed: bool = True,
  **_,
) -> Features:
  places = ("segment_ids", "positions")
  if architecture == "decoder":  # its padding is marked by segment 0, as its start id may be any id
    return decoder(inputs_length, *("causal_attention",) * prefix, *places)
  sides = {"encoder": inputs_length, "decoder": inputs_length if targets_length is None else targets_length}
  described = encoder_decoder(*sides.values())
  for side, length in sides.items() if packed else ():
    described |= {f"{side}_{name}": Feature((length,), "int32") for name in places}
  return described


def _mixture(parts: Mapping[str, Any], shared: Mapping[str, Any] = {}, **_) -> Features:  # noqa: B006
  """Each feature in its greatest length: parts are padded to one another."""
  common: Features = {}
  for part in parts.values():
    for name, feature in of({**shared, **part}).items():
      longest = tuple(map(max, feature.shape, common.get(name, feature).shape))
      common[name] = Feature(longest, feature.dtype)
  return common


def _ids(text: str, store: str) -> list[int]:
  return vocabulary(store).encode(text) if text else []


def vocabulary(store: str):
  """The vocabulary of a store, or bytes where there is none to read."""
  try:
    return vocabularies.load("bytes" if store == "builtin" else f"{store}/train/vocabulary")
  except UserError:
    return vocabularies.load("bytes")


_TASKS: dict[str, Callable[..., Features]] = {
  "bart": _bart,
  "causal_lm": _causal_lm,
  "chat": _chat,
  "classification": _classification,
  "denoising": _denoising,
  "fill_in_the_middle": _causal_lm,
  "image_classification": _image_classification,
  "corrupted_images": _corrupted_images,
  "image_text": image_text,
  "masked_images": _masked_images,
  "mixture": _mixture,
  "mlm": _mlm,
  "prefix_lm": _prefix_lm,
  "multiple_choice": multiple_choice,
  "object_detection": _object_detection,
  "preferences": _preferences,
  "salient_spans": _salient_spans,
  "span_corruption": _span_corruption,
  "span_qa": _span_qa,
  "tagging": _tagging,
  "text_to_text": _text_to_text,
  "ul2": _ul2,
}
