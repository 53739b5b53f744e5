"""Zero- and few-shot questions from files, by likelihood or by generation.

Examples:
  python -m tools.few_shot --workdir=runs/gpt2 --input=arc_easy.jsonl.gz --input=lambada_openai.jsonl.gz
  python -m tools.few_shot --workdir=runs/gpt2 --input=mmlu_dev_test.jsonl.gz --shots=5 --output=results.json
  python -m tools.few_shot --workdir=runs/gpt2 --input=novels.jsonl.gz --stride=512

A file is JSON lines, plain or compressed; its keys say what is asked:

  query, choices, gold               the likeliest choice: accuracy, and accuracy_norm by log-probability per byte
  context_options, continuation, gold  the context after which the continuation is likeliest
  question, choices, answer (A-E)    MMLU's: the letter; examples come from its split dev, of the same subject
  context, continuation              the next words: accuracy (all greedy), perplexity
  context, answer (, aliases)        generated up to the end of the line; exact match, or of the last number where the
                                     file has chain_of_thought or the answer is a number
  text                               bits per byte, perplexity per token and per word, with windows `--stride` apart

Examples before a question are drawn by --seed from --examples or, without one, from the other rows of the file.
"""

import collections
import json
import math
import pathlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from t5x_like import command_line
from t5x_like.data.sources import Record, Skip, open_source
from t5x_like.data.vocabularies import start_id
from t5x_like.errors import UserError, door
from t5x_like.inference import generation, strategies
from t5x_like.inference.likelihood import Likelihood
from t5x_like.metrics.answers import normalize_trivia_qa
from t5x_like.metrics.numbers import final_number
from t5x_like.training import trained

_LETTERS = "ABCDE"
_KINDS: dict[str, tuple[str, ...]] = {  # by the keys that a file has, the most special first
  "schema": ("context_options", "continuation", "gold"),
  "letters": ("question", "choices", "answer"),
  "choices": ("query", "choices", "gold"),
  "words": ("context", "continuation"),
  "answers": ("context", "answer"),
  "texts": ("text",),
}


@door
def main(argv: list[str] | None = None) -> None:
  parser = command_line.Parser(__doc__, prog="python -m tools.few_shot")
  parser.add_argument("--workdir", required=True, metavar="DIR", help="of the model, or a Hugging Face directory")
  parser.add_argument("--input", required=True, action="append", metavar="FILE", help="questions; repeatable")
  parser.add_argument("--shots", type=int, default=0, metavar="K", help="examples before each question (default: 0)")
  parser.add_argument("--examples", metavar="FILE", help="where these come from")
  parser.add_argument("--seed", type=int, default=0, help="of their choice")
  parser.add_argument("--limit", type=int, metavar="N", help="the first N rows of each file")
  parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="rows in a batch")
  parser.add_argument("--stride", type=int, metavar="N", help="of windows over texts (default: their length)")
  parser.add_argument("--max_new_tokens", type=int, default=64, metavar="N", help="of generated answers")
  parser.add_argument("--output", metavar="FILE", help="the results as JSON")
  args = parser.parse_args(sys.argv[1:] if argv is None else argv)
  if args.shots < 0 or args.batch_size < 1 or (args.limit or 1) < 1 or (args.stride or 1) < 1:
    raise UserError("--shots, --batch_size, --limit and --stride: expected positive numbers")
  files = {path: _rows(path) for path in args.input}
  examples = _rows(args.examples) if args.examples else None
  asker = Asker(trained.open_model(args.workdir, args.batch_size), args)
  results = {}
  for path, rows in files.items():
    kind = _kind(path, rows[0])
    results[pathlib.Path(path).name.split(".")[0]] = found = getattr(asker, kind)(rows, examples)
    print(f"{path}: " + ", ".join(f"{name} {value:,.4g}" for name, value in found.items()), flush=True)
  if args.output:
    pathlib.Path(args.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _rows(path: str) -> list[Record]:
  source = open_source(f"jsonl:{path}")
  rows = [record for _, record in source.records(source.splits[0]) if not isinstance(record, Skip)]
  if not rows:
    raise UserError(f"{path}: holds no questions: a score over zero examples is not defined")
  return rows


def _kind(path: str, row: Record) -> str:
  found = next((kind for kind, keys in _KINDS.items() if all(key in row for key in keys)), None)
  if found is None:
    raise UserError(f"{path}: found the keys {', '.join(row)}, expected those of a kind of question; see --help")
  return found


class Asker:
  """Asks a model the questions of files; every method takes rows, and those to draw examples from, if any."""

  def __init__(self, opened: trained.Opened, args):
    self._opened, self._args = opened, args
    self._vocabulary, self._both = opened.vocabulary, "encoder_input_tokens" in opened.features
    self._likelihood = Likelihood(opened.run, opened.features)

  def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Ids of a context and what follows; an encoder-decoder ends both with EOS."""
    encode, eos = self._vocabulary.encode, [self._vocabulary.eos_id]
    if self._both:
      return [*encode(context), *eos], [*encode(continuation.lstrip()), *eos]
    before, whole = encode(context), encode(context + continuation)
    return [start_id(self._vocabulary), *before], whole[len(before) :] or whole[-1:]

  def _asked(self, rows: Sequence[Record], pool: Sequence[Record] | None, shown: Callable[[Record], str]) -> list[str]:
    """What stands before each question: `shots` other rows, answered."""
    out = []
    for number, row in enumerate(rows):
      rng = random.Random(self._args.seed * 1_000_003 + number)
      others = [one for one in (rows if pool is None else pool) if one is not row]
      chosen = rng.sample(others, min(self._args.shots, len(others)))
      out.append("".join(f"{shown(one)}\n\n" for one in chosen))
    return out

  def _limited(self, rows: Sequence[Record]) -> Sequence[Record]:
    return rows[: self._args.limit]

  def choices(self, rows, pool) -> dict[str, float]:
    rows = self._limited(rows)
    join = lambda query, choice: query + ("" if query[-1:].isspace() else " ") + choice  # noqa: E731
    before = self._asked(rows, pool, lambda row: join(row["query"], row["choices"][row["gold"]]))
    pairs, texts = [], []
    for row, examples in zip(rows, before):
      query = row["query"].rstrip(" ") if not row["query"].endswith("\n") else row["query"]
      for choice in row["choices"]:
        texts.append(choice if query.endswith("\n") else f" {choice}")
        pairs.append(self._pair(examples + query, texts[-1]))
    return self._likeliest(rows, pairs, texts, [len(row["choices"]) for row in rows])

  def schema(self, rows, pool) -> dict[str, float]:
    rows = self._limited(rows)
    before = self._asked(rows, pool, lambda row: f"{row['context_options'][row['gold']]} {row['continuation']}")
    texts = [f" {row['continuation']}" for row in rows for _ in row["context_options"]]
    options = [examples + option for row, examples in zip(rows, before) for option in row["context_options"]]
    pairs = [self._pair(*both) for both in zip(options, texts)]
    return self._likeliest(rows, pairs, texts, [len(row["context_options"]) for row in rows])

  def letters(self, rows, pool) -> dict[str, float]:
    """MMLU (Hendrycks et al. 2021): the four letters after "Answer:"."""
    dev = [row for row in (rows if pool is None else pool) if row.get("split") == "dev"]
    asked = self._limited([row for row in rows if row.get("split") != "dev"])
    by_subject = collections.defaultdict(list)
    for row in dev:
      by_subject[row.get("subject")].append(row)

    def shown(row: Record) -> str:
      options = "".join(f"\n{letter}. {choice}" for letter, choice in zip(_LETTERS, row["choices"]))
      return f"{row['question']}{options}\nAnswer:"

    pairs, texts, gold = [], [], []
    for row in asked:
      examples = by_subject[row.get("subject")][: self._args.shots]
      before = "".join(f"{shown(one)} {one['answer']}\n\n" for one in examples)
      for letter in _LETTERS[: len(row["choices"])]:
        texts.append(f" {letter}")
        pairs.append(self._pair(before + shown(row), texts[-1]))
      gold.append({"gold": _LETTERS.index(row["answer"])})
    return self._likeliest(gold, pairs, texts, [len(row["choices"]) for row in asked])

  def _likeliest(self, rows, pairs, texts: list[str], counts: list[int]) -> dict[str, float]:
    scores = [one.log_probability for one in self._likelihood(pairs)]
    right = right_norm = place = 0
    for row, count in zip(rows, counts):
      part = range(place, place + count)
      right += max(part, key=lambda i: scores[i]) - place == row["gold"]
      right_norm += max(part, key=lambda i: scores[i] / len(texts[i].encode())) - place == row["gold"]
      place += count
    share = 100.0 / len(rows)
    return {"accuracy": right * share, "accuracy_norm": right_norm * share, "examples": len(rows)}

  def words(self, rows, pool) -> dict[str, float]:
    rows = self._limited(rows)
    before = self._asked(rows, pool, lambda row: f"{row['context']} {row['continuation']}")
    pairs = [
      self._pair(examples + row["context"].rstrip(), f" {row['continuation'].strip()}")
      for row, examples in zip(rows, before)
    ]
    found = self._likelihood(pairs)
    mean = -sum(one.log_probability for one in found) / len(found)
    share = 100.0 * sum(one.greedy for one in found) / len(found)
    return {"accuracy": share, "perplexity": math.exp(min(mean, 700.0)), "examples": len(found)}

  def answers(self, rows, pool) -> dict[str, float]:
    rows = self._limited(rows)
    numeric = all("chain_of_thought" in row or final_number(str(row["answer"])) == str(row["answer"]) for row in rows)
    told = lambda row: row["chain_of_thought"] + f" #### {row['answer']}" if numeric else row["answer"]  # noqa: E731
    before = self._asked(
      rows, pool, lambda row: f"{row['context']} {told(row) if 'chain_of_thought' in row else row['answer']}"
    )
    texts = [examples + row["context"] for row, examples in zip(rows, before)]
    opened = self._opened
    kind = generation.TextToText if self._both else generation.Continuation
    predict = kind(opened.model, opened.vocabulary, opened.features, strategies.Greedy(), self._args.max_new_tokens)
    room = self._likelihood.longest - (0 if self._both else self._args.max_new_tokens)
    ids = [self._pair(text, " ")[0][-max(room, 1) :] for text in texts]
    given = [answer["prediction"].strip() for answer in predict(opened.run, ids, texts)]
    right = 0
    for row, text in zip(rows, given):
      if numeric:
        right += final_number(text.split("\n\n")[0]) == final_number(str(row["answer"]))
      else:
        golds = {normalize_trivia_qa(str(one)) for one in (row["answer"], *row.get("aliases", ()))}
        right += normalize_trivia_qa(text.split("\n")[0]) in golds
    return {"exact_match": 100.0 * right / len(rows), "examples": len(rows)}

  def texts(self, rows, pool) -> dict[str, float]:
    """Every token once; see `Likelihood.rolling`."""
    if self._both:
      raise UserError("--input: the model is an encoder-decoder, which gives running text no probability")
    nats, counts = 0.0, collections.Counter()
    for row in self._limited(rows):
      ids = self._vocabulary.encode(row["text"])
      nats -= self._likelihood.rolling(ids, start_id(self._vocabulary), self._args.stride)
      counts.update(tokens=len(ids), words=len(row["text"].split()), bytes=len(row["text"].encode()))
    per: dict[str, Any] = {name: math.exp(min(nats / max(counts[name], 1), 700.0)) for name in ("tokens", "words")}
    return {
      "perplexity_per_token": per["tokens"],
      "perplexity_per_word": per["words"],
      "bits_per_byte": nats / math.log(2) / max(counts["bytes"], 1),
      **{name: float(count) for name, count in counts.items()},
    }


if __name__ == "__main__":
  sys.exit(main())
