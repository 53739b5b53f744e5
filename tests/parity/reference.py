"""The independent side: `transformers` models made, saved and run (torch on CPU)."""

import logging
import os
import pathlib

import numpy as np

from parity import cases

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
logging.getLogger("transformers").setLevel(logging.ERROR)


def make(case: cases.Case, directory: pathlib.Path):
  """Saves the random model of a case to a directory and returns it as loaded from there."""
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
  saved = {
    n.replace("decoder_encoder.layer.", "decoder_layers."): x for n, x in load_file(path).items()
  }
  save_file(
    {n: cases.tensor(n, x.shape) for n, x in saved.items()}, path, metadata={"format": "pt"}
  )
  return read(case, directory)


def read(case: cases.Case, directory: pathlib.Path):
  import transformers

  transformers.utils.logging.disable_progress_bar()
  return getattr(transformers, case.model).from_pretrained(directory).eval()


def ids(model) -> tuple[int, int]:
  """(padding, decoder start) of a model; padding is 0 where it has none."""
  config = model.config
  return getattr(config, "pad_token_id", None) or 0, getattr(
    config, "decoder_start_token_id", None
  ) or 0


def run(case: cases.Case, model, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Its logits, under our names."""
  import torch

  names = ({case.logits: "logits"} if case.logits else {}) | case.outputs
  if case.kind == "detection":
    Y, X = batch["image"].shape[1:3]
    rows_BY, columns_BX = (np.arange(n) < batch["image_size"][:, [i]] for i, n in enumerate((Y, X)))
    mask = torch.tensor((rows_BY[:, :, None] & columns_BX[:, None]).astype(np.int64))
    with torch.no_grad():
      out = model(torch.tensor(batch["image"]).permute(0, 3, 1, 2), pixel_mask=mask)
    return {ours: getattr(out, theirs).numpy() for theirs, ours in names.items()}
  if case.kind == "image":
    noise = {}
    if "masked_patches" in batch:  # those of the least noise are seen
      order = np.concatenate([batch["visible_patches"], batch["masked_patches"]], axis=1)
      noise = {"noise": torch.tensor(np.argsort(order, axis=1).astype(np.float32))}
    with torch.no_grad():
      out = model(torch.tensor(batch["image"]).permute(0, 3, 1, 2), **noise)
    if noise:
      return {
        "logits": np.take_along_axis(out.logits.numpy(), batch["masked_patches"][..., None], axis=1)
      }
    return {ours: getattr(out, theirs).numpy() for theirs, ours in names.items()}
  if case.kind == "image_text":
    tokens = torch.tensor(np.asarray(batch["text_input_tokens"], np.int64))
    with torch.no_grad():
      out = model(input_ids=tokens, pixel_values=torch.tensor(batch["image"]).permute(0, 3, 1, 2))
    return {ours: getattr(out, theirs).numpy() for theirs, ours in names.items()}
  pad, _ = ids(model)
  tokens = batch.get("encoder_input_tokens", batch.get("decoder_input_tokens"))
  arguments = {"input_ids": tokens, "attention_mask": tokens != pad}
  if case.kind == "encoder_decoder":
    arguments["decoder_input_ids"] = batch["decoder_input_tokens"]
  if "encoder_token_types" in batch:
    arguments["langs" if case.config == "XLMConfig" else "token_type_ids"] = batch[
      "encoder_token_types"
    ]
  if case.predicted:  # a token that is predicted hides from those that are not predicted after it
    order = batch["encoder_order"]
    places = batch["encoder_masked_positions"]
    arguments["perm_mask"] = order[:, None] >= np.maximum(order, 1)[:, :, None]
    arguments["target_mapping"] = places[..., None] == np.arange(tokens.shape[1])
  if "MultipleChoice" in case.model:  # one example, whose choices are the rows
    arguments = {n: x[None] for n, x in arguments.items()}
  with torch.no_grad():
    kinds = {"perm_mask": np.float32, "target_mapping": np.float32}
    out = model(
      **{n: torch.tensor(np.asarray(x, kinds.get(n, np.int64))) for n, x in arguments.items()}
    )
  return {ours: getattr(out, theirs).numpy() for theirs, ours in names.items()}
