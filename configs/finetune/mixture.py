"""T5, fine-tuned or trained on many tasks at once (Raffel et al. 2020, section 3.5.2).

  python -m t5x_like.train --config=configs/finetune/mixture.py:superglue \\
      --workdir=runs/superglue \\
      --config.init.workdir=runs/t5_base --config.task.maximum=65536 --config.task.temperature=2

The argument is `glue`, `superglue`, or `all`: both with SQuAD, summaries (CNN/Daily Mail) and
translations (WMT), all supervised tasks of the paper. Tasks are drawn in proportion to their
examples, of which at most `task.maximum` count (the paper's K). Their rates are raised to 1 /
`task.temperature` (its T): 1 is proportional, the paper's mixture for fine-tuning.
`configs/t5/multitask.py` adds unlabelled text (table 11). The examples are T5's: of ReCoRD one for
each answer, of WSC those whose referent is right, and definite pronoun resolution beside WSC. As in
the released mixtures, WNLI is left out, and of RTE, which is in GLUE and in SuperGLUE, half the
examples count in each. T5 packs rows of 512 tokens; here a row is an example, and summaries and
translations are cut after 256 tokens in training. Every task is evaluated by its own metrics on its
dev set (`--evals=NAME`). Data are TensorFlow datasets, prepared in the directory that TFDS_DATA_DIR
names. Not run at full size here.
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
  found = {}
  for file in _SUITES[suite]:
    for name, benchmark in _FILES[file].SUITE.tasks.items():
      if benchmark.text and name != "wnli":
        found[name if name not in found else f"{file}_{name}"] = benchmark
  return found


def get_config(suite: Literal[tuple(_SUITES)] = "glue"):
  config = defaults()

  config.model = {"name": "t5", "variant": "t5-v1_1-base", "dropout": 0.1, "vocab_size": 32_128}
  own = {"too_long": "truncate", "packed": False}
  parts = {}
  evals = {}
  for label, benchmark in tasks(suite).items():
    source = benchmark.sources(False, benchmark.text)["task.source"]
    texts = {key: benchmark.text.task[key] for key in ("inputs", "targets")}
    parts[label] = {"source": source} | texts
    lengths = {"inputs_length": 512, "targets_length": benchmark.text.task["targets_length"]}
    for split, where in benchmark.evaluated.items():
      task = {"task": {"name": "text_to_text"} | parts[label] | lengths | own}
      if where != "test":
        evals[f"{label}_{split}"] = dict(benchmark.text.evaluator) | task | {"split": where}
  config.task = {
    "name": "mixture",
    "shared": {
      "name": "text_to_text",
      "inputs_length": 512,
      "targets_length": 256 if suite == "all" else 62,
    }
    | own,
    "parts": parts | ({"dpr": _PRONOUNS} if "superglue" in _SUITES[suite] else {}),
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
