"""The benchmarks whose raw files can be read, by TFDS name.

GLUE's columns and labels are those of TFDS's own configs. Where TFDS lacks a dataset, its features here are those of
the Hugging Face hub.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record
from t5x_like.errors import UserError
from tools.prepare_dataset.raw import Example, Raw

_GLUE = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "qqp": "QQP", "stsb": "STS-B", "qnli": "QNLI", "rte": "RTE"}
_GLUE |= {"wnli": "WNLI", "mnli": "MNLI", "mnli_matched": "MNLI", "mnli_mismatched": "MNLI", "ax": "diagnostic"}
_HEADERLESS = {"cola": ("source", "is_acceptable", "mark", "sentence")}
_HEADERLESS |= dict.fromkeys(("mnli", "mnli_matched", "mnli_mismatched"), ("gold_label", "sentence1", "sentence2"))
_SUPERGLUE = {"boolq": "BoolQ", "cb": "CB", "copa": "COPA", "multirc": "MultiRC", "record": "ReCoRD", "rte": "RTE"}
_SUPERGLUE |= {"wic": "WiC", "wsc": "WSC", "wsc.fixed": "WSC", "axb": "AX-b", "axg": "AX-g"}
_UNKNOWN = -1  # TFDS's label of what has none


def _splits(folder: str, *names: tuple[str, str]) -> dict[str, tuple[str, ...]]:
  return {split: (f"{folder}/{name}", name) for split, name in names}


def glue(config: Any) -> Raw:
  """GLUE's TSV files (Wang et al. 2018), from the config of TFDS's builder."""
  name, folder = config.name, _GLUE[config.name]
  columns, label, classes = dict(config.text_features), config.label_column, config.label_classes
  files = _splits(folder, ("train", "train.tsv"), ("validation", "dev.tsv"), ("test", "test.tsv"))
  halves = ("matched", "mismatched")
  if name == "mnli":
    files = {"train": files["train"]} | {
      f"{split}_{half}": (f"{folder}/{short}_{half}.tsv", f"{short}_{half}.tsv")
      for split, short in (("validation", "dev"), ("test", "test"))
      for half in halves
    }
  elif name.startswith("mnli_"):
    half = name.removeprefix("mnli_")
    files = _splits(folder, ("validation", f"dev_{half}.tsv"), ("test", f"test_{half}.tsv"))
  elif name == "mrpc":
    columns, label = {"sentence1": "#1 String", "sentence2": "#2 String"}, "Quality"
    for split, long in (("train", "train"), ("test", "test")):
      files[split] += (f"{folder}/msr_paraphrase_{long}.txt", f"msr_paraphrase_{long}.txt")
  elif name == "ax":
    files, label = {"test": (f"{folder}/diagnostic.tsv", "diagnostic.tsv", "diagnostic-full.tsv")}, None

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    found = record.get(label) if label else None
    if found is None or (split == "test" and found == ""):
      value = _UNKNOWN
    elif classes is None:
      value = _number(found, name, number)
    else:
      value = _class(found, classes, name, number)
    yield {ours: record[theirs] for ours, theirs in columns.items()} | {"label": value, "idx": number}

  return Raw("tsv", files, examples, tuple(columns.values()), label, _HEADERLESS.get(name, ()))


def _number(found: str, name: str, number: int) -> float:
  try:
    return float(found)
  except ValueError:
    raise UserError(f"glue/{name}, example {number}: found {found!r}, expected a number") from None


def _class(found: Any, classes: list[str], name: str, number: int) -> int:
  """A class by its name or its number."""
  text = str(found)
  if text in classes:
    return classes.index(text)
  if text.isdecimal() and int(text) < len(classes):
    return int(text)
  raise UserError(f"{name}, example {number}: found the label {text!r}, expected one of {', '.join(classes)}")


def super_glue(config: Any) -> Raw:
  """SuperGLUE's JSONL files (Wang et al. 2019), from the config of TFDS's builder."""
  name, folder = config.name, _SUPERGLUE[config.name]
  files = _splits(folder, ("train", "train.jsonl"), ("validation", "val.jsonl"), ("test", "test.jsonl"))
  if folder.startswith("AX"):
    files = {"test": (f"{folder}/{folder}.jsonl", f"{folder}.jsonl")}
  special = {"multirc": _multirc, "record": _record}.get(name)
  if special:
    return Raw("jsonl", files, special, ("passage",))
  classes = list(config.label_classes)

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    record = record | record.get("target", {})
    example = {feature: record[feature] for feature in config.features}
    if name == "wsc.fixed":
      from tensorflow_datasets.text.super_glue import _fix_wst

      example = _fix_wst(example)
    found = record.get("label")
    yield example | {
      "idx": record.get("idx", number),
      "label": _UNKNOWN if found is None else _class(_spelled(found), classes, name, number),
    }

  columns = ("text", "target") if name.startswith("wsc") else tuple(config.features)
  return Raw("jsonl", files, examples, columns, "label")


def _spelled(label: Any) -> Any:
  return str(label) if isinstance(label, bool) else label


def _multirc(record: Record, number: int, split: str) -> Iterator[Example]:
  for question in record["passage"]["questions"]:
    for answer in question["answers"]:
      label = answer.get("label")
      idx = {"paragraph": record["idx"], "question": question["idx"], "answer": answer["idx"]}
      yield {
        "paragraph": record["passage"]["text"],
        "question": question["question"],
        "answer": answer["text"],
        "label": _UNKNOWN if label is None else int(bool(label)),
        "idx": idx,
      }


def _record(record: Record, number: int, split: str) -> Iterator[Example]:
  passage = record["passage"]
  entities = sorted({passage["text"][one["start"] : one["end"] + 1] for one in passage["entities"]})
  for query in record["qas"]:
    yield {
      "passage": passage["text"],
      "query": query["query"],
      "entities": entities,
      "answers": sorted({answer["text"] for answer in query.get("answers", ())}),
      "idx": {"passage": record["idx"], "query": query["idx"]},
    }


def _squad_like(record: Record, number: int, split: str) -> Iterator[Example]:
  yield {name: record[name] for name in ("id", "title", "context", "question")} | {
    "answers": _parallel(record, "answers")
  }


def _squad_v2(record: Record, number: int, split: str) -> Iterator[Example]:
  (example,) = _squad_like(record, number, split)
  more = {"is_impossible": record["is_impossible"], "plausible_answers": _parallel(record, "plausible_answers")}
  yield example | more


def _parallel(record: Record, field: str) -> dict[str, list]:
  return {key: [one[key] for one in record[field]] for key in ("text", "answer_start")}


def squad(config: Any) -> Raw:
  """SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018)."""
  version = config.name
  files = {split: (f"{short}-{version}.json",) for split, short in (("train", "train"), ("validation", "dev"))}
  return Raw("squad", files, _squad_v2 if version == "v2.0" else _squad_like)


def xquad(config: Any) -> Raw:
  """XQuAD (Artetxe et al. 2020)."""
  return Raw("squad", {"test": (f"xquad.{config.name}.json",)}, _squad_like)


def mlqa(config: Any) -> Raw:
  """MLQA (Lewis et al. 2020), contexts and questions of the same language."""
  pair = f"context-{config.name}-question-{config.name}.json"
  return Raw("squad", _splits("MLQA_V1", ("test", f"test/test-{pair}"), ("validation", f"dev/dev-{pair}")), _squad_like)


def _web_questions(record: Record, number: int, split: str) -> Iterator[Example]:
  question = record.get("qText", record.get("utterance"))
  answers = record.get("answers")
  if answers is None and "targetValue" in record:
    import re

    answers = ["".join(x) for x in re.findall(r'\(description (?:"([^"]+?)"|([^)]+?))\)\w*', record["targetValue"])]
  if question is None or answers is None:
    raise UserError(f"web_questions, {split} {number}: found {', '.join(record)}, expected qText and answers")
  yield {"url": record.get("url", ""), "question": question, "answers": answers}


def web_questions(config: Any) -> Raw:
  """WebQuestions (Berant et al. 2013): Stanford's JSON, or brmson's."""
  files = {
    "train": ("webquestions.examples.train.json", ("trainmodel.json", "val.json", "devtest.json"), "train.json"),
    "test": ("webquestions.examples.test.json", "test.json"),
  }
  return Raw("json", files, _web_questions)


def universal_dependencies(config: Any) -> Raw:
  """Treebanks in CoNLL-U; the words alone, without the ranges of contractions."""

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    example = {name: record[name] for name in ("tokens", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")}
    yield example | {"lemmas": record["lemma"], "idx": record["sent_id"] or str(number), "text": record["text"]}

  splits = (("train", "train"), ("validation", "dev"), ("test", "test"))
  return Raw("conllu", {split: (f"{config.name}-ud-{name}.conllu",) for split, name in splits}, examples)


WNUT_TAGS = ("O", "B-corporation", "I-corporation", "B-creative-work", "I-creative-work", "B-group", "I-group")
WNUT_TAGS += ("B-location", "I-location", "B-person", "I-person", "B-product", "I-product")
CONLL_TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")


def _entities(tags: tuple[str, ...], column: str):
  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    found = [tag.split(",")[0] for tag in record[column]]
    if unknown := [tag for tag in found if tag not in tags]:
      raise UserError(f"{split}, sentence {number}: found the tag {unknown[0]!r}, expected one of {', '.join(tags)}")
    yield {"id": str(number), "tokens": record["tokens"], "ner_tags": found}

  def features(tfds) -> dict[str, Any]:
    label = tfds.features.ClassLabel(names=list(tags))
    text = tfds.features.Text()
    return {"id": text, "tokens": tfds.features.Sequence(text), "ner_tags": tfds.features.Sequence(label)}

  return examples, features


def wnut_17(config: Any) -> Raw:
  """WNUT-17, emerging entities (Derczynski et al. 2017)."""
  examples, features = _entities(WNUT_TAGS, "1")
  files = {
    "train": ("wnut17train.conll",),
    "validation": ("emerging.dev.conll",),
    "test": ("emerging.test.annotated", "emerging.test.annotated.conll"),
  }
  return Raw("conll", files, examples, features=features, about=wnut_17.__doc__)


def conll_2003(config: Any) -> Raw:
  """CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), tags in BIO (IOB2), in the fourth column."""
  examples, features = _entities(CONLL_TAGS, "3")
  files = {
    "train": ("train.txt", "eng.train"),
    "validation": ("valid.txt", "eng.testa"),
    "test": ("test.txt", "eng.testb"),
  }
  return Raw("conll", files, examples, features=features, about=conll_2003.__doc__)


def scitldr(config: Any) -> Raw:
  """SciTLDR, abstracts alone (Cachola et al. 2020)."""

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    yield {name: record[name] for name in ("source", "target", "paper_id", "title")}

  def features(tfds) -> dict[str, Any]:
    several, text = tfds.features.Sequence(tfds.features.Text()), tfds.features.Text()
    return {"source": several, "target": several, "paper_id": text, "title": text}

  files = _splits("SciTLDR-A", ("train", "train.jsonl"), ("validation", "dev.jsonl"), ("test", "test.jsonl"))
  columns = ("source", "target", "paper_id", "title")
  return Raw("jsonl", files, examples, columns, features=features, about=scitldr.__doc__)


def multi30k(config: Any) -> Raw:
  """Multi30k, task 1: captions and their translations (Elliott et al. 2016)."""
  names = ("train", "val", "test_2016_flickr", "test_2017_flickr", "test_2018_flickr", "test_2017_mscoco")
  first, second = config.split("-")

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    yield record

  files = {{"val": "validation", "test_2016_flickr": "test"}.get(name, name): (f"{name}.{{field}}",) for name in names}
  features = lambda tfds: dict.fromkeys((first, second), tfds.features.Text())  # noqa: E731
  return Raw("parallel", files, examples, (first, second), features=features, about=multi30k.__doc__)


def race_questions(config: Any) -> Raw:
  """RACE (Lai et al. 2017), an example for each question; TFDS's `race` has one for each article."""

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    for question, options, answer in zip(record["questions"], record["options"], record["answers"], strict=True):
      shared = {"example_id": record["id"], "article": record["article"]}
      yield shared | {"question": question, "options": options, "answer": answer}

  def features(tfds) -> dict[str, Any]:
    text = tfds.features.Text()
    names = ("example_id", "article", "answer", "question")
    return dict.fromkeys(names, text) | {"options": tfds.features.Sequence(text)}

  splits = (("train", "train"), ("validation", "dev"), ("test", "test"))
  files = {split: (f"RACE/{name}/{config}/*.txt", f"{name}/{config}/*.txt") for split, name in splits}
  columns = ("id", "article", "questions", "options", "answers")
  return Raw("jsonl", files, examples, columns, features=features, about=race_questions.__doc__)


def swag(config: Any) -> Raw:
  """SWAG (Zellers et al. 2018), its regular form; -1 where a test set has no label."""
  columns = ("video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", *(f"ending{n}" for n in range(4)))

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    found = record.get("label")
    label = _UNKNOWN if found in (None, "") else _class(found, ["0", "1", "2", "3"], "swag", number)
    yield {name: record[name] for name in columns} | {"label": label}

  def features(tfds) -> dict[str, Any]:
    label = tfds.features.ClassLabel(names=["0", "1", "2", "3"])
    return dict.fromkeys(columns, tfds.features.Text()) | {"label": label}

  files = _splits("data", ("train", "train.csv"), ("validation", "val.csv"), ("test", "test.csv"))
  return Raw("csv", files, examples, columns, "label", features=features, about=swag.__doc__)


def codah(config: Any) -> Raw:
  """CODAH (Chen et al. 2019); features as on the Hugging Face hub, spelling included."""

  def examples(record: Record, number: int, split: str) -> Iterator[Example]:
    label = _class(record["label"], ["0", "1", "2", "3"], "codah", number)
    answers = [record[f"answer{n}"] for n in range(4)]
    about = {"id": number, "question_category": record["category"], "question_propmt": record["prompt"]}
    yield about | {"candidate_answers": answers, "correct_answer_idx": label}

  def features(tfds) -> dict[str, Any]:
    text = tfds.features.Text()
    numbers = dict.fromkeys(("id", "correct_answer_idx"), tfds.features.Scalar(np.int32))
    texts = {"question_category": text, "question_propmt": text, "candidate_answers": tfds.features.Sequence(text)}
    return numbers | texts

  columns = ("category", "prompt", *(f"answer{n}" for n in range(4)), "label")
  files = {"train": ("train.tsv", "full_data.tsv"), "validation": ("dev.tsv",), "test": ("test.tsv",)}
  return Raw("tsv", files, examples, columns, headerless=columns, features=features, about=codah.__doc__)


READERS = {
  "glue": glue,
  "super_glue": super_glue,
  "squad": squad,
  "xquad": xquad,
  "mlqa": mlqa,
  "web_questions": web_questions,
  "universal_dependencies": universal_dependencies,
  "wnut_17": wnut_17,
  "conll_2003": conll_2003,
  "scitldr": scitldr,
  "multi30k": multi30k,
  "race_questions": race_questions,
  "swag": swag,
  "codah": codah,
}
OWN_CONFIGS = {  # of datasets that TFDS lacks
  "wnut_17": None,
  "conll_2003": None,
  "scitldr": None,
  "multi30k": "en-de",
  "race_questions": "middle",
  "swag": "regular",
  "codah": None,
}
