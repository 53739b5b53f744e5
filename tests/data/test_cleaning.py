"""Cleaning: each filter of C4, and duplicates by each of three measures."""

from collections import Counter

import numpy as np
import pytest

from t5x_like.data.prepare import cleaning
from t5x_like.data.prepare.cleaning import C4
from t5x_like.errors import UserError

GOOD = "The quick brown fox jumps over it. A lazy dog sleeps through it all. Nobody knows the reason why!"


def only_english(text: str) -> str:
  return "en" if " the " in text.lower() else "xx"


@pytest.mark.parametrize(
  "text, kept, counts",
  [
    (GOOD, GOOD, {}),
    (
      f"Menu | Home\n{GOOD}\nToo few words.\n\nTo be continued so they say...",
      GOOD,
      {"line: no terminal punctuation": 2, "line: under 5 words": 1},
    ),
    (f"Please turn JavaScript on for this.\n{GOOD}", GOOD, {"line: javascript": 1}),
    (f"By going on you accept our Privacy Policy.\n{GOOD}", GOOD, {"line: policy": 1}),
    (f"There is a word of {'x' * 1001} in here.\n{GOOD}", GOOD, {"line: word of over 1000 characters": 1}),
    (f"History[edit]\n[1]\n{GOOD}[12][citation needed]", GOOD, {"citation": 4, "line: no terminal punctuation": 1}),
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
def test_filters_of_a_page(text, kept, counts):
  c4 = C4(bad_words=("darned", "two words", "\u60aa\u3044"), language_id=f"{__name__}:only_english")
  page, reason, removed = c4.clean(text)
  assert page == kept and removed + Counter([reason] if reason else []) == Counter(counts)
  assert (reason is None) == (kept is not None) and reason not in removed


def test_a_hook_that_is_not_there_is_refused():
  for name in ("nowhere:f", "t5x_like.errors:nothing", "plain", "t5x_like.errors:EXIT_PREEMPTED"):
    with pytest.raises(UserError, match="language id"):
      cleaning.hook(name)


def duplicates(pages: list[cleaning.Signature], steps):
  return cleaning.duplicates([cleaning.Signatures.of(pages)], steps)


def words(seed: int, count: int = 300) -> list[str]:
  return [f"w{i}" for i in np.random.default_rng(seed).integers(0, 5000, count)]


def test_exact_and_near_duplicates_are_dropped_but_the_first():
  base, other = words(0), words(1)
  near = base[:150] + ["changed"] + base[151:]
  far = base[:100] + words(2, 200)
  texts = [" ".join(one) for one in (base, other, near, far)] + [" ".join(base).upper() + "  "]
  signatures = [cleaning.signature(text) for text in texts]
  assert duplicates(signatures, ("exact",))[0].tolist() == [0, 0, 0, 0, 1]
  assert duplicates(signatures, ("exact", "near"))[0].tolist() == [0, 0, 2, 0, 1]
  parts = [cleaning.Signatures.of(signatures[:1]), cleaning.Signatures.of([]), cleaning.Signatures.of(signatures[1:])]
  assert cleaning.duplicates(parts, ("exact", "near"))[0].tolist() == [0, 0, 2, 0, 1]
  assert cleaning.duplicates([])[0].size == 0
  again = cleaning.signature(texts[0])
  assert (again.minhash == signatures[0].minhash).all() and again.exact == signatures[0].exact


def test_minhash_estimates_the_similarity_of_shingles():
  base = words(3, 2000)
  mixed = base[:1000] + words(4, 1000)
  a, b = (cleaning.signature(" ".join(one)).minhash for one in (base, mixed))
  assert abs(np.mean(a == b) - 1 / 3) < 0.13  # 3 standard deviations of 128 draws


def test_of_repeated_three_sentences_the_first_stays():
  common = "One common thing was said. Then came another. And so it ended."
  texts = [f"First of all this. {common}", f"{common} Something new came after it.", "Quite alone. Really so. Yes."]
  signatures = [cleaning.signature(text) for text in texts]
  dropped, spans = duplicates(signatures, ("spans",))
  assert not dropped.any() and spans.tolist() == [False, False, True, False, False]
  assert [cleaning.without_spans(text, one) for text, one in zip(texts, np.split(spans, [2, 4]))] == [
    texts[0],
    "Something new came after it.",
    texts[2],
  ]
  twice = cleaning.signature(f"{common} {common}")
  assert duplicates([twice], ("spans",))[1].tolist() == [False, False, False, True]


def test_sentences_add_up_to_the_text():
  text = 'He said "Stop." Then he left.\nA line without an end\n\nMr. X came!  Really?'
  assert "".join(cleaning.sentences(text)) == text.replace("\n\n", "\n")
  assert len(cleaning.sentences(text)) == 6
