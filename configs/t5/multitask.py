"""Pretrain T5 on unlabelled text and supervised tasks (Raffel et al. 2020, section 3.7).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/multitask.py --workdir=runs/t5_multitask

The published models of version 1.0 were pretrained in this way. Span corruption is one task among
others, and all are drawn in proportion to their examples. Of the unlabelled text 710,000 examples
count for `:small`, 2,620,000 for base, 8,660,000 for `:large`, 33,500,000 for `:xl` and 133,000,000
for `:xxl`. Of the translations into German and into French 1,000,000 each count. `:all` of
`configs/finetune/mixture.py` has the same tasks: GLUE, SuperGLUE, SQuAD, summaries and
translations. Each task is evaluated by its metrics. Data are TensorFlow datasets, prepared in the
directory that TFDS_DATA_DIR names.

`:baseline` is the model of section 3.5: denoising without spans, trained from scratch for 2^19 +
2^18 steps.

Expected of `:baseline` (table 11) on GLUE, CNN/Daily Mail, SQuAD, SuperGLUE, and WMT from English
to German, French and Romanian, with `--config.task.maximum=2**K`; with temperatures, K = 21:

  equal rates    76.13 19.02 76.51 63.37 23.89 34.31 26.78
  K = 16         80.45 19.04 77.25 69.95 24.35 34.99 27.10
  K = 17         81.56 19.12 77.00 67.91 24.36 35.00 27.25
  K = 18         81.67 19.07 78.17 67.94 24.57 35.19 27.39
  K = 19         81.42 19.24 79.78 67.30 25.21 36.30 27.76
  K = 20         80.80 19.24 80.36 67.38 25.66 36.93 27.68
  K = 21         79.83 18.79 79.50 65.10 25.82 37.22 27.13
  temperature 2  81.90 19.28 79.42 69.92 25.42 36.72 27.20
  temperature 4  80.56 19.22 77.99 69.54 25.04 35.82 27.45
  temperature 8  77.21 19.10 77.14 66.07 24.55 35.35 27.17

This recipe has not been run at full size.

Differences: the paper trains 1,000,000 steps of 2,048 sequences; here batches have 128.
"""

from typing import Literal

from configs.finetune import mixture
from configs.t5 import architectures, base

_UNLABELLED = {
  "small": 710_000,
  "base": 2_620_000,
  "large": 8_660_000,
  "xl": 33_500_000,
  "xxl": 133_000_000,
}
# The numbers of examples that differ from the benchmarks': each answer of ReCoRD is one, WSC has
# those whose referent is right, and large translations are limited.
_COUNTED = {"en_de": 1_000_000, "en_fr": 1_000_000, "record": 138_854, "wsc": 259, "dpr": 1_322}
LAPTOP = {
  "task.parts.unlabelled.inputs_length": 128,
  "task.rates": "equal",
  "task.weights": {},
  "evals": {"loss": {"max_examples": 64}},
}


def get_config(size: Literal[tuple(_UNLABELLED)] = "base", baseline: bool = False):
  config = base.get_config(size, v1_0=True)
  if baseline:
    config.task = architectures.get_config().task
    config.total_steps = 2**19 + 2**18
  tasks = mixture.get_config("all")
  vocabulary = {"vocabulary": "data/c4_en/vocabulary"}
  texts = {key: tasks.task.shared[key] for key in ("targets_length", "too_long", "packed")}
  texts |= vocabulary
  parts = {label: texts | part for label, part in tasks.task.parts.to_dict().items()}
  unlabelled = config.task.to_dict()
  config.evals = {
    "unlabelled": {
      "name": "loss",
      "task": unlabelled,
      "split": "validation",
      "max_examples": 16_384,
    }
  }
  for label, evaluator in tasks.evals.to_dict().items():
    config.evals[label] = evaluator | {"task": evaluator["task"] | vocabulary}
  config.task = {
    "name": "mixture",
    "shared": {"name": "text_to_text", "inputs_length": 512},
    "parts": {"unlabelled": unlabelled} | parts,
    "weights": {},
    "period": tasks.task.period,
  }
  if baseline:
    config.task.update(
      {key: tasks.task[key] for key in ("rates", "temperature", "maximum", "weights")}
    )
  else:
    rates = {label: benchmark.examples for label, benchmark in mixture.tasks("all").items()}
    rates |= _COUNTED
    for label, weight in tasks.task.weights.items():
      rates[label] *= weight
    config.task.rates = rates | {"unlabelled": _UNLABELLED[size]}
  # the tasks name their own splits
  config.eval_split = "train"
  config.eval_every = 5_000
  return config
