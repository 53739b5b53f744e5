"""Train a retriever and a reader together: REALM (Guu et al. 2020).

  python -m t5x_like.train --config=configs/realm/base.py:cloze --workdir=runs/cloze
  python -m t5x_like.train --config=configs/realm/base.py --workdir=runs/realm \\
      --config.init.workdir=runs/cloze
  python -m t5x_like.train --config=configs/realm/base.py:questions --workdir=runs/nq \\
      --config.init.workdir=runs/realm

The first command warms up the retriever by the inverse cloze task (Lee et al. 2019): 100,000 steps
of 4,096 sentences. The second command masks salient spans of sentences of the passages: 200,000
steps of 512 sentences, each with the 7 nearest passages and the null document. The third command
answers questions with 5 passages in 20,000 batches of 64. Passages are lines of JSON with a `text`.
Rates, steps, batches and lengths are the paper's where it gives them.

Hardware: the paper trains the second stage on 64 TPUs. Its 13 million passages of up to 288 tokens
take 22 GB on all devices together.

Expected (table 1, pretrained on Wikipedia): 39.2 exact match on Natural Questions and 40.2 on
WebQuestions. This recipe has not been run at full size. `configs/realm/facts.py` is a toy that a
laptop learns.

Differences: the paper's reader is a BERT that marks spans; here it is a T5 that writes them. The
authors' code takes questions one by one (WebQuestions for 20 epochs).
"""

from typing import Literal

from t5x_like.config import defaults

_PASSAGES = "jsonl:data/wikipedia/*.jsonl.gz"


def get_config(stage: Literal["cloze", "salient", "questions"] = "salient"):
  config = defaults()

  config.model = {"name": "realm", "variant": "realm-base", "vocab_size": 32_128, "dropout": 0.1}
  lengths = {"inputs_length": 64, "passage_length": 288}
  if stage == "cloze":
    config.task = {
      "name": "passage_pairs",
      "source": "cloze:jsonl:train=data/wikipedia/*.jsonl.gz,validation=data/wikipedia/dev.jsonl",
      "vocabulary": "data/vocabulary",
      **lengths,
    }
    config.objective = {"name": "inverse_cloze"}
    config.evals = {"loss": {"max_examples": 4096}}
    config.batch_size = 4096
    config.total_steps = 100_000
    rate = 1e-4
  else:
    config.task = {
      "name": "open_qa",
      "source": "salient:jsonl:train=data/wikipedia/*.jsonl.gz,validation=data/wikipedia/dev.jsonl",
      "vocabulary": "data/vocabulary",
      "inputs": "{inputs}",
      "targets": "{targets}",
      "passages": _PASSAGES,
      "passage": "{text}",
      "own": "{text}",
      "retrieved": 7,
      "targets_length": 32,
      "too_long": "skip",
      **lengths,
    }
    config.objective = {"name": "marginal_likelihood", "refresh_every": 500}
    config.evals = {"open_qa": {"max_examples": 1024}}
    config.batch_size = 512
    config.total_steps = 200_000
    rate = 3e-5
  if stage == "questions":
    config.task.update({"inputs": "{question}", "targets": "{answer}", "own": None, "retrieved": 5})
    config.task.source = "jsonl:train=data/nq/train.jsonl,validation=data/nq/dev.jsonl"
    config.batch_size = 64
    config.total_steps = 20_000
    rate = 1e-5

  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": 0.01}
  warmup = min(10_000 / config.total_steps, 0.1)
  config.schedule = {
    "name": "linear",
    "learning_rate": rate,
    "warmup_steps": warmup,
    "decay": "from_start",
  }
  config.clip_norm = 1.0
  config.mesh = {"data": 1, "fsdp": -1}

  config.eval_every = 5_000
  config.checkpoint = {"every": 1_000, "keep_last": 2}
  return config
