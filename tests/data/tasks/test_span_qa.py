"""An answer is labelled with the shortest span of tokens that covers it, in any vocabulary."""

import functools
import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from t5x_like import vocabularies
from t5x_like.data import loader, task
from t5x_like.data.supervised.answers import Contexts, window_with_most_context
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from tools import train_tokenizer, train_vocabulary

TEXT = (
  "The Denver Broncos, led by Peyton Manning, won Super Bowl 50 in 2015. Łódź and São Paulo are "
  "cities; a naïve café costs $1.58 (about £1.20). Beyoncé's “Lemonade” won the Grammy-winning "
  "artist's twenty-fourth award! Fußball 日本語"
)
LINES = [" ".join(TEXT.split()[n % 20 :]).encode() for n in range(200)]
KINDS = ("uncased", "cased", "bytelevel_bpe", "sentencepiece", "bytes")


@functools.cache
def train_vocabulary_of_kind(kind: str):
  if kind == "bytes":
    return vocabularies.load("bytes")
  if kind == "sentencepiece":
    return SentencePieceVocabulary(train_vocabulary.train(LINES, size=330, byte_fallback=True))
  form, size = ("wordpiece", 200) if kind != "bytelevel_bpe" else (kind, 350)
  return train_tokenizer.train(
    LINES, size=size, kind=form, with_mask=True, lowercase=kind == "uncased"
  )


def label_text(context: str, answer: str, begin: int, kind: str) -> str:
  """Return the text that an answer's label covers in its context, as evaluations read it."""
  contexts = Contexts(train_vocabulary_of_kind(kind))
  start, end = contexts.locate(context, answer, begin, "here")
  spans_n2 = contexts(context).spans
  return context[spans_n2[start, 0] : spans_n2[end, 1]]


CASES = {
  "punctuation after it": ("They are the Denver Broncos, of course.", "Denver Broncos"),
  "punctuation around it": ('It was "Super Bowl" (2015).', "2015"),
  "its own punctuation": ("It costs $1.58, or so.", "$1.58"),
  "capitals": ("THE DENVER BRONCOS! won", "DENVER BRONCOS"),
  "accents": ("Beyoncé, naïve in São Paulo; Łódź.", "São Paulo"),
  "a combining accent": ("the cafe\u0301, closed", "cafe\u0301"),
  "vowel signs that the vocabulary drops": ("यह जॉन एलवे, था", "जॉन एलवे"),
  "tone marks that it drops": ("มี สี่ คน", "สี่"),
  "a mark of direction after it": ("the fox\u200e, closed", "fox"),
  "letters that fold to several": ("Fußball, the ﬁne game", "Fußball"),
  "a possessive": ("It is Beyoncé's award", "Beyoncé"),
  "a dash": ("in New York—often", "New York"),
  "other scripts": ("says (日本語), or", "日本語"),
  "a letter of no vocabulary": ("the “☃” sign", "☃"),
  "spaces around it": ("won in 2015 .", " 2015 "),
}


@pytest.mark.parametrize("kind", ["uncased", "cased"])
@pytest.mark.parametrize("case", CASES)
def test_label_of_word_pieces_covers_only_the_answer(case, kind):
  context, answer = CASES[case]
  assert label_text(context, answer, context.index(answer), kind) == answer.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_label_is_the_annotated_occurrence_among_several(kind):
  contexts = Contexts(train_vocabulary_of_kind(kind))
  context = "Ada, Bob, Ada, Bob and Ada."
  starts = [start for start in range(len(context)) if context.startswith("Ada", start)]
  labels = [contexts.locate(context, "Ada", start, "here")[0] for start in starts]
  spans_n2 = contexts(context).spans
  assert [spans_n2[label, 0] for label in labels] == starts


def test_words_that_the_vocabulary_drops_have_no_token():
  """As in `run_squad.py`. An answer of such a word is labelled at a neighbouring token."""
  contexts = Contexts(train_vocabulary_of_kind("uncased"))
  text = "Ada \u200b met \ufeff\u200e Dan \u200d"
  context = contexts(text)
  assert context.tokens.tolist() == contexts("Ada met Dan").tokens.tolist()
  words = [text[begin:end] for begin, end in contexts(text).words]
  assert words == ["Ada"] * 3 + ["met"] * 3 + ["Dan"] * 2
  assert contexts.locate(text, text[4], 4, "here") == (3, 3)
  assert contexts.locate(text, text[17], 17, "here") == (7, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_within_a_token_is_covered(kind):
  context = "It was in 2015 in Denver"
  text = label_text(context, "01", context.index("2015") + 1, kind)
  assert "01" in text
  assert text in "2015"


# name: (the context, the answer that is annotated at its first occurrence, the start of the label)
MISPLACED = {
  "digits of a year": ("Finished in 2015, it is set 20 years after, and 20 miles off.", "20", 28),
  "letters of a word": ("The Westwood crew won two of ten.", "two", 22),
  "in another case": ("Among contenders, Ten won.", "ten", 18),
  "nowhere else": ("Finished in 2015 of 2015.", "20", 12),
  "only within other words": ("In 2015, 1820s and 2120.", "20", 3),
}


@pytest.mark.parametrize("case", MISPLACED)
def test_answer_annotated_inside_another_word_is_labelled_at_a_whole_word(case):
  """The nearest whole word is chosen; without one, the token around the annotated position."""
  context, answer, expected = MISPLACED[case]
  start = context.lower().index(answer)
  lines = [context.encode() for context, *_ in MISPLACED.values()] * 50
  contexts = Contexts(
    train_tokenizer.train(lines, size=115, kind="wordpiece", with_mask=True, lowercase=True)
  )
  first, last = contexts.locate(context, context[start : start + len(answer)], start, "here")
  assert contexts(context).spans[first, 0] == expected
  assert first == last


LETTERS = "abcXYZ09éßŁİﬁ日本,.;-—'\"()$“”☃\u0301\u200b"


@settings(max_examples=150, derandomize=True)
@given(
  st.data(),
  st.sampled_from(KINDS),
  st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=6),
)
def test_label_covers_exactly_every_span_of_whole_tokens(data, kind, words):
  context = " ".join(words)
  spans = Contexts(train_vocabulary_of_kind(kind))(context).spans.tolist()
  assume(spans)  # a lone accent has no piece in a vocabulary without accents
  first = data.draw(st.integers(0, len(spans) - 1))
  last = data.draw(st.integers(first, len(spans) - 1))
  begin = spans[first][0]
  end = spans[last][1]
  answer = context[begin:end]
  if answer.strip() and answer == answer.strip():
    assert label_text(context, answer, begin, kind) == answer


def test_every_window_with_the_whole_answer_is_labelled(tmp_path):
  context = "Zoe met Ada, and Bob, and Cyd, then Dan: all on one long day in Denver."
  answer_start = context.index("Dan")
  answer_end = answer_start + len("Dan")
  record = {
    "question": "Who?",
    "context": context,
    "answers": [{"text": "Dan", "answer_start": answer_start}],
  }
  (tmp_path / "q.jsonl").write_text(json.dumps(record) + "\n")
  train_vocabulary_of_kind("uncased").save(tmp_path / "vocabulary")
  qa_task = task.build(
    "span_qa",
    "train",
    source=f"jsonl:train={tmp_path}/q.jsonl",
    vocabulary=str(tmp_path / "vocabulary"),
    length=24,
    stride=4,
    cache=str(tmp_path),
  )
  (batch,) = loader.eval_batches(qa_task, batch_size=qa_task.num_examples)
  windows = qa_task.examples(())
  windows_with_answer = 0
  assert len(windows) > 3
  for window, start, end in zip(windows, batch["span_start"], batch["span_end"]):
    spans_n2 = window["spans"]
    has_answer = spans_n2[0, 0] <= answer_start and answer_end <= spans_n2[-1, 1]
    assert (start > 0) == has_answer
    if has_answer:
      windows_with_answer += 1
      label_start = spans_n2[start - window["first"], 0]
      label_end = spans_n2[end - window["first"], 1]
      assert context[label_start:label_end] == "Dan"
  assert windows_with_answer > 1


@pytest.mark.parametrize("split, questions", [("train", [0]), ("validation", [0, 1])])
def test_empty_questions_are_skipped_in_training_only(split, questions, tmp_path):
  record = {"context": "Ada met Dan.", "answers": [{"text": "Dan", "answer_start": 8}]}
  lines = [json.dumps(record | {"question": question}) for question in ("Who?", "  ")]
  (tmp_path / "q.jsonl").write_text("\n".join(lines) + "\n")
  source = {"source": f"jsonl:{split}={tmp_path}/q.jsonl", "cache": str(tmp_path)}
  qa_task = task.build("span_qa", split, vocabulary="bytes", length=32, stride=4, **source)
  assert [window["question"] for window in qa_task.examples(())] == questions
  (batch,) = loader.eval_batches(qa_task, batch_size=len(questions))
  for window, start, end in zip(qa_task.examples(()), batch["span_start"], batch["span_end"]):
    spans_n2 = window["spans"][start - window["first"] : end - window["first"] + 1]
    assert window["context"][spans_n2[0, 0] : spans_n2[-1, 1]] == "Dan"


@pytest.mark.parametrize("tokens, room, stride", [(20, 8, 3), (9, 8, 8), (30, 10, 1), (5, 8, 4)])
def test_each_token_belongs_to_the_window_with_most_context(tokens, room, stride):
  begins = range(0, max(tokens - room, 0) + stride, stride) if tokens > room else [0]
  windows = [slice(begin, begin + room) for begin in begins]
  owner = window_with_most_context(windows, tokens)
  for token in range(tokens):  # `_check_is_max_context` of run_squad.py
    scores = []
    for window in windows:
      length = min(window.stop, tokens) - window.start
      tokens_before = token - window.start
      tokens_after = window.start + length - 1 - token
      scores.append(
        min(tokens_before, tokens_after) + 0.01 * length
        if tokens_before >= 0 and tokens_after >= 0
        else -1.0
      )
    assert owner[token] == int(np.argmax(scores))
