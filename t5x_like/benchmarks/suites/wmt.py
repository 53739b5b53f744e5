"""Translations from English (WMT) with T5's texts, data and BLEU (Raffel et al. 2020).

Training data and dev sets are those of the paper's section 2.3: German as in Vaswani et al. 2017
with newstest2013, French of WMT15 with newstest2014, Romanian of WMT16 with newsdev2016. T5's tasks
read TensorFlow datasets, which have files of the other direction (`fren`, `roen`), and
newsdiscussdev2015 too. BLEU is sacrebleu's with its tokenizer `intl`, as in the paper; the
leaderboard's is `13a`. The likeliest token is taken at every step, as in tables 1 to 13;
`--config.evals.dev.beams=4` is table 14's search. Rows have 256 tokens, where T5 packs 512.
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
  """Make a translation from English.

  `train` are the several files of the official training set.
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
