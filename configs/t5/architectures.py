"""Pretrain T5's architectures and objectives (Raffel et al. 2020, section 3.2.4, table 2).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/architectures.py:prefix_lm \\
      --workdir=runs/prefix_denoising

The recipe covers all ten rows of table 2. They train 2^19 steps of 128 sequences on one store, with
the blocks of T5 base (version 1.0). Denoising drops 15 % of the tokens and replaces each run of
them by a sentinel, as in the paper's baseline (section 3.1.4). With `:lm` the rest of a window is
predicted from its beginning; the language model predicts the whole window. Decoders read the inputs
and targets of denoising as one sequence. The language model learns all of it, the prefix LM only
the targets.

`evaluate --suite=glue,superglue` fine-tunes the encoder-decoders as text-to-text. Suites fine-tune
decoders in GPT-1's form. To fine-tune them as text-to-text, use the task `text_to_text` with
`architecture="decoder"` and, for the prefix LM, `prefix`. The inputs of the paper's decoders end in
" target:".

Expected averages on GLUE and SuperGLUE, after denoising and after language modelling:

  encoder_decoder  83.28 71.36  79.56 64.29      language_model  74.70 55.02  73.78 56.51
  shared           82.81 70.73  79.60 63.50      prefix_lm       81.82 68.11  79.68 64.86
  six_layers       80.88 68.42  78.67 64.06

This recipe has not been run at full size.
"""

from typing import Literal

from configs.t5 import base

_MODELS = {
  "encoder_decoder": ("t5", "t5-base"),
  "shared": ("t5", "t5-base-shared"),
  "six_layers": ("t5", "t5-base-6"),
  "language_model": ("t5_lm", "base"),
  "prefix_lm": ("t5_lm", "prefix-base"),
}
_DECODERS = {"language_model": "causal", "prefix_lm": "prefix"}


def get_config(architecture: Literal[tuple(_MODELS)] = "encoder_decoder", lm: bool = False):
  config = base.get_config(v1_0=True)
  name, variant = _MODELS[architecture]
  decoder = _DECODERS.get(architecture)

  config.model = {"name": name, "variant": variant, "vocab_size": 32_128, "dropout": 0.1}
  config.objective = {"name": "decoder" if decoder else "encoder_decoder", "z_loss": 1e-4}
  store = {"store": "data/c4_en", "documents_end": "nothing"}
  if not lm:
    config.task = {"name": "denoising", "style": "replace_spans", "inputs_length": 512} | store
    if decoder:
      config.task.as_decoder = decoder
  elif decoder == "causal":
    config.task = {"name": "causal_lm", "length": 512} | store
  else:
    form = "decoder" if decoder else "encoder_decoder"
    config.task = {"name": "prefix_lm", "length": 512, "architecture": form} | store

  config.evals = {"loss": {"max_examples": 16_384}}
  return config
