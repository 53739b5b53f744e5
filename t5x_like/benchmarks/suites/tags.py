"""Tags of words: named entities, and parts of speech.

Entities are those of news (CoNLL-2003, Tjong Kim Sang & De Meulder 2003) and of the web (WNUT-17,
Derczynski et al. 2017); parts of speech are those of Universal Dependencies.
"""

from t5x_like.benchmarks.suites import SPLITS, Files, Suite, tagging

_DEV_AND_TEST = {"dev": "validation", "test": "test"}
_KINDS = ("corporation", "creative-work", "group", "location", "person", "product")
_CONLL = {
  "train": ["eng.train", "train.txt"],
  "validation": ["eng.testa", "valid.txt", "dev.txt"],
  "test": ["eng.testb", "test.txt"],
}
_POS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()

_WNUT = {
  "train": ["wnut17train.conll"],
  "validation": ["emerging.dev.conll"],
  "test": ["emerging.test.annotated", "emerging.test.annotated.conll"],
}
_EWT = {split: [f"en_ewt-ud-{name}.conllu"] for split, name in SPLITS.items()}

SUITE = Suite(
  {
    "conll": tagging(
      None,
      14_041,
      files=Files("conll_2003", "entities", _CONLL),
      tags=("O", *(f"{begin}-{kind}" for kind in ("LOC", "MISC", "ORG", "PER") for begin in "BI")),
      field="entities",
      score="f1",
      evaluated=_DEV_AND_TEST,
    ),
    "ner": tagging(
      None,
      3_394,
      files=Files("wnut_17", "conll", _WNUT, fields={"ner_tags": "1"}),
      tags=("O", *(f"{begin}-{kind}" for kind in _KINDS for begin in "BI")),
      field="ner_tags",
      score="f1",
      evaluated=_DEV_AND_TEST,
    ),
    "pos": tagging(
      "tfds:universal_dependencies/en_ewt",
      12_544,
      files=Files("en_ewt", "conllu", _EWT),
      tags=_POS,
      field="upos",
      score="accuracy",
      evaluated=_DEV_AND_TEST,
    ),
  }
)
