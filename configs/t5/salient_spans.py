"""Continue T5 on salient spans before closed-book questions (Roberts et al. 2020, section 3.3).

  python -m t5x_like.train --config=configs/t5/salient_spans.py --workdir=runs/t5_spans \\
      --config.init.workdir=runs/t5_base \\
      --config.task.source='salient:jsonl:train=tagged/*.jsonl,validation=dev.jsonl'

Each name and date of a sentence is an example: the input is the sentence without it, the target is
the name or date. The source reads sentences with the spans of a tagger, or finds dates, numbers and
names itself (`corpora/sources/salient.py`). Training continues for 100,000 steps. The model is then
fine-tuned on questions by `evaluate --suite=text` with
`--tasks=web_questions,natural_questions,trivia_qa`. Sizes and `:v1_0` are as in `base.py`.

Expected gains of T5 1.1 XXL (table 1): from 32.8 to 35.2 on Natural Questions, from 35.6 to 42.8 on
WebQuestions. This recipe has not been run at full size.
"""

from configs.t5 import base, finetune


def get_config(size: base.Size = "base", v1_0: bool = False):
  config = finetune.get_config(size, v1_0)

  config.task.source = "salient:text:train=data/train/*.txt,validation=data/validation/*.txt"
  config.task.too_long = "skip"
  config.task.targets_length = 64
  config.total_steps = 100_000
  return config
