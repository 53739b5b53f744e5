"""Translation from English (WMT) with T5's text format, data and BLEU (Raffel et al. 2020).

Training and dev sets are those of the paper's section 2.3:

- German: the training set of Vaswani et al. 2017, newstest2013;
- French: WMT15's training set, newstest2014;
- Romanian: WMT16's training set, newsdev2016.

The dev and test sets of the TensorFlow datasets, which T5's tasks read, differ from the official
files: they were translated in the other direction (`fren`, `roen`), and French has
newsdiscussdev2015 as well.

BLEU is computed by sacrebleu with its tokenizer `intl`, as in the paper; the leaderboard uses
`13a`. Decoding is greedy, as in tables 1 to 13; `--config.evals.dev.beams=4` gives the beam search
of table 14. Inputs and targets are cut at 256 tokens; T5 packs them into rows of 512.
"""

from t5x_like.benchmarks.suites import Benchmark, Files, Suite, generation


def _translation(
  language: str,
  code: str,
  source: str,
  examples: int,
  train: list[str],
  validation: list[str],
  test: list[str],
) -> Benchmark:
  """Make the benchmark of translation from English to a language.

  Args:
    language: the name of the language, as in T5's inputs.
    code: its code in the names of files, such as `de`.
    source: the TensorFlow dataset.
    examples: the number of training examples.
    train: the files that make up the official training set.
    validation, test: the possible names of each set's file, the likeliest first.
  """
  splits = {"train": [train], "validation": validation, "test": test}
  return generation(
    source,
    examples,
    files=Files(f"wmt_en_{code}", "parallel", splits, header=("en", code)),
    inputs=f"translate English to {language}: {{en}}",
    targets=f"{{{code}}}",
    metrics=[{"name": "bleu", "tokenize": "intl"}],
    counted=("dev/bleu",),
    evaluated={"dev": "validation", "test": "test"},
    inputs_length=256,
    targets_length=256,
  )


SUITE = Suite(
  {
    "en_de": _translation(
      "German",
      "de",
      "tfds:wmt_t2t_translate/de-en",
      4_592_289,
      [
        "europarl-v7.de-en.{field}",
        "commoncrawl.de-en.{field}",
        "news-commentary-v13.de-en.{field}",
      ],
      ["newstest2013.{field}", "newstest2013-{src|ref}.{field}.sgm"],
      ["newstest2014-deen-{src|ref}.{field}.sgm"],
    ),
    "en_fr": _translation(
      "French",
      "fr",
      "tfds:wmt15_translate/fr-en",
      40_853_298,
      [
        "europarl-v7.fr-en.{field}",
        "commoncrawl.fr-en.{field}",
        "undoc.2000.fr-en.{field}",
        "news-commentary-v10.fr-en.{field}",
        "giga-fren.release2.fixed.{field}",
      ],
      ["newstest2014-fren-{src|ref}.{field}.sgm"],
      ["newsdiscusstest2015-enfr-{src|ref}.{field}.sgm"],
    ),
    "en_ro": _translation(
      "Romanian",
      "ro",
      "tfds:wmt16_translate/ro-en",
      610_320,
      ["europarl-v8.ro-en.{field}", "SETIMES.en-ro.{field}"],
      ["newsdev2016-enro-{src|ref}.{field}.sgm"],
      ["newstest2016-enro-{src|ref}.{field}.sgm"],
    ),
  }
)
