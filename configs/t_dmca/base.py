"""Train T-DMCA to write Wikipedia's articles from web pages (Liu et al. 2018, sections 4 and 5.2).

  python -m tools.train_vocabulary --source=lines:train=wikisum/train.txt --kind=bpe --size=32000 \\
      --extra_ids=0 --output=vocabulary
  python -m t5x_like.train --config=configs/t_dmca/base.py --workdir=runs/t_dmca \\
      --config.task.vocabulary=vocabulary

Each line of `wikisum/train.jsonl` has a `title`, its `references` and the `article` or its first
section. References are paragraphs of cited pages and search results, the most relevant first, cut
to fit the row. The paper ranks them by tf-idf with the title. Tensor2Tensor's `wikisum` has
programs for that ranking; this project has none. The model also learns to predict its inputs;
`eval/articles/loss` is the loss of the article alone. Optimizer and rates follow the base
Transformer, for 1,000,000 steps.

Hardware: eight accelerators.

Expected on the test set (table 4): the loss of the article and ROUGE-L. The perplexity of table 4
is a logarithm, as in figure 3.

  t_d        inputs of 4,000                  2.22  33.6
  t_dmca     inputs of 11,000                 2.05  36.2
  moe_128    inputs of 11,000, 128 experts    1.93  37.9
  moe_256    inputs of 7,500, 256 experts     1.90  38.8

This recipe has not been run at full size.

Differences: the paper gives neither the length of the article nor the batch, which are 500 tokens
and 8 rows here. Tensor2Tensor's `transformer_moe_prepend_8k` differs from the paper: a width of
1,024, norms before sublayers, separable convolutions as feed-forward layers, no label smoothing,
and 2,000 steps of warm-up.
"""

from typing import Literal

from configs.transformer import base

_INPUTS = {"t_d": 4_000, "t_dmca": 11_000, "moe_128": 11_000, "moe_256": 7_500}
# a decoder's row has inputs and targets
LAPTOP = {"task.targets_length": None, "evals.written.max_new_tokens": 32}


def get_config(size: Literal[tuple(_INPUTS)] = "t_dmca"):
  config = base.get_config()

  variant = size.replace("_", "-")
  if variant.startswith("moe-"):
    variant = f"t-dmca-{variant}"
  config.model = {"name": "t_dmca", "variant": variant, "vocab_size": 32_000, "dropout": 0.1}
  if "moe" in size:
    config.mesh = {"expert": 8, "data": -1}
  config.task = {
    "name": "text_to_text",
    "source": "jsonl:train=wikisum/train.jsonl,validation=wikisum/validation.jsonl",
    "vocabulary": "vocabulary",
    "inputs": "{title}\n{references}",
    "targets": "Article: {article}",
    "inputs_length": _INPUTS[size] + 500,
    "architecture": "decoder",
    "loss_on": "all",
    "too_long": "truncate",
    "cache": "data/prepared",
  }
  config.objective = {"name": "decoder", "label_smoothing": 0.1}

  config.batch_size = 8
  config.total_steps = 1_000_000
  config.eval_every = 5_000
  config.evals = {
    "loss": {"max_examples": 512},
    "articles": {"name": "loss", "max_examples": 512, "task": {"loss_on": "targets"}},
    "written": {
      "name": "generation",
      "metrics": ["rouge"],
      "beams": 4,
      "max_new_tokens": 500,
      "max_examples": 64,
    },
  }
  config.checkpoint = {"every": 5_000, "keep_last": 3}
  return config
