"""T5, pretrained on unlabelled text and on all supervised tasks of the paper at once.

Source: Raffel et al. 2020.

  python -m tools.prepare_data --source=tfds:c4/en --vocabulary=VOCABULARY --output=data/c4_en
  python -m t5x_like.train --config=configs/t5/multitask.py --workdir=runs/t5_multitask

The published models of version 1.0 were pretrained so (section 3.7): span corruption as one task
among the others, all drawn in proportion to their examples. Of the unlabelled text 710,000 examples
count for `:small`, 2,620,000 for base, 8,660,000 for `:large`, 33,500,000 for `:xl` and 133,000,000
for `:xxl`, and of translations into German and into French 1,000,000 each. The tasks are those of
`configs/finetune/mixture.py:all`: GLUE, SuperGLUE, SQuAD, summaries and translations. The paper
trains 1,000,000 steps of 2,048 sequences; batches of 128 here.

`:baseline` is that of section 3.5, denoising without spans, and trains 2^19 + 2^18 steps from
scratch. Expected on GLUE (table 11) with `--config.task.maximum=2**K`: 80.45 with K = 16, 81.56
with 17, 81.67 with 18, 81.42 with 19, 80.80 with 20, 79.83 with 21; of temperature 2, 4 and 8 with
21: 81.90, 80.56, 77.21. Every task is evaluated by its own metrics. Data are TensorFlow datasets,
prepared in the directory that TFDS_DATA_DIR names. Not run at full size here.
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
# Of ReCoRD each answer is an example, of WSC those whose referent is right; of large translations
# not all count.
_COUNTED = {"en_de": 1_000_000, "en_fr": 1_000_000, "record": 138_854, "wsc": 259, "dpr": 1_322}
LAPTOP = {"task.parts.unlabelled.inputs_length": 128, "task.rates": "equal", "task.weights": {}}
LAPTOP |= {"evals": {"loss": {"max_examples": 64}}}


def get_config(size: Literal[tuple(_UNLABELLED)] = "base", baseline: bool = False):
  config = base.get_config(size, v1_0=True)
  if baseline:
    config.task = architectures.get_config().task
    config.total_steps = 2**19 + 2**18
  tasks = mixture.get_config("all")
  own = {"vocabulary": "data/c4_en/vocabulary"}
  texts = {key: tasks.task.shared[key] for key in ("targets_length", "too_long", "packed")} | own
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
  config.evals.update(
    {label: entry | {"task": entry["task"] | own} for label, entry in tasks.evals.to_dict().items()}
  )
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
    examples = {
      label: benchmark.examples for label, benchmark in mixture.tasks("all").items()
    } | _COUNTED
    halves = {label: examples[label] * weight for label, weight in tasks.task.weights.items()}
    config.task.rates = examples | halves | {"unlabelled": _UNLABELLED[size]}
  # the tasks name their own splits
  config.eval_split = "train"
  config.eval_every = 5_000
  return config
