"""Small files in the formats of benchmarks, and tools.score run on them."""

import gzip
import json

from tools.score.__main__ import main


def write(path, content):
  """A file of text, of lines (a list of strings), or of JSON (.json, and anything else); .gz is
  compressed."""
  if isinstance(content, list) and path.name.split(".")[-1] != "json":
    content = "".join(f"{line}\n" for line in content)
  plain = isinstance(content, str) and path.suffix != ".json"
  text = content if plain else json.dumps(content, ensure_ascii=False)
  path.parent.mkdir(parents=True, exist_ok=True)
  data = text.encode()
  path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
  return path


def jsonl(rows):
  return [json.dumps(row, ensure_ascii=False) for row in rows]


def squad(answers):
  """SQuAD's JSON with the answers of each question by its id; no answers make it impossible."""
  qas = [
    {
      "id": name,
      "question": "?",
      "answers": [{"text": text} for text in texts],
      "is_impossible": not texts,
    }
    for name, texts in answers.items()
  ]
  return {"data": [{"title": "T", "paragraphs": [{"context": "…", "qas": qas}]}]}


def submission(labels):
  """Lines of GLUE's submission files."""
  return ["index\tprediction", *(f"{i}\t{label}" for i, label in enumerate(labels))]


def run(capsys, *argv):
  """(exit code, what stdout's last line says as JSON, or the refusal)."""
  code = main([str(argument) for argument in argv])
  captured = capsys.readouterr()
  if code:
    assert captured.err.startswith("error: "), captured.err
    assert captured.err.count("\n") == 1, captured.err
    assert captured.out == ""
    return code, captured.err.strip()
  return code, json.loads(captured.out.strip().splitlines()[-1])
