"""Pretrain T5 on unlabelled text and supervised tasks (Raffel et al. 2020, section 3.7).

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/multitask.py --workdir=runs/t5_multitask

The published models of version 1.0 were pretrained in this way. Span corruption is one task among
others, and all are drawn in proportion to their examples. Of the unlabelled text 710,000 examples
count for `:small`, 2,620,000 for base, 8,660,000 for `:large`, 33,500,000 for `:xl` and 133,000,000
for `:xxl`. Of the translations into German and into French 1,000,000 each count. The tasks are
those of `configs/finetune/mixture.py:all`: GLUE, SuperGLUE, SQuAD, summaries and translations. Each
task is evaluated by its metrics. Data are TensorFlow datasets, prepared in the directory that
TFDS_DATA_DIR names.

`:baseline` is the model of section 3.5: denoising without spans, trained from scratch for 2^19 +
2^18 steps.

Expected of `:baseline` on GLUE (table 11) with `--config.task.maximum=2**K`: 80.45 with K = 16,
81.56 with 17, 81.67 with 18, 81.42 with 19, 80.80 with 20 and 79.83 with 21. With K = 21 and
temperatures of 2, 4 and 8: 81.90, 80.56 and 77.21. This recipe has not been run at full size.

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
