"""Train a retriever and a reader to look up facts about people: a toy for a laptop.

  python -m t5x_like.train --config=configs/realm/facts.py:cloze --workdir=runs/cloze
  python -m t5x_like.train --config=configs/realm/facts.py --workdir=runs/facts \\
      --config.init.workdir=runs/cloze
  python -m t5x_like.train --config=configs/realm/facts.py:closed --workdir=runs/closed

The parameters do not hold the facts. The first command warms up the retriever by the inverse cloze
task: it finds the passage that a sentence comes from. The second command trains both parts on four
fifths of the questions by the marginal likelihood of the answers and is evaluated on the other
questions. The third command reads no passage and can only guess one of 100 values.

Measured with three seeds in 5 CPU minutes, warm-up included: after 1,200 steps all of the 423
held-out questions are answered correctly, with each seed. Without passages it is 0.7, 1.4 and 0.2
%.
"""

from typing import Literal

from t5x_like.config import defaults

LAPTOP = {"model.variant": "realm-tiny"}
_SOURCE = "facts:2000"


def _variant(design: dict) -> dict:
  dims = {"embed": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "mlp": 128, "layers": 2}
  return {"dims": dims, "design": design, "vocab_size": 384}


def get_config(stage: Literal["cloze", "retrieved", "closed"] = "retrieved"):
  config = defaults()
  encoder = {"norm": "layernorm", "activation": "gelu", "position": "rope", "init_stddev": 0.06}
  reader = {"norm": "rmsnorm", "activation": "swiglu", "position": "rope", "init_stddev": 0.06}
  config.model = {
    "name": "realm",
    "variant": {"retriever": _variant(encoder), "reader": _variant(reader), "width": 32},
  }
  lengths = {"inputs_length": 13, "passage_length": 36}
  if stage == "cloze":
    config.task = {
      "name": "passage_pairs",
      "source": f"cloze:{_SOURCE}",
      "vocabulary": "bytes",
      **lengths,
    }
    config.train_split = config.eval_split = "passages"
    config.objective = {"name": "inverse_cloze"}
    config.batch_size = 128
    config.total_steps = 400
    config.evals = {"loss": {"max_examples": 512}}
  else:
    config.task = {
      "name": "open_qa",
      "source": _SOURCE,
      "inputs": "{question}",
      "targets": "{answer}",
      "passages": _SOURCE,
      "passages_split": "passages",
      "retrieved": 3 if stage == "retrieved" else 0,
      "vocabulary": "bytes",
      "targets_length": 3,
      **lengths,
    }
    config.objective = {"name": "marginal_likelihood", "refresh_every": 100}
    # Until the reader has learned to read, its likelihoods are noise, from which the retriever
    # would unlearn the warm-up.
    config.tuning = {"name": "by_part", "rates": {"retriever/*": 0.05}}
    config.batch_size = 32
    config.total_steps = 1200
    config.evals = {"open_qa": {}}
  config.optimizer = {"name": "adamw", "b1": 0.9, "b2": 0.99, "weight_decay": 0.0}
  config.schedule = {"name": "cosine", "learning_rate": 2e-3, "warmup_steps": 30, "end": 0.1}
  config.clip_norm = 1.0
  config.eval_every = 200
  config.checkpoint = {"every": 200, "minutes": 1.0, "keep_last": 2}
  return config
