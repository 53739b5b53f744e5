"""Create, save and run the `transformers` models (torch on the CPU) that ours are compared with."""

import logging
import os
import pathlib

import numpy as np

from parity import cases

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
logging.getLogger("transformers").setLevel(logging.ERROR)


def make(case: cases.Case, directory: pathlib.Path):
  """Save the random model of a case to a directory and return it as loaded from there."""
  import torch
  import transformers
  from safetensors.numpy import load_file, save_file

  transformers.utils.logging.disable_progress_bar()
  torch.manual_seed(0)
  cls = getattr(transformers, case.model)
  model = cls(getattr(transformers, case.config)(**case.values)).eval()
  if case.untied:
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
  model.save_pretrained(directory)
  path = directory / "model.safetensors"
  # Some versions write the decoder of ViTMAE under names that no published file has.
  tensors = {}
  for name, array in load_file(path).items():
    published_name = name.replace("decoder_encoder.layer.", "decoder_layers.")
    tensors[published_name] = cases.tensor(published_name, array.shape)
  save_file(tensors, path, metadata={"format": "pt"})
  return read(case, directory)


def read(case: cases.Case, directory: pathlib.Path):
  """Return the model of a case as `transformers` loads it from a directory."""
  import transformers

  transformers.utils.logging.disable_progress_bar()
  return getattr(transformers, case.model).from_pretrained(directory).eval()


def ids(model) -> tuple[int, int]:
  """Return (padding id, decoder start id) of a model; 0 stands for an id that it lacks."""
  pad = getattr(model.config, "pad_token_id", None)
  start = getattr(model.config, "decoder_start_token_id", None)
  return pad or 0, start or 0


def run(case: cases.Case, model, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return the model's outputs for a batch of our features, under our names of outputs."""
  import torch

  with torch.no_grad():
    outputs = model(**_arguments(case, model, batch))
  if "masked_patches" in batch:
    patches = batch["masked_patches"][..., None]
    return {"logits": np.take_along_axis(outputs.logits.numpy(), patches, axis=1)}
  arrays = {}
  if case.logits:
    arrays["logits"] = getattr(outputs, case.logits).numpy()
  for hf_name, our_name in case.outputs.items():
    arrays[our_name] = getattr(outputs, hf_name).numpy()
  return arrays


def _arguments(case: cases.Case, model, batch: dict[str, np.ndarray]) -> dict:
  """Return the tensors that `model` takes, by argument, for a batch of our features."""
  import torch

  arguments = {}
  if "image" in batch:
    arguments["pixel_values"] = torch.tensor(batch["image"]).permute(0, 3, 1, 2)
  if case.kind == "detection":
    Y, X = batch["image"].shape[1:3]
    rows_BY = np.arange(Y) < batch["image_size"][:, [0]]
    columns_BX = np.arange(X) < batch["image_size"][:, [1]]
    mask_BYX = rows_BY[:, :, None] & columns_BX[:, None]
    arguments["pixel_mask"] = torch.tensor(mask_BYX.astype(np.int64))
  elif "masked_patches" in batch:  # the library shows the patches of the least noise
    order = np.concatenate([batch["visible_patches"], batch["masked_patches"]], axis=1)
    arguments["noise"] = torch.tensor(np.argsort(order, axis=1).astype(np.float32))
  elif case.kind == "image_text":
    arguments["input_ids"] = torch.tensor(np.asarray(batch["text_input_tokens"], np.int64))
  elif case.kind != "image":
    for name, array in _text_arguments(case, ids(model)[0], batch).items():
      dtype = np.float32 if name in ("perm_mask", "target_mapping") else np.int64
      arguments[name] = torch.tensor(np.asarray(array, dtype))
  return arguments


def _text_arguments(
  case: cases.Case, pad: int, batch: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Return the arrays that a model of text takes, by argument."""
  tokens = batch.get("encoder_input_tokens", batch.get("decoder_input_tokens"))
  arguments = {"input_ids": tokens, "attention_mask": tokens != pad}
  if case.kind == "encoder_decoder":
    arguments["decoder_input_ids"] = batch["decoder_input_tokens"]
  if "encoder_token_types" in batch:
    argument = "langs" if case.config == "XLMConfig" else "token_type_ids"
    arguments[argument] = batch["encoder_token_types"]
  if case.predicted:  # a predicted token hides from tokens that are not predicted after it
    order = batch["encoder_order"]
    positions = batch["encoder_masked_positions"]
    arguments["perm_mask"] = order[:, None] >= np.maximum(order, 1)[:, :, None]
    arguments["target_mapping"] = positions[..., None] == np.arange(tokens.shape[1])
  if "MultipleChoice" in case.model:  # one example, whose choices are the rows
    arguments = {name: array[None] for name, array in arguments.items()}
  return arguments
