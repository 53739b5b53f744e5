"""Words and sentences of many scripts, by one rule."""

import time

import pytest

from t5x_like import segmentation
from t5x_like.segmentation import Kind

WORDS = {
  "Hello (world). “Yes!”": ["Hello", "(world).", "“Yes!”"],
  "быстрая лиса": ["быстрая", "лиса"],
  "이것은 문장입니다.": ["이것은", "문장입니다."],
  "यह वाक्य है।": ["यह", "वाक्य", "है।"],
  "我爱Python。真的": ["我", "爱", "Python。", "真", "的"],
  "これはカタカナー": [*"これはカタカナー"],
  "น้ำใจ ก็": ["น้ำ", "ใ", "จ", "ก็"],
  "１２月 2024年": ["１２", "月", "2024", "年"],
  "𠮷野家": ["𠮷", "野", "家"],
}
SENTENCES = {
  "He left. “Yes!” he said. 3.14 is pi.": ["He left. ", "“Yes!” ", "he said. ", "3.14 is pi."],
  'He said "no." She left.': ['He said "no." ', "She left."],
  "走。「去吧！」他说。好吗？好": ["走。", "「去吧！」", "他说。", "好吗？", "好"],
  "等等...我走!好": ["等等...", "我走!", "好"],
  "हल है। दूसरा।तीसरा": ["हल है। ", "दूसरा।", "तीसरा"],
  "هل هذا؟ نعم. ۔": ["هل هذا؟ ", "نعم. ", "۔"],
  "ይህ ነው። ሌላ": ["ይህ ነው። ", "ሌላ"],
  "see http://x.y/?a=b!c now": ["see http://x.y/?a=b!c now"],
  "one\ntwo. ": ["one\n", "two. "],
}


@pytest.mark.parametrize("text", WORDS)
def test_texts_are_split_into_words(text):
  assert segmentation.words(text) == WORDS[text]


@pytest.mark.parametrize("text", SENTENCES)
def test_texts_are_split_into_sentences(text):
  assert list(segmentation.sentences(text)) == SENTENCES[text]


def test_terms_have_no_punctuation():
  assert segmentation.terms("don't stop: 我爱Python。 हिन्दी") == [
    "don",
    "t",
    "stop",
    "我",
    "爱",
    "Python",
    "हिन्दी",
  ]


def test_kinds_of_characters():
  kinds = {
    "我": "UNSPACED",
    "ก": "UNSPACED",
    "한": "LETTER",
    "ㄱ": "LETTER",
    "Ａ": "LETTER",
    "ำ": "EXTENDING",
  }
  kinds |= {
    "\u200d": "EXTENDING",
    "」": "CLOSING",
    ".": "TERMINATOR",
    "。": "STRONG_TERMINATOR",
    "\u3000": "SPACE",
  }
  assert {character: segmentation.kind(character).name for character in kinds} == kinds


@pytest.mark.parametrize(
  "text, begins",
  [
    (b" a", True),
    (b"a", False),
    ("我".encode(), True),
    ("我".encode()[:1], True),  # E6 begins Chinese letters only
    ("я".encode()[:1], False),
    ("я".encode()[1:], False),
    (b"\xe0", False),  # Hindi or Thai
    ("\u0e34".encode(), False),  # a vowel sign
    (b"\xff", False),
  ],
)
def test_bytes_begin_a_word_if_every_text_with_them_does(text, begins):
  assert segmentation.begins_word(text) is begins


@pytest.mark.parametrize(
  "text", ["." * 50_000, "。" * 50_000, '."' * 50_000, '"' * 100_000 + "x", ". " * 50_000]
)
def test_long_runs_take_no_square_of_time(text):
  start = time.process_time()
  list(segmentation.sentences(text))
  segmentation.ends_sentence(f".{text}x")
  assert time.process_time() - start < 2


def test_every_code_point_has_a_kind():
  assert segmentation.kinds().shape == (0x110000,)
  assert set(segmentation.kinds().tolist()) == set(Kind)
