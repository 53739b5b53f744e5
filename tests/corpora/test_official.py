"""Records of benchmarks' official files equal TensorFlow Datasets' records."""

import contextlib
import gzip
import json

import fsspec
import pytest

from refusals import refuses
from t5x_like import slots
from t5x_like.benchmarks import suites
from t5x_like.corpora.sources import Skip, open_source
from t5x_like.quiet_tensorflow import tfds

SST2 = 'sentence\tlabel\na fine "film\t1\ndull \t0\n'
STSB = (
  "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA man.\tA boy.\t3.250\n1\tnews\tx\ty\t0\n"
)
COLA = "gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tHim sees.\n"
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n"
MNLI = "index\tpromptID\tsentence1\tsentence2\tgold_label\n0\t1\tp\th\tneutral\n"
COPA = [
  {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": n, "idx": n}
  for n in (0, 1)
]
WIC = [{"word": "w", "sentence1": "a w", "sentence2": "b w", "label": True, "idx": 4}]
WIC[0] |= {"start1": 1, "start2": 2, "end1": 1, "end2": 2}
WSC = [
  {
    "text": "The Dog saw\nits bone .",
    "target": {"span1_text": span, "span2_text": "its", "span1_index": 0, "span2_index": 3},
    "label": False,
    "idx": 0,
  }
  for span in ("The Dog", "the Dog.")
]
MULTIRC = {
  "idx": 3,
  "passage": {
    "text": "t",
    "questions": [
      {
        "question": "q",
        "idx": 0,
        "answers": [{"text": str(n), "idx": n, "label": n} for n in (0, 1)],
      }
    ],
  },
}
RECORD = {
  "idx": 1,
  "passage": {
    "text": "Ann met Bob.",
    "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}],
  },
  "qas": [
    {"idx": 7, "query": "@placeholder met Bob", "answers": [{"start": 0, "end": 2, "text": "Ann"}]}
  ],
}
SQUAD = {
  "data": [
    {
      "title": "T",
      "paragraphs": [
        {
          "context": "red or blue",
          "qas": [
            {
              "id": "a",
              "question": "q?",
              "is_impossible": False,
              "answers": [{"text": "red", "answer_start": 0}],
            },
            {"id": "b", "question": "r?", "is_impossible": True, "answers": []},
          ],
        }
      ],
    }
  ]
}
# suite and task: (TFDS's name, the fields to compare, a file of each split)
TABLES = {
  "glue/sst2": ("glue/sst2", "sentence label", {"train": ("SST-2/train.tsv", SST2)}),
  "glue/stsb": (
    "glue/stsb",
    "sentence1 sentence2 label",
    {
      "train": ("STS-B/train.tsv", STSB),
      "test": ("STS-B/test.tsv", STSB.replace("\tscore", "\tnone")),
    },
  ),
  "glue/cola": (
    "glue/cola",
    "sentence label",
    {
      "train": ("CoLA/train.tsv", COLA),
      "test": ("CoLA/test.tsv", "index\tsentence\n0\tBill left.\n"),
    },
  ),
  "glue/mnli": (
    "glue/mnli",
    "premise hypothesis label",
    {"validation_matched": ("MNLI/dev_matched.tsv", MNLI)},
  ),
  "superglue/copa": (
    "super_glue/copa",
    "premise choice1 choice2 question label",
    {"train": ("COPA/train.jsonl", COPA), "test": ("COPA/test.jsonl", [COPA[0] | {"label": None}])},
  ),
  "superglue/wic": (
    "super_glue/wic",
    "word sentence1 sentence2 label",
    {"validation": ("WiC/val.jsonl", WIC)},
  ),
  "superglue/wsc": (
    "super_glue/wsc.fixed",
    "text span1_text span2_text span2_index label",
    {"train": ("WSC/train.jsonl", WSC)},
  ),
  "superglue/multirc": (
    "super_glue/multirc",
    "paragraph question answer label idx",
    {"train": ("MultiRC/train.jsonl", [MULTIRC])},
  ),
  "superglue/record": (
    "super_glue/record",
    "passage query entities answers idx",
    {"validation": ("ReCoRD/val.jsonl", [RECORD])},
  ),
}


def write(path, content):
  """Write text, JSON lines (a list) or JSON; a name that ends with .gz is compressed."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if isinstance(content, list):
    rows = [{key: value for key, value in row.items() if value is not None} for row in content]
    content = "".join(f"{json.dumps(row)}\n" for row in rows)
  text = (content if isinstance(content, str) else json.dumps(content)).encode()
  path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def open_task_source(task: str, data_dir, fields: str = ""):
  suite, name = task.split("/")
  benchmark = slots.find("suite", suite, suites, "SUITE").tasks[name]
  return open_source(benchmark.files.source, fields=tuple(fields.split()), data_dir=str(data_dir))


def read_records(task: str, split: str, data_dir, fields: str = "") -> list[dict]:
  rows = [record for _, record in open_task_source(task, data_dir, fields).records(split)]
  assert not any(isinstance(record, Skip) for record in rows)
  return rows


def read_by_tfds(name: str, path, split: str, fields: list[str]) -> list[dict]:
  """Return the examples that TFDS reads from a file, with the names of classes as labels."""
  builder = tfds.builder(name, data_dir=str(path.parent / "unused"))
  if name.startswith("glue") and split == "validation":
    split = "dev"
  features = builder.info.features
  label = features["label"] if "label" in features else None
  class_names = getattr(label, "names", None)
  examples = []
  for _, example in builder._generate_examples(str(path), split):
    encoded = features.encode_example(example)
    if class_names and encoded["label"] >= 0:
      encoded["label"] = class_names[encoded["label"]]
    examples.append({field: encoded[field] for field in fields})
  return examples


def normalise_value(value):
  """Return bytes as text and lists sorted, because our records and TFDS's differ in these."""
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, list | tuple):
    return sorted(map(normalise_value, value))
  return value


def normalise_rows(rows: list[dict]) -> list[dict]:
  """Return rows in which equal values of our records and TFDS's have equal types."""
  normalised_rows = []
  for row in rows:
    normalised = {name: normalise_value(value) for name, value in row.items()}
    with contextlib.suppress(KeyError, TypeError, ValueError):  # other labels are not changed
      normalised["label"] = float(normalised["label"])
    normalised_rows.append(normalised)
  return normalised_rows


@pytest.mark.parametrize("task", TABLES)
def test_records_equal_tfds_from_the_same_files(task, tmp_path):
  name, field_names, files = TABLES[task]
  fields = field_names.split()
  for file, content in files.values():
    write(tmp_path / file, content)
  assert open_task_source(task, tmp_path).splits == tuple(files)
  for split, (file, _) in files.items():
    rows = read_records(task, split, tmp_path, field_names)
    our_rows = [{field: row[field] for field in fields} for row in rows]
    tfds_rows = read_by_tfds(name, tmp_path / file, split, fields)
    assert normalise_rows(our_rows) == normalise_rows(tfds_rows)


def test_questions_of_qqp_with_a_line_break_are_skipped_as_in_tfds(tmp_path):
  lines = [
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "1\t1\t2\ta?\tb?\t0",
    "2\t3\t4\tc?",
    "and?\td?\t1",
  ]
  write(tmp_path / "QQP" / "train.tsv", "\n".join([*lines, "3\t5\t6\te?\tf?\t1"]) + "\n")
  fields = ["question1", "question2", "label"]
  rows = [
    record
    for _, record in open_task_source("glue/qqp", tmp_path, " ".join(fields)).records("train")
  ]
  skips = [row.reason for row in rows if isinstance(row, Skip)]
  assert skips == ["line of too few columns"] * 2
  our_rows = [{field: row[field] for field in fields} for row in rows if not isinstance(row, Skip)]
  assert len(our_rows) == 2
  assert our_rows == read_by_tfds("glue/qqp", tmp_path / "QQP" / "train.tsv", "train", fields)


def test_lines_of_too_few_columns_are_refused_in_other_tasks(tmp_path):
  write(tmp_path / "SST-2" / "train.tsv", SST2 + "short\n")
  with refuses("train.tsv:4: found 1 tab-separated columns, expected 2: sentence, label"):
    read_records("glue/sst2", "train", tmp_path, "sentence label")


@pytest.mark.parametrize("file", ["archive/CoLA/train.tsv.gz", "train.tsv"])
def test_file_is_found_with_or_without_the_folder_of_its_task(file, tmp_path):
  write(tmp_path / file, COLA)
  rows = read_records("glue/cola", "train", tmp_path, "sentence label")
  assert [row["label"] for row in rows] == ["acceptable", "unacceptable"]
  assert [row["idx"] for row in rows] == [0, 1]


def test_directory_can_be_remote():
  fsspec.filesystem("memory").pipe("/official/glue/CoLA/train.tsv.gz", gzip.compress(COLA.encode()))
  (first, _) = read_records("glue/cola", "train", "memory://official", "sentence label")
  assert first["sentence"] == "The sailors rode."
  assert first["label"] == "acceptable"


CONLLU = """# sent_id = s1
# text = It's
1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_
1\tIt\tIt\tPRON\tX\t_\t0\troot\t_\t_
2\t's\t's\tAUX\tX\t_\t0\troot\t_\t_

"""
SWAG = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
SUMMARY = {"source": ["a", "b"], "target": ["c"], "paper_id": "1", "title": "t"}
# (the task, the split, its file, the fields of the records in the file)
FORMATS = [
  (
    "glue/mrpc",
    "train",
    ("msr_paraphrase_train.txt", MRPC),
    [{"sentence1": "a", "sentence2": "b", "label": "equivalent"}],
  ),
  (
    "glue/mrpc",
    "validation",
    ("MRPC/dev.tsv", "index\tsentence1\tsentence2\tlabel\n5\tc\td\t0\n"),
    [{"sentence1": "c", "sentence2": "d", "label": "not_equivalent"}],
  ),
  (
    "squad/squad_v2",
    "validation",
    ("dev-v2.0.json", SQUAD),
    [{"answers": [{"text": "red", "answer_start": 0}]}, {"answers": []}],
  ),
  (
    "tags/ner",
    "train",
    ("wnut17train.conll", "New\tB-location\nYork\tI-location\n\t\nhi\tO\n"),
    [
      {"tokens": ["New", "York"], "ner_tags": ["B-location", "I-location"]},
      {"tokens": ["hi"], "ner_tags": ["O"]},
    ],
  ),
  (
    "tags/pos",
    "validation",
    ("en_ewt-ud-dev.conllu.gz", CONLLU),
    [{"tokens": ["It", "'s"], "upos": ["PRON", "AUX"]}],
  ),
  (
    "text/scitldr",
    "train",
    ("train.jsonl", [SUMMARY]),
    [{"source": ["a", "b"], "target": ["c"]}],
  ),
  (
    "choices/swag",
    "validation",
    ("val.csv", f'{SWAG},label\nv,1,s,"He said, ""no""\nand left.",He,gold,a,b,c,d,2\n'),
    [{"sent1": 'He said, "no"\nand left.', "label": "2"}],
  ),
  (
    "choices/swag",
    "test",
    ("test.csv", f"{SWAG}\nv,2,s,One.,He,gold,a,b,c,d\n"),
    [{"sent1": "One.", "label": "-1"}],
  ),
  (
    "choices/codah",
    "train",
    ("full_data.tsv", "i\tA man\ta\tb\tc\td\t3\n"),
    [{"prompt": "A man", "answer3": "d", "label": "3"}],
  ),
  (
    "text/web_questions",
    "train",
    (
      "webquestions.examples.train.json",
      json.dumps(
        [
          {
            "utterance": "who?",
            "targetValue": '(list (description "A \\"B\\"") (description Rome))',
          }
        ]
      ),
    ),
    [{"question": "who?", "answers": ['A "B"', "Rome"]}],
  ),
]


@pytest.mark.parametrize("task, split, file, expected", FORMATS)
def test_official_files_are_read(task, split, file, expected, tmp_path):
  name, content = file
  write(tmp_path / name, content)
  fields = expected[0].keys()
  rows = read_records(task, split, tmp_path, " ".join(fields))
  assert [{field: row[field] for field in fields} for row in rows] == expected


def test_translations_are_read_from_multi30k(tmp_path):
  for language in ("en", "de"):
    write(tmp_path / f"val.{language}.gz", f"{language} one\n{language} two\n")
  rows = read_records("text/multi30k", "validation", tmp_path)
  assert [row["de"] for row in rows] == ["de one", "de two"]


def test_web_questions_are_read_from_three_files_as_one_split(tmp_path):
  for part in ("trainmodel", "val", "devtest"):
    row = {"qId": part, "qText": f"{part}?", "answers": ["x", "y"]}
    write(tmp_path / f"{part}.json", json.dumps([row]))
  questions = read_records("text/web_questions", "train", tmp_path, "question answers")
  assert [row["question"] for row in questions] == ["trainmodel?", "val?", "devtest?"]


def test_race_is_read_from_a_folder_of_articles(tmp_path):
  for n in range(2):
    article = {
      "id": f"high{n}.txt",
      "article": f"a{n}",
      "questions": ["q1", "q2"],
      "answers": ["B", "A"],
      "options": [["x", "y"], ["z", "w"]],
    }
    write(tmp_path / "RACE" / "train" / "high" / f"{n}.txt", article)
  fields = "article question options answer"
  rows = read_records("choices/race_high", "train", tmp_path, fields)
  assert [row["article"] for row in rows] == ["a0", "a0", "a1", "a1"]
  assert [row["question"] for row in rows] == ["q1", "q2"] * 2
  assert [row["answer"] for row in rows] == ["B", "A"] * 2
  assert [row["options"] for row in rows] == [["x", "y"], ["z", "w"]] * 2


def test_shares_of_one_file_are_disjoint_splits(tmp_path):
  write(tmp_path / "all.tsv", "sentence\tlabel\n" + "".join(f"s{n}\t{n % 2}\n" for n in range(10)))
  paths = f"train={tmp_path}/all.tsv[:80%],validation={tmp_path}/all.tsv[80%:]"
  train = {row["sentence"] for row in read_records("glue/sst2", "train", paths)}
  validation = {row["sentence"] for row in read_records("glue/sst2", "validation", paths)}
  assert train == {f"s{n}" for n in range(8)}
  assert validation == {"s8", "s9"}


@pytest.mark.parametrize(
  ("task", "place", "words"),
  [
    ("glue/sst2", "nowhere", "found none of the files of SST-2, SST-2/train.tsv"),
    ("glue/sst2", "dev={}/a.tsv", "found the split 'dev', expected one of train, validation, test"),
    ("glue/sst2", "train={}/no.tsv", "no such file"),
    ("glue/sst2", "train={}/a.tsv[90%:10%]", "expected a share"),
    ("glue/rte", "train={}/a.tsv", "found no field 'sentence1'"),
    ("glue/sst2", "train={}/nolabel.tsv", "nolabel.tsv:2: found no field 'label'"),
    (
      "glue/sst2",
      "train={}/blank.tsv",
      "blank.tsv:2: found nothing in 'label', expected one of negative, positive",
    ),
    ("glue/cola", "train={}/a.tsv", "found no field"),
    (
      "glue/cola",
      "{}/twice",
      "train.tsv, expected one CoLA/train.tsv; give the folder of one of them",
    ),
    ("superglue/multirc", "train={}/flat.jsonl", "flat.jsonl:1: found an object in another form"),
    ("text/web_questions", "test={}/flat.json", "element 0: found idx, expected qText and answers"),
  ],
)
def test_bad_input_is_refused_in_one_line(task, place, words, tmp_path):
  write(tmp_path / "a.tsv", "text\tlabel\nfine\t1\n" if task == "glue/cola" else SST2)
  write(tmp_path / "nolabel.tsv", "sentence\nx\n")
  write(tmp_path / "blank.tsv", "sentence\tlabel\nfine\t\n")
  write(tmp_path / "flat.jsonl", [{"idx": 0}])
  write(tmp_path / "flat.json", json.dumps([{"idx": 0}]))
  for folder in ("one", "two"):
    write(tmp_path / "twice" / folder / "CoLA" / "train.tsv", COLA)
  fields = {
    "glue/sst2": "sentence label",
    "glue/rte": "sentence1 sentence2 label",
    "glue/cola": "sentence label",
  }
  split = "test" if "test=" in place else "train"
  with refuses(words):
    read_records(task, split, place.format(tmp_path), fields.get(task, ""))
