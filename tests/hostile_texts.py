"""Texts in twenty scripts with characters that break tokenizers, and vocabularies for them."""

import functools
import random

from t5x_like.vocabularies import Vocabulary
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from tools import train_tokenizer, train_vocabulary

SCRIPTS = {
  "latin": "the quick brown fox naïve café größer Übermäßigkeit",
  "cyrillic": "приветствую мир быстрая лиса прыгает",
  "greek": "ελληνικά γράμματα είναι όμορφα",
  "arabic": "هذا نص عربي قصير؟",
  "hebrew": "זה טקסט קצר בעברית",
  "hindi": "यह हिन्दी में वाक्य है।",
  "bengali": "এটি বাংলা ভাষায় বাক্য",
  "tamil": "இது தமிழில் ஒரு வாக்கியம்",
  "telugu": "ఇది తెలుగు వాక్యం",
  "sinhala": "මෙය සිංහල වාක්‍යයකි",
  "korean": "이것은 한국어 문장이다",
  "georgian": "ეს არის წინადადება",
  "armenian": "սա կարճ նախադասություն է։",
  "amharic": "ይህ አጭር ዓረፍተ ነገር ነው።",
  "chinese": "我 爱 北 京 天 安 门 。",
  "japanese": "こ れ は 日 本 語 カ タ カ ナ ー 。",
  "thai": "ภา ษา ไทย น้ำ ใจ",
  "lao": "ພາສາ ລາວ ບໍ່ມີ",
  "khmer": "ភាសា ខ្មែរ ទេ។",
  "burmese": "မြန်မာ ဘာသာ စကား။",
  "tibetan": "བོད་ སྐད་ ཡིག་ །",
}
ODD = [
  *" \t\n\r.,!?。！？「」()'\"<>/0123456789%▁_-",
  *(
    "\u00a0",
    "\u3000",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u2028",
    "\x85",
    "\x0b",
    "\x00",
    "\x01",
    "\x7f",
    "\u202e",
  ),
  *(
    "e\u0301",
    "ﬁ",
    "①",
    "½",
    "ｆ",
    "ｶﾞ",
    "\u1112\u1161\u11ab",
    "İ",
    "ß",
    "ſ",
    "\ufdfa",
    "𝒳",
    "㍿",
    "\ufffd",
  ),
  # Marks that stand alone, in an unusual order, or on letters with which NFKC composes another one.
  *(
    "\u0301",
    "\u0323",
    "\u0327",
    "\u0338",
    "\u0344",
    "\u20e3",
    "e\u0301\u0323",
    "ê\u0323",
    "a\u0321\u0301",
    "ﬁ\u0301",
    "ש\u05bc\u05c1\u05b8",
    "م\u0651\u064e",
    "α\u0313\u0301\u0345",
    "か\u3099",
    "가\u11a8",
    "～",
    "▁\u0301",
  ),
  *("😀", "👍🏽", "👨‍👩‍👧", "🇩🇪", "<0x41>", "##ing", "Ġ", "  ", "\r\n", "'s", "don't"),
]
KINDS = (
  "unigram",
  "unigram_bytes",
  "english_bytes",
  "bpe",
  "bpe_bytes",
  "wordpiece",
  "bytelevel_bpe",
)


def texts(count: int) -> list[str]:
  """Return random texts without special spellings."""
  draw = random.Random(0)
  words = [word for script in SCRIPTS.values() for word in script.split()]
  drawn = []
  for _ in range(count):
    parts = []
    for _ in range(draw.randint(0, 12)):
      parts.append(
        draw.choice(words)
        if draw.random() < 0.6
        else "".join(draw.choices(ODD, k=draw.randint(1, 4)))
      )
      parts.append(" " * draw.randint(0, 1))
    drawn.append("".join(parts))
  return drawn


@functools.cache
def vocabulary(kind: str) -> Vocabulary:
  lines = [script.encode() for script in SCRIPTS.values()] * 3
  if kind == "wordpiece":
    return train_tokenizer.train(lines, size=532, kind=kind, with_mask=True)
  if kind == "bytelevel_bpe":
    return train_tokenizer.train(lines, size=400, kind=kind, with_mask=True)
  if kind == "english_bytes":
    lines = lines[:1] * 3
  options = {
    "unigram": dict(size=274, model_type="unigram"),
    "unigram_bytes": dict(size=530, model_type="unigram", byte_fallback=True),
    "english_bytes": dict(size=290, model_type="unigram", byte_fallback=True),
    "bpe": dict(size=350, model_type="bpe"),
    "bpe_bytes": dict(size=600, model_type="bpe", byte_fallback=True),
  }[kind]
  return SentencePieceVocabulary(train_vocabulary.train(lines, with_mask=True, **options), 10)
