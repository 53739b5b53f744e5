"""Fine-tune BERT, RoBERTa and ELECTRA with a head (Devlin et al. 2019, section 4).

  python -m t5x_like.train --config=configs/finetune/encoder.py:own --workdir=runs/reviews \\
      --config.init.workdir=runs/bert_base --config.task.source=reviews.csv
  python -m t5x_like.predict --workdir=runs/reviews --input=new.txt --output=labels.jsonl

`own` reads your own table of texts and labels: CSV, TSV, JSON lines, Parquet, Arrow, a directory of
such files, or a folder of texts for each class. The labels, the columns, the validation split and
the number of steps follow from the table; docs/how-to/fine-tune.md has the keys that name them. Any
other argument is a task of a benchmark:

  python -m t5x_like.train --config=configs/finetune/encoder.py:glue/cola,official \\
      --workdir=runs/cola --config.init.workdir=runs/bert_base --config.task.data_dir=glue_data

With `official` the task is read from its official files in `task.data_dir`, otherwise from the
TensorFlow dataset. `init.workdir` is a pretraining run, of this project or made by
`tools.convert_hf`, or a Hugging Face directory. It gives the architecture and the vocabulary;
without it the model is trained from scratch. `python -m t5x_like.evaluate --suite=glue` runs a
whole table.

BERT trains for 3 epochs in batches of 32. AdamW's rate rises to 3e-5 over a tenth of the steps; it
decays from step 0, as in the authors' code. The best checkpoint on the dev set is kept. The paper
tries rates from 5e-5 to 2e-5 for GLUE and keeps the best. It has other rates, batches and epochs
for SQuAD 1.1 (5e-5, 32, 3), SQuAD 2.0 (5e-5, 48, 2) and SWAG (2e-5, 16, 3).

`,electra` has the values of base size in Clark et al. 2020, appendix B, table 7: a rate of 1e-4,
0.8 of a layer's rate for the layer below it, a linear layer on the raw [CLS], 10 epochs for RTE and
STS-B, and 2 for SQuAD. `own,electra` has the head of Hugging Face, with a dense layer before the
linear one.

`,roberta` has the values of Liu et al. 2019, table 10. For GLUE they are the lowest rate, 1e-5, 10
epochs and a weight decay of 0.1; SQuAD and RACE have other values. The warm-up takes 6 % of the
steps, and the rate decays from its end. b2 is 0.98, and gradients are not clipped.

Expected of BERT base on the test sets: SST-2 93.5, CoLA 52.1. This recipe has not been run at full
size.

Differences of `,electra` from the authors' code: MRPC and STS-B are read in one order instead of
both, the targets of STS-B are not divided by 5, and the end of a SQuAD answer is predicted
independently of its start.
"""

from typing import Literal

from t5x_like.benchmarks import suites
from t5x_like.config import defaults

_TASKS = suites.benchmarks_for("encoder")
LAPTOP = {"schedule.learning_rate": 3e-4, "schedule.warmup_steps": 0.1}

# (learning rate, batch size, weight decay, epochs) by the prefix of a task's name. The first match
# counts; "" is GLUE and all other tasks.
_BERT = {
  "squad/squad_v2": (5e-5, 48, 0.01, 2),
  "squad/squad": (5e-5, 32, 0.01, 3),
  "choices/swag": (2e-5, 16, 0.01, 3),
  "": (3e-5, 32, 0.01, 3),
}
_ROBERTA = {
  "squad/": (1.5e-5, 48, 0.01, 2),
  "choices/race_": (1e-5, 16, 0.1, 4),
  "": (1e-5, 32, 0.1, 10),
}
_ELECTRA = {
  "glue/rte": (1e-4, 32, 0.01, 10),
  "glue/stsb": (1e-4, 32, 0.01, 10),
  "squad/squad": (1e-4, 32, 0.01, 2),
  "": (1e-4, 32, 0.01, 3),
}


def get_config(
  task: Literal[("own", *_TASKS)] = "glue/sst2",
  roberta: bool = False,
  electra: bool = False,
  official: bool = False,
):
  config = defaults()
  if roberta:
    name = "roberta"
    variant = "roberta-base"
    table = _ROBERTA
  elif electra:
    name = "t5x_like.models.electra:Discriminator"
    variant = "electra-base"
    table = _ELECTRA
  else:
    name = "bert"
    variant = "bert-base-uncased"
    table = _BERT
  config.model = {"name": name, "variant": variant, "dropout": 0.1, "vocab_size": 30_720}
  if task == "own":
    _read_own_table(config)
  else:
    suites.apply_form(config, _TASKS[task], _TASKS[task].encoder, official)

  rate, config.batch_size, decay, epochs = next(
    values for prefix, values in table.items() if task.startswith(prefix)
  )
  if task == "own":
    config.epochs = float(epochs)
  else:
    config.total_steps = max(1, epochs * _TASKS[task].examples // config.batch_size)
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": decay}
  config.schedule = {
    "name": "linear",
    "learning_rate": rate,
    "warmup_steps": 0.1,
    "decay": "from_start",
  }
  config.clip_norm = 1.0
  if roberta:
    config.optimizer.b2 = 0.98
    config.schedule.update({"warmup_steps": 0.06, "decay": "after_warmup"})
    config.clip_norm = 0.0
  elif electra:
    config.schedule.decay = "from_start_times_warmup"
    config.tuning = {"name": "layer_decay", "rate": 0.8}
    if config.model.head["name"] == "classification":
      config.model.head["activation"] = "gelu" if task == "own" else None
  config.eval_every = None
  config.checkpoint = {"every": None, "keep_last": 1}
  return config


def _read_own_table(config) -> None:
  """Leave open the values that follow from the table (`t5x_like/data/open_values/`)."""
  config.task = {
    "name": "classification",
    "source": None,
    "text": "auto",
    "label_field": "auto",
    "labels": "auto",
  }
  config.task.buckets = suites.BUCKETS
  config.objective = {"name": "classification"}
  config.model.head = {"name": "classification"}
  config.evals = {
    "validation": {
      "name": "classification",
      "scores": ["accuracy", "macro_f1"],
      "split": "validation",
    }
  }
  config.selection = {"metric": "eval/validation/accuracy"}
  config.total_steps = None
