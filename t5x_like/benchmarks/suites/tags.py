"""Tags of words: named entities, and parts of speech.

Named entities in news are CoNLL-2003 (Tjong Kim Sang & De Meulder 2003), and in texts of the web
WNUT-17 (Derczynski et al. 2017). Parts of speech are Universal Dependencies' English Web Treebank.
"""

from t5x_like.benchmarks.suites import SPLITS, Files, Suite, tagging

_DEV_AND_TEST = {"dev": "validation", "test": "test"}
_CONLL_ENTITIES = ("LOC", "MISC", "ORG", "PER")
_WNUT_ENTITIES = ("corporation", "creative-work", "group", "location", "person", "product")
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


def _bio_tags(entities: tuple[str, ...]) -> tuple[str, ...]:
  """Return `O` and, for each kind of entity, `B-` for its first word and `I-` for its others."""
  return ("O", *(f"{position}-{entity}" for entity in entities for position in "BI"))


# The first arguments are a TensorFlow dataset, if any, and the number of training sentences.
SUITE = Suite(
  {
    "conll": tagging(
      None,
      14_041,
      files=Files("conll_2003", "entities", _CONLL),
      tags=_bio_tags(_CONLL_ENTITIES),
      field="entities",
      score="f1",
      evaluated=_DEV_AND_TEST,
    ),
    "ner": tagging(
      None,
      3_394,
      files=Files("wnut_17", "conll", _WNUT, fields={"ner_tags": "1"}),
      tags=_bio_tags(_WNUT_ENTITIES),
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
