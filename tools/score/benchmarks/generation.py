"""Free text against reference texts: BLEU, chrF, ROUGE, the last word of LAMBADA, and numbers of GSM8K and SVAMP."""

from collections.abc import Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics.classification import Matches
from t5x_like.metrics.numbers import final_number
from t5x_like.metrics.summarization import Rouge
from t5x_like.metrics.translation import Bleu, Chrf
from tools.score.benchmark import Benchmark, Example, one_file, text
from tools.score.files import File, first_of, read, table
from tools.score.predictions import load_texts

_TEXTS = ("references", "reference", "target", "targets", "summary", "highlights", "translation")
_NAMES = ("id", "idx", "index", "paper_id", "guid")


def _columns(paths: Sequence[str]) -> list[Example]:
  """Reference texts by example: lines of one or several parallel files, or JSONL with one or several texts (_TEXTS)."""
  files = [_texts(read(path)) for path in paths]
  for path, other in zip(paths[1:], files[1:]):
    if len(other) != len(files[0]):
      raise UserError(f"{path}: found {len(other)} texts, expected {len(files[0])}, as in {paths[0]}")
  return [
    Example(same[0][0] or str(number), [one for _, several in same for one in several], (str(number),))
    for number, same in enumerate(zip(*files))
  ]


def _texts(file: File) -> list[tuple[str | None, list[str]]]:
  """(id or None, texts) of every example of one file."""
  values = file.values()
  if values is None:
    return [(None, [line]) for line in file.lines()]
  if isinstance(values[0], list) and not any(isinstance(one, dict) for one in values[0]):
    return [(None, _strings(file, n, value)) for n, value in enumerate(values[0], 1)]
  found = []
  for line, row in table(file):
    value = first_of(row, _TEXTS)
    if value is None:
      raise UserError(f"{file.path}, line {line}: found {', '.join(row)}, expected one of {', '.join(_TEXTS)}")
    name = first_of(row, _NAMES)
    found.append((None if name is None else str(name), _strings(file, line, value)))
  return found


def _strings(file: File, line: int, value: Any) -> list[str]:
  several = [value] if isinstance(value, str) else value
  if not isinstance(several, list) or not several or not all(isinstance(one, str) for one in several):
    raise UserError(f"{file.path}, line {line}: found {str(value)[:40]!r}, expected a text or a list of texts")
  return several


def _benchmark(metric) -> Benchmark:
  return Benchmark(metric, _columns, text, predictions=load_texts)


def _bleu(tokenize: str = "13a", lowercase: bool = False) -> Benchmark:
  from sacrebleu.metrics.bleu import BLEU

  if tokenize not in BLEU.TOKENIZERS:
    raise UserError(f"--tokenize={tokenize}: expected one of {', '.join(BLEU.TOKENIZERS)}")
  return _benchmark(Bleu(tokenize, lowercase))


def _chrf(char_order: int = 6, word_order: int = 0, beta: int = 2, lowercase: bool = False) -> Benchmark:
  return _benchmark(Chrf(char_order, word_order, beta, lowercase))


def _rouge(use_stemmer: bool = True) -> Benchmark:
  return _benchmark(Rouge(use_stemmer))


def _lambada_examples(paths) -> list[Example]:
  """`{"context", "continuation"}`, or `{"text"}`, whose last word is the answer."""
  examples = []
  file = read(one_file(paths))
  for line, row in table(file, ("text",)):
    word = row["continuation"] if "continuation" in row else str(row.get("text", "")).rstrip().rsplit(" ", 1)[-1]
    if not isinstance(word, str) or not word.strip():
      raise UserError(f"{file.path}, line {line}: found {', '.join(row)}, expected continuation, or text")
    examples.append(Example(str(len(examples)), word.strip()))
  return examples


def _lambada() -> Benchmark:
  return Benchmark(Matches(), _lambada_examples, lambda value, one: text(value, one).strip(), predictions=load_texts)


def _sums_examples(paths) -> list[Example]:
  """`{"answer"}`: a worked answer that ends in `#### NUMBER`, or the number."""
  examples = []
  file = read(one_file(paths))
  for line, row in table(file):
    number = final_number(str(row.get("answer", "")))
    if number is None:
      raise UserError(f"{file.path}, line {line}: found {', '.join(row)}, expected an answer with a number")
    aliases = tuple(str(row[name]) for name in ("id", "question") if name in row)
    examples.append(Example(str(len(examples)), number, aliases))
  return examples


def _sums_prediction(value: Any, example: Example) -> str:
  number = final_number(text(value, example))
  if number is None:
    raise ValueError("no number in the answer")
  return number


def _sums() -> Benchmark:
  metric = Matches(name="exact_match")
  return Benchmark(metric, _sums_examples, _sums_prediction, predictions=load_texts, invalid="wrong")


BENCHMARKS = {"bleu": _bleu, "chrf": _chrf, "rouge": _rouge, "lambada": _lambada, "gsm8k": _sums, "svamp": _sums}
