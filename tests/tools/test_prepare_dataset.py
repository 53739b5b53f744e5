"""Raw benchmark files as TensorFlow datasets: what TFDS's own code makes of the same files, and bad input."""

import gzip
import json
import pathlib

import pytest

from t5x_like.corpora.sources import open_source
from t5x_like.data.quiet_tensorflow import tfds
from tools.prepare_dataset import command

SST2 = 'sentence\tlabel\na fine "film\tx\n'.replace("\tx", " \t1") + "dull \t0\n"
STSB = "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA man.\tA boy.\t3.250\n1\tnews\tx\ty\t0\n"
COLA = "gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tHim sees.\n"
COPA = [{"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": n, "idx": n} for n in (0, 1)]
MULTIRC = {
  "idx": 3,
  "passage": {
    "text": "t",
    "questions": [{"question": "q", "idx": 0, "answers": [{"text": str(n), "idx": n, "label": n} for n in (0, 1)]}],
  },
}
RECORD = {
  "idx": 1,
  "passage": {"text": "Ann met Bob.", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}]},
  "qas": [{"idx": 7, "query": "@placeholder met Bob", "answers": [{"start": 0, "end": 2, "text": "Ann"}]}],
}
SQUAD = {
  "data": [
    {
      "title": "T",
      "paragraphs": [
        {
          "context": "red or blue",
          "qas": [
            {"id": "a", "question": "q?", "is_impossible": False, "answers": [{"text": "red", "answer_start": 0}]},
            {
              "id": "b",
              "question": "r?",
              "is_impossible": True,
              "answers": [],
              "plausible_answers": [{"text": "or", "answer_start": 4}],
            },
          ],
        }
      ],
    }
  ]
}
FILES = {
  "glue/sst2": {"train": ("SST-2/train.tsv", SST2), "validation": ("SST-2/dev.tsv", SST2)},
  "glue/stsb": {"train": ("STS-B/train.tsv", STSB), "test": ("STS-B/test.tsv", STSB.replace("\tscore", "\tnone"))},
  "glue/cola": {"train": ("CoLA/train.tsv", COLA), "test": ("CoLA/test.tsv", "index\tsentence\n0\tBill left.\n")},
  "super_glue/copa": {"train": ("COPA/train.jsonl", COPA), "test": ("COPA/test.jsonl", [COPA[0] | {"label": None}])},
  "super_glue/multirc": {"train": ("MultiRC/train.jsonl", [MULTIRC])},
  "super_glue/record": {"validation": ("ReCoRD/val.jsonl", [RECORD])},
  "squad/v2.0": {"validation": ("dev-v2.0.json", SQUAD)},
}


def written(folder: pathlib.Path, files: dict) -> pathlib.Path:
  for name, content in files.values():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
      rows = [{k: v for k, v in row.items() if v is not None} for row in content]
      content = "\n".join(map(json.dumps, rows)) + "\n"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
  return folder


def theirs(name: str, path: pathlib.Path, split: str) -> list[dict]:
  """The examples that TFDS's own reader of these files makes, encoded."""
  dataset = name.split("/")[0]
  builder = tfds.builder(name, data_dir=str(path.parent / "unused"))
  if dataset == "glue":
    found = builder._generate_examples(str(path), {"validation": "dev"}.get(split, split))
  elif dataset == "super_glue":
    found = builder._generate_examples(str(path), split)
  else:
    from tensorflow_datasets.datasets.squad import squad_dataset_builder

    found = squad_dataset_builder._generate_v2_examples(str(path))
  return [example for _, example in found]


def plain(example, features) -> str:
  """An example as TFDS stores it, in a form that compares."""
  encoded = features.encode_example(example)
  return json.dumps(encoded, sort_keys=True, default=lambda x: x.decode() if isinstance(x, bytes) else x.tolist())


@pytest.mark.parametrize("name", FILES)
def test_the_dataset_is_what_tfds_makes_of_the_same_files(name, tmp_path):
  raw = written(tmp_path / "raw", FILES[name])
  assert command.main([name, f"--from_files={raw}", f"--data_dir={tmp_path}/tfds"]) == 0
  builder = tfds.builder(name, data_dir=str(tmp_path / "tfds"))
  assert builder.is_prepared() and set(builder.info.splits) == set(FILES[name])
  for split, (file, _) in FILES[name].items():
    wanted = sorted(plain(example, builder.info.features) for example in theirs(name, raw / file, split))
    numpy = tfds.as_numpy(builder.as_dataset(split=split))
    stored = sorted(
      json.dumps(one, sort_keys=True, default=lambda x: x.decode() if isinstance(x, bytes) else x.tolist())
      for one in (_decoded(example) for example in numpy)
    )
    assert [json.loads(x) for x in stored] == [json.loads(x) for x in wanted]


def _decoded(found):
  if isinstance(found, dict):
    return {key: _decoded(value) for key, value in found.items()}
  return found.tolist() if hasattr(found, "tolist") else found


CONLLU = "# sent_id = s1\n# text = It's\n1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n" + "".join(
  f"{n}\t{w}\t{w}\t{p}\tX\t_\t0\troot\t_\t_\n" for n, w, p in ((1, "It", "PRON"), (2, "'s", "AUX"))
)


def test_sentences_summaries_translations_and_questions(tmp_path):
  """Datasets that TFDS lacks, found by their usual names, compressed, and read back by name."""
  raw = tmp_path / "raw"
  raw.mkdir()
  (raw / "wnut17train.conll").write_text("New\tB-location\nYork\tI-location\n\t\nhi\tO\n")
  (raw / "en_ewt-ud-dev.conllu.gz").write_bytes(gzip.compress((CONLLU + "\n").encode()))
  (raw / "train.jsonl").write_text(json.dumps({"source": ["a", "b"], "target": ["c"], "paper_id": "1", "title": "t"}))
  for language in ("en", "de"):
    (raw / f"val.{language}.gz").write_bytes(gzip.compress(f"{language} one\n{language} two\n".encode()))
  for part in ("trainmodel", "val", "devtest"):
    (raw / f"{part}.json").write_text(json.dumps([{"qId": part, "qText": f"{part}?", "answers": ["x", "y"]}]))

  def read(name: str, split: str):
    assert command.main([name, f"--from_files={raw}", f"--data_dir={tmp_path}/tfds"]) == 0
    return [record for _, record in open_source(f"tfds:{name}", data_dir=str(tmp_path / "tfds")).records(split)]

  assert sorted((r["tokens"], r["ner_tags"]) for r in read("wnut_17", "train")) == [
    (["New", "York"], ["B-location", "I-location"]),
    (["hi"], ["O"]),
  ]
  (sentence,) = read("universal_dependencies/en_ewt", "validation")
  assert (sentence["idx"], sentence["text"]) == ("s1", "It's")
  assert (sentence["tokens"], sentence["upos"]) == (["It", "'s"], ["PRON", "AUX"])
  assert read("scitldr", "train") == [{"source": ["a", "b"], "target": ["c"], "paper_id": "1", "title": "t"}]
  assert sorted(r["de"] for r in read("multi30k/en-de", "validation")) == ["de one", "de two"]
  assert sorted(r["question"] for r in read("web_questions", "train")) == ["devtest?", "trainmodel?", "val?"]


def test_shares_of_one_file_are_splits_without_overlap(tmp_path):
  (tmp_path / "all.tsv").write_text("sentence\tlabel\n" + "".join(f"s{n}\t{n % 2}\n" for n in range(10)))
  files = f"train={tmp_path}/all.tsv[:80%],validation={tmp_path}/all.tsv[80%:]"
  assert command.main(["glue/sst2", f"--from_files={files}", f"--data_dir={tmp_path}"]) == 0
  source = open_source("tfds:glue/sst2", data_dir=str(tmp_path))
  train, validation = ({r["sentence"] for _, r in source.records(split)} for split in ("train", "validation"))
  assert (len(train), validation) == (8, {"s8", "s9"}) and not train & validation


@pytest.mark.parametrize(
  ("name", "files", "words"),
  [
    ("glue/sst3", "", "did you mean 'sst2'"),
    ("gleu/sst2", "", "did you mean 'glue'"),
    ("glue/sst2", "nowhere", "expected a directory"),
    ("glue/sst2", ".", "found none of SST-2/train.tsv"),
    ("glue/sst2", "dev={}/a.tsv", "found the split 'dev', expected one of train, validation, test"),
    ("glue/sst2", "train={}/no.tsv", "no such file"),
    ("glue/sst2", "train={}/a.tsv[90%:10%]", "expected a share"),
    ("glue/rte", "train={}/a.tsv", "found no field 'sentence1'"),
    ("glue/sst2", "train={}/nolabel.tsv", "'label'"),
    (
      "glue/sst2",
      "train={}/wrong.tsv",
      "wrong.tsv:2: sst2, example 0: found the label 'x', expected one of negative, positive",
    ),
    ("glue/sst2", "train={}/empty.tsv", "found no examples of the split train"),
    ("wnut_17", "train={}/tags.conll", "found the tag 'B-planet', expected one of O"),
  ],
)
def test_bad_input_is_one_line(name, files, words, tmp_path, capsys, monkeypatch):
  (tmp_path / "a.tsv").write_text(SST2)
  (tmp_path / "nolabel.tsv").write_text("sentence\nx\n")
  (tmp_path / "wrong.tsv").write_text("sentence\tlabel\nfine\tx\n")
  (tmp_path / "empty.tsv").write_text("sentence\tlabel\n")
  (tmp_path / "tags.conll").write_text("Mars\tB-planet\n")
  monkeypatch.chdir(tmp_path)
  assert command.main([name, f"--from_files={files.format(tmp_path)}", f"--data_dir={tmp_path}/tfds"]) == 2
  error = capsys.readouterr().err
  assert words in error and error.count("\n") == 1, error


def test_multiple_choice_of_three_benchmarks(tmp_path):
  """A folder of articles, a CSV table with quotes, a table without header."""
  raw = tmp_path / "raw"
  (raw / "RACE" / "train" / "high").mkdir(parents=True)
  for n in range(2):
    article = {"id": f"high{n}.txt", "article": f"a{n}", "questions": ["q1", "q2"], "answers": ["B", "A"]}
    article["options"] = [["x", "y"], ["z", "w"]]
    (raw / "RACE" / "train" / "high" / f"{n}.txt").write_text(json.dumps(article))
  header = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
  (raw / "val.csv").write_text(f'{header},label\nv,1,s,"He said, ""no""\nand left.",He,gold,a,b,c,d,2\n')
  (raw / "test.csv").write_text(f"{header}\nv,2,s,One.,He,gold,a,b,c,d\n")
  (raw / "full_data.tsv").write_text("i\tA man\ta\tb\tc\td\t3\n")

  def read(name: str, split: str):
    if not (tmp_path / "tfds" / name.split("/")[0]).exists():
      assert command.main([name, f"--from_files={raw}", f"--data_dir={tmp_path}/tfds"]) == 0
    return [record for _, record in open_source(f"tfds:{name}", data_dir=str(tmp_path / "tfds")).records(split)]

  questions = read("race_questions/high", "train")
  assert sorted((r["article"], r["question"], r["answer"], r["options"]) for r in questions) == [
    (f"a{n}", *rest) for n in range(2) for rest in (("q1", "B", ["x", "y"]), ("q2", "A", ["z", "w"]))
  ]
  (validation,), (test,) = read("swag/regular", "validation"), read("swag/regular", "test")
  assert validation["sent1"] == 'He said, "no"\nand left.' and str(validation["label"]) == "2"
  assert str(test["label"]) == "-1"
  (one,) = read("codah", "train")
  assert one["candidate_answers"] == ["a", "b", "c", "d"] and one["correct_answer_idx"] == 3


def test_of_several_names_those_that_exist_are_left_as_they_are(tmp_path, capsys):
  for name, text in (("SST-2", SST2), ("CoLA", COLA)):
    (tmp_path / name).mkdir()
    (tmp_path / name / "train.tsv").write_text(text)
  flags = [f"--from_files={tmp_path}", f"--data_dir={tmp_path}/tfds"]
  assert command.main(["glue/sst2", *flags]) == 0 and command.main(["glue/sst2", *flags]) == 2
  assert "exists; delete that directory" in capsys.readouterr().err
  assert command.main(["glue/sst2", "glue/cola", *flags]) == 0
  assert "glue/sst2: left as it is" in capsys.readouterr().out and (tmp_path / "tfds" / "glue" / "cola").exists()
