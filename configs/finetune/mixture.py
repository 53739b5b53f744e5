"""Train T5 on many tasks at once (Raffel et al. 2020, section 3.5.2).

  python -m t5x_like.train --config=configs/finetune/mixture.py:superglue \\
      --workdir=runs/superglue --config.init.workdir=runs/t5_base --config.task.maximum=65536 \\
      --config.task.temperature=2

The argument is `glue`, `superglue` or `all`. `all` has the supervised tasks of the paper: both
suites, SQuAD, summaries (CNN/Daily Mail) and translations (WMT). `configs/t5/multitask.py` adds
unlabelled text (table 11). Data are TensorFlow datasets, prepared in the directory that
TFDS_DATA_DIR names.

Tasks are drawn in proportion to the number of their examples, of which at most `task.maximum` count
(the paper's K). These rates are raised to the power 1 / `task.temperature` (its T). A temperature
of 1 is proportional, the paper's mixture for fine-tuning. Each task is evaluated by its metrics on
its dev set (`--evals=NAME`).

The examples are T5's. ReCoRD has one for each answer, WSC has those whose referent is right, and
definite pronoun resolution is added to WSC. As in the released mixtures, WNLI is left out. RTE is
in GLUE and in SuperGLUE, and in each of them half of its examples count.

This recipe has not been run at full size.

Differences: T5 packs rows of 512 tokens; here a row is an example. In training, summaries and
translations are cut after 256 tokens.
"""

from typing import Literal

from t5x_like.benchmarks.suites import Benchmark, cnn_dailymail, glue, squad, superglue, wmt
from t5x_like.config import defaults

_FILES = {
  "glue": glue,
  "superglue": superglue,
  "squad": squad,
  "cnn_dailymail": cnn_dailymail,
  "wmt": wmt,
}
_SUITES = {"glue": ("glue",), "superglue": ("superglue",), "all": tuple(_FILES)}
_PRONOUNS = {
  "source": "t5:dpr:tfds:definite_pronoun_resolution",
  "inputs": "{inputs}",
  "targets": "{targets}",
}
LAPTOP = {
  "schedule.learning_rate": 1e-3,
  "task.weights": {},
  "evals": {"loss": {"max_examples": 64}},
}


def tasks(suite: str) -> dict[str, Benchmark]:
  """Return the tasks of a mixture by their labels."""
  benchmarks = {}
  for file in _SUITES[suite]:
    for name, benchmark in _FILES[file].SUITE.tasks.items():
      if benchmark.text and name != "wnli":
        label = f"{file}_{name}" if name in benchmarks else name
        benchmarks[label] = benchmark
  return benchmarks


def get_config(suite: Literal[tuple(_SUITES)] = "glue"):
  config = defaults()

  config.model = {"name": "t5", "variant": "t5-v1_1-base", "dropout": 0.1, "vocab_size": 32_128}
  row_options = {"too_long": "truncate", "packed": False}
  parts = {}
  evals = {}
  for label, benchmark in tasks(suite).items():
    source = benchmark.sources(False, benchmark.text)["task.source"]
    texts = {key: benchmark.text.task[key] for key in ("inputs", "targets")}
    parts[label] = {"source": source} | texts
    lengths = {"inputs_length": 512, "targets_length": benchmark.text.task["targets_length"]}
    task = {"name": "text_to_text"} | parts[label] | lengths | row_options
    for name, split in benchmark.evaluated.items():
      if split != "test":
        evals[f"{label}_{name}"] = dict(benchmark.text.evaluator) | {"task": task, "split": split}
  if "superglue" in _SUITES[suite]:
    parts["dpr"] = _PRONOUNS
  config.task = {
    "name": "mixture",
    "shared": {
      "name": "text_to_text",
      "inputs_length": 512,
      "targets_length": 256 if suite == "all" else 62,
    }
    | row_options,
    "parts": parts,
    "rates": "temperature",
    "temperature": 1.0,
    "maximum": 2**19,
    "period": 2**20,  # CB is drawn once in a million examples of the largest mixture
    "weights": {"rte": 0.5, "superglue_rte": 0.5} if suite == "all" else {},
  }
  config.objective = {"name": "encoder_decoder", "z_loss": 1e-4}
  config.eval_split = "train"  # the tasks name their own splits
  config.evals = evals

  config.batch_size = 128
  config.total_steps = 2**18
  config.optimizer = {"name": "adafactor"}
  config.schedule = {"name": "constant", "learning_rate": 1e-3}
  config.eval_every = 5_000
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
