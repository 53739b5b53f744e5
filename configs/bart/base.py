"""BART base: text infilling and permuted sentences, restored by an encoder-decoder (Lewis et al. 2020, section 5.1).

  python -m tools.prepare_data --source=text:web/*.txt --vocabulary=VOCABULARY --output=data/web
  python -m t5x_like.train --config=configs/bart/base.py --workdir=runs/bart_base

30% of the tokens in spans of Poisson(3) tokens, one mask for each, all sentences permuted; 500,000 steps of 8,000
documents (section 5.1, for the large size, whose optimizer the paper leaves to RoBERTa: AdamW, here that of its base
size), dropout 0.1. Expected after fine-tuning, large: SQuAD 1.1 F1 94.6, CNN/DailyMail ROUGE-1 44.16. It has not been
run at full size here. `:tiny` learns within minutes on a laptop, `:debug` takes two steps without data.
"""

from configs.roberta import base
from t5x_like.config import words
from t5x_like.laptop import FORMS, laptop


def get_config(arg: str = ""):
  options = words(arg, FORMS)
  config = base.get_config()
  config.model = {
    "name": "bart",
    "variant": "bart-base",
    "vocab_size": 50304,
    "dropout": 0.1,
    "dtype": "auto",
    "layers": "auto",
    "remat": "none",
    "tokens": {"pad": 0, "start": 0, "eos": 1},
  }
  config.task = {"name": "bart", "store": "data/web", "length": 512, "infill": 0.3, "permute_sentences": True}
  config.objective = {"name": "encoder_decoder"}
  config.batch_size = 8000
  return laptop(config, options, "bart-tiny", design={"init_stddev": 0.06, "norm_position": "pre"})
