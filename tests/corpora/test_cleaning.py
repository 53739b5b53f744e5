"""Cleaning applies the filters of C4 and finds near duplicates and repeated spans in any script."""

import random
from collections import Counter

import pytest

from refusals import refuses
from t5x_like import segmentation, trust
from t5x_like.corpora.cleaning import c4, near, spans

GOOD = (
  "The quick brown fox jumps over it. A lazy dog sleeps through it all. Nobody knows the "
  "reason why!"
)


def identify_english(text: str) -> str:
  """Return the code of a text's language, as a user's `--language_id` does."""
  return "en" if " the " in text.lower() else "xx"


@pytest.mark.parametrize(
  "text, expected_text, counts",
  [
    (GOOD, GOOD, {}),
    (
      f"Menu | Home\n{GOOD}\nToo few words.\n\nTo be continued so they say...",
      GOOD,
      {"line: no terminal punctuation": 2, "line: under 5 words": 1},
    ),
    (f"Please turn JavaScript on for this.\n{GOOD}", GOOD, {"line: javascript": 1}),
    (f"By going on you accept our Privacy Policy.\n{GOOD}", GOOD, {"line: policy": 1}),
    (
      f"There is a word of {'x' * 1001} in here.\n{GOOD}",
      GOOD,
      {"line: word of over 1000 characters": 1},
    ),
    (
      f"History[edit]\n[1]\n{GOOD}[12][citation needed]",
      GOOD,
      {"citation": 4, "line: no terminal punctuation": 1},
    ),
    (f"{GOOD}\nLorem Ipsum dolor sit amet here.", None, {"lorem ipsum": 1}),
    (f"{GOOD}\nif (a) {{ b and c or d.", None, {"curly brace": 1}),
    ("One sentence of five words. Two such sentences there are.", None, {"under 3 sentences": 1}),
    (f"{GOOD} It is a darned shame.", None, {"word of the list": 1}),
    (f"{GOOD} Undarnedly said.", f"{GOOD} Undarnedly said.", {}),
    (f"{GOOD} \u3042\u60aa\u3044\u3044.", None, {"word of the list": 1}),
    (GOOD.replace("the", "la"), None, {"not in en": 1}),
    ("", None, {"under 3 sentences": 1}),
  ],
)
def test_filters_of_a_page(text, expected_text, counts):
  trust.admit(f"{__name__}:identify_english")
  step = c4.Step(
    bad_words=("darned", "two words", "\u60aa\u3044"), language_id=f"{__name__}:identify_english"
  )
  page, reason, removed = step.clean(text)
  assert page == expected_text
  assert removed + Counter([reason] if reason else []) == Counter(counts)
  assert (reason is None) == (expected_text is not None)
  assert reason not in removed


@pytest.mark.parametrize("end", ["。」", "！”", "？）", ".»", '?"', "؟»", "।”"])
def test_line_may_end_with_quotes_and_brackets(end):
  page = f"他去了北京{end}\n我看见了他{end}\n他们走了吗{end}"
  assert c4.Step().clean(page)[0] == page


@pytest.mark.parametrize(
  "name",
  ["nowhere:f", "t5x_like.errors:nothing", "plain", "t5x_like.errors:EXIT_PREEMPTED"],
)
def test_missing_language_id_function_is_refused(name):
  trust.begin_command(name)
  with refuses("language id"):
    c4.load_language_id(name)


def test_joined_sentences_equal_the_text():
  text = 'He said "Stop." Then he left.\nA line without an end\n\nMr. X came!  Really?'
  assert "".join(segmentation.sentences(text)) == text.replace("\n\n", "\n")
  assert len(list(segmentation.sentences(text))) == 6


LETTERS = {
  "chinese": range(0x4E00, 0x4E00 + 300),
  "thai": range(0xE01, 0xE2F),
  "japanese": range(0x3041, 0x3091),
}


@pytest.mark.parametrize("script", LETTERS)
def test_near_duplicates_without_spaces_are_similar(script):
  """One letter of 500 differs or is missing. The other page has other letters of the script."""
  draw = random.Random(0)
  letters = [chr(code) for code in LETTERS[script]]
  page = "".join(draw.choices(letters, k=500))
  another = "".join(draw.choices(letters, k=500))
  changed = page[:250] + "字" + page[251:]
  shortened = page[:99] + page[100:]
  signature = near.minhash(page)
  assert (near.minhash(changed) == signature).mean() >= near.MIN_SIMILARITY
  assert (near.minhash(shortened) == signature).mean() >= near.MIN_SIMILARITY
  assert (near.minhash(another) == signature).mean() < 0.5


@pytest.mark.parametrize("end", ["。", "！", "؟ ", "। ", "። "])
def test_spans_of_three_sentences_are_found_in_all_scripts(end):
  sentences = [f"{chr(0x4E00 + number) * 9}{end}" for number in range(8)]
  step = spans.Step()
  signatures = step.sign("".join(sentences))
  assert signatures.size == 6
  assert set(step.sign("".join(sentences[2:6])).tolist()) <= set(signatures.tolist())
