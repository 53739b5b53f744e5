"""Fine-tune T5 1.1 on any text-to-text task (Raffel et al. 2020, sections 2.4 and 3.1.2).

  python -m t5x_like.train --config=configs/t5/finetune.py --workdir=runs/t5_cola \\
      --config.task.source=tsv:train=cola/train.tsv,validation=cola/dev.tsv \\
      --config.task.vocabulary=VOCABULARY '--config.task.inputs=cola sentence: {sentence}' \\
      '--config.task.targets={label}'

To start from published weights, make the workdir with `python -m tools.convert_hf`. Examples are
packed into rows of 512 inputs and as many targets. A batch of 128 rows therefore holds a few
thousand short examples, and the paper's 2^18 steps are more than most tasks need. Sizes and `:v1_0`
are as in `base.py`.
"""

from configs.t5 import base


def get_config(size: base.Size = "base", v1_0: bool = False):
  config = base.get_config(size, v1_0)

  config.model.dropout = 0.1
  config.task = {
    "name": "text_to_text",
    "source": "tsv:train=data/train.tsv,validation=data/validation.tsv",
    "vocabulary": "vocabulary",
    "inputs": "{inputs}",
    "targets": "{targets}",
    "inputs_length": 512,
    "targets_length": 512,
    "too_long": "refuse",
    "cache": "data/prepared",
  }

  config.total_steps = 2**18
  config.schedule = {"name": "constant", "learning_rate": 1e-3}

  config.eval_every = 1_000
  config.evals = {"loss": {}}
  config.checkpoint = {"every": 1_000, "keep_last": 3}
  return config
