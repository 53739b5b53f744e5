"""CNN/Daily Mail: summaries of news (See et al. 2017), with T5's text format and ROUGE.

The task's score is ROUGE-2, as in tables 1 to 13 of Raffel et al. 2020. Every ROUGE is computed
without a stemmer. Decoding is greedy; `--config.evals.dev.beams=4` gives the beam search of table
14. Targets are cut at 256 tokens; T5 packs targets into rows of 512.

The paper's data were lower-cased, with all highlights on one line (version 0.0.2 of the TensorFlow
dataset). Here they are unchanged, as in later versions of T5's code.
"""

from t5x_like.benchmarks.suites import Files, Suite, generation

_LISTS = {"train": ["all_train.txt"], "validation": ["all_val.txt"], "test": ["all_test.txt"]}

SUITE = Suite(
  {
    "cnn_dailymail": generation(
      "tfds:cnn_dailymail",
      287_113,
      files=Files("cnn_dailymail", "stories", _LISTS),
      inputs="summarize: {article}",
      targets="{highlights}",
      metrics=[{"name": "rouge", "use_stemmer": False}],
      counted=("dev/rouge2",),
      evaluated={"dev": "validation", "test": "test"},
      inputs_length=512,
      targets_length=256,
    )
  }
)
