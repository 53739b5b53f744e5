"""BERT, RoBERTa and ELECTRA, fine-tuned with a head.

Source: Devlin et al. 2019, section 4; Clark et al. 2020, appendix B.

  python -m t5x_like.train --config=configs/finetune/encoder.py:own --workdir=runs/reviews \\
      --config.init.workdir=runs/bert_base --config.task.source=reviews.csv
  python -m t5x_like.predict --workdir=runs/reviews --input=new.txt --output=labels.jsonl

`own` reads your own table of texts and labels: CSV, TSV, JSON lines, Parquet, Arrow, a directory of
such files, or a folder of texts for each class. The labels, the columns, the validation split and
the number of steps follow from the table; docs/how-to/fine-tune.md has the keys that name them.
Benchmarks have their own arguments:

  python -m t5x_like.train --config=configs/finetune/encoder.py:glue/cola,official \\
      --workdir=runs/cola \\
      --config.init.workdir=runs/bert_base --config.task.data_dir=glue_data

The argument is then a task of a suite; with `official` it is read from its official files in
`task.data_dir`, otherwise from the TensorFlow dataset. `init.workdir` is a run of pretraining, ours
or made by `tools.convert_hf`, or a Hugging Face directory; it gives the architecture and the
vocabulary, and without it the model is trained from scratch. AdamW, 32 examples, 3 epochs, 3e-5
after a tenth of them to warm up, the best checkpoint on the dev set; the rate decays from step 0,
as in the authors' code. The paper takes the best of the rates 5e-5 to 2e-5 for GLUE, and has values
for SQuAD 1.1 (5e-5, 32, 3 epochs), SQuAD 2.0 (5e-5, 48, 2) and SWAG (2e-5, 16, 3). `,electra` has
1e-4, 0.8 of a layer's rate for the one below it, a linear layer on the raw [CLS], and 10 epochs of
RTE and STS-B, 2 of SQuAD (Clark et al., table 7, base size). Unlike the authors' code, it reads
MRPC and STS-B in one order instead of both, does not divide the targets of STS-B by 5, and predicts
the ends of a SQuAD answer apart from its start. `own,electra` has Hugging Face's head, with a dense
layer before. `,roberta` has the values of Liu et al. 2019, table 10: for GLUE 1e-5, the lowest of
its rates, 10 epochs and decay 0.1, of SQuAD and RACE their own; 6 % of them to warm up, b2 0.98 and
no clipping; the rate decays from the end of the warm-up. Expected of BERT base on the test sets:
SST-2 93.5, CoLA 52.1. `python -m t5x_like.evaluate --suite=glue` runs a whole table. Not run at
full size here.
"""

from typing import Literal

from t5x_like.benchmarks import suites
from t5x_like.config import defaults

_TASKS = suites.benchmarks_for("encoder")
LAPTOP = {"schedule.learning_rate": 3e-4, "schedule.warmup_steps": 0.1}

# Rate, examples in a batch, decay and epochs, by the beginnings of tasks' names; "" is GLUE and all
# others.
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
  name = "roberta" if roberta else "t5x_like.models.electra:Discriminator" if electra else "bert"
  variant = "roberta-base" if roberta else "electra-base" if electra else "bert-base-uncased"
  config.model = {"name": name, "variant": variant, "dropout": 0.1, "vocab_size": 30_720}
  if task == "own":
    _read_own_table(config)
  else:
    suites.apply_form(config, _TASKS[task], _TASKS[task].encoder, official)

  table = _ROBERTA if roberta else _ELECTRA if electra else _BERT
  rate, config.batch_size, decay, epochs = next(
    values for name, values in table.items() if task.startswith(name)
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
  """Leave open what follows from the table, see `t5x_like/data/open_values/`."""
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
