"""Fine-tune T5 and BART from text to text (Raffel et al. 2020, 3.1.2; Lewis et al. 2020, 5).

  python -m t5x_like.train --config=configs/finetune/text_to_text.py:glue/cola,official \\
      --workdir=runs/cola --config.init.workdir=runs/t5_base --config.task.data_dir=glue_data

The argument is a task of a suite. With `official` it is read from its official files in
`task.data_dir`, otherwise from the TensorFlow dataset. Labels are written as their names.
`init.workdir` is a pretraining run, or a model converted by `tools.convert_hf`. It gives the
architecture and the vocabulary; without it the model is trained from scratch.

T5 is trained at a constant rate of 1e-3 with batches of 128. The best checkpoint on the dev set is
kept. On closed-book questions it takes 10,000 steps of 196,608 tokens, as in Roberts et al. 2020.

`,bart` has fairseq's values for summaries (examples/bart/README.summarization.md). AdamW's rate
rises to 3e-5 over 500 steps and falls linearly; label smoothing is 0.1, and gradients are clipped
at 0.1. For `cnn_dailymail/cnn_dailymail` it reads 1,024 tokens of the article without T5's prefix.
As in fairseq, summaries come from 4 beams, have 55 to 140 tokens and repeat no trigram.

Expected of T5 base on the test sets (table 14): SST-2 95.2, CoLA 51.1. This recipe has not been run
at full size.

Differences: T5's 2^18 steps of 128 examples are more than most tasks need; here training ends after
at most ten epochs. Roberts et al. pack their rows; this recipe does not.
"""

from typing import Literal

from t5x_like.benchmarks import suites
from t5x_like.config import defaults

_TASKS = suites.benchmarks_for("text")
_CLOSED_BOOK = ("text/web_questions", "text/natural_questions", "text/trivia_qa")
LAPTOP = {"schedule.learning_rate": 1e-3}
# fairseq's --beam 4 --lenpen 2.0 --min-len 55 --max-len-b 140 --no-repeat-ngram-size 3
_SUMMARIES = {
  "beams": 4,
  "length_power": 2.0,
  "max_new_tokens": 141,  # with EOS
  "penalties": {"no_repeat_ngram_size": 3, "min_new_tokens": 55},
}


def get_config(
  task: Literal[tuple(_TASKS)] = "glue/sst2", bart: bool = False, official: bool = False
):
  config = defaults()
  name, variant = ("bart", "bart-base") if bart else ("t5", "t5-v1_1-base")
  config.model = {
    "name": name,
    "variant": variant,
    "dropout": 0.1,
    "vocab_size": 50_304 if bart else 32_128,
  }
  suites.apply_form(config, _TASKS[task], _TASKS[task].text, official)

  config.batch_size = 128
  config.total_steps = max(1, min(2**18, 10 * _TASKS[task].examples // 128))
  if task in _CLOSED_BOOK:
    config.batch_size = 1_536  # of 128 tokens
    config.total_steps = 10_000
  config.optimizer = {"name": "adafactor"}
  config.schedule = {"name": "constant", "learning_rate": 1e-3}
  if bart:
    config.objective.label_smoothing = 0.1
    config.clip_norm = 0.1
    config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    # 500 steps, as a share of all steps, so that short runs have a tenth.
    warmup = min(500 / config.total_steps, 0.1)
    config.schedule = {"name": "linear", "learning_rate": 3e-5, "warmup_steps": warmup}
    if task.startswith("cnn_dailymail/"):
      config.task.update({"inputs": "{article}", "inputs_length": 1024})
      for evaluation in config.evals.values():
        evaluation.update(_SUMMARIES)
  config.eval_every = None
  config.checkpoint = {"every": None, "keep_last": 1}
  return config
