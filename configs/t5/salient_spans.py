"""T5, continued on salient spans before closed-book questions (Roberts et al. 2020, section 3.3).

  python -m t5x_like.train --config=configs/t5/salient_spans.py --workdir=runs/t5_spans \\
      --config.init.workdir=runs/t5_base
      --config.task.source='salient:jsonl:train=tagged/*.jsonl,validation=dev.jsonl'

Every name and date of a sentence is an example: the sentence without it, and the span as the
answer. The source takes sentences with the spans of a tagger, or finds dates, numbers and names by
itself (`corpora/sources/salient.py`). The paper continues for 100,000 steps and then fine-tunes on
questions: `evaluate --suite=text` with `--tasks=web_questions,natural_questions,trivia_qa`. By it
T5 1.1 XXL gains from 32.8 to 35.2 on Natural Questions, and from 35.6 to 42.8 on WebQuestions
(table 1). Sizes and `:v1_0` as in `base.py`. Not run at full size here.
"""

from configs.t5 import base, finetune


def get_config(size: base.Size = "base", v1_0: bool = False):
  config = finetune.get_config(size, v1_0)

  config.task.source = "salient:text:train=data/train/*.txt,validation=data/validation/*.txt"
  config.task.too_long = "skip"
  config.task.targets_length = 64
  config.total_steps = 100_000
  return config
