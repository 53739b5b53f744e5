"""Tags of words: emerging entities (WNUT-17, Derczynski et al. 2017), parts of speech (Universal Dependencies)."""

from t5x_like.benchmarks.suites import Suite, tagged

_KINDS = ("corporation", "creative-work", "group", "location", "person", "product")
_POS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()

SUITE = Suite(
  {
    "ner": tagged(
      "tfds:wnut_17",
      3_394,
      tags=("O", *(f"{begin}-{kind}" for kind in _KINDS for begin in "BI")),
      field="ner_tags",
      score="f1",
    ),
    "pos": tagged("tfds:universal_dependencies/en_ewt", 12_544, tags=_POS, field="upos", score="accuracy"),
  }
)
