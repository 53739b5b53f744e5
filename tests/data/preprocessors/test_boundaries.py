"""Beginnings of words and sentences are found in the ids of any vocabulary and script."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf

from t5x_like import segmentation
from t5x_like.data import random as keys
from t5x_like.data.preprocessors import sentences
from t5x_like.data.preprocessors.boundaries import Boundaries
from t5x_like.data.preprocessors.masking import Masking
from t5x_like.data.preprocessors.sentences import Sentences
from t5x_like.segmentation import Kind
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from t5x_like.vocabularies.kinds.sentencepiece import SentencePieceVocabulary
from tools import train_tokenizer, train_vocabulary

SAMPLES = {
  "english": "The quick brown fox jumps (over 3.14 dogs). “Is it naïve?” he asked. ",
  "russian": "Приветствую вас, мир! Быстрая лиса прыгает через собаку. ",
  "greek": "Ελληνικά γράμματα είναι όμορφα. Και παλιά! ",
  "arabic": "هل هذا نص عربي؟ نعم هو نص قصير. ",
  "hebrew": "זה טקסט קצר בעברית. מה שלומך? ",
  "hindi": "यह हिन्दी में एक वाक्य है। दूसरा वाक्य भी है। ",
  "korean": "이것은 한국어 문장입니다. 다음 문장도 있습니다! ",
  "chinese": "我爱北京天安门。「你去哪里？」他说。这是Python代码！",
  "japanese": "これは日本語の文章です。カタカナとひらがな！",
  "thai": "ภาษาไทยเป็นภาษาที่ไม่มีช่องว่างระหว่างคำ น้ำใจ ",
}
QUOTED = {
  "french": "« Va vite ! » Il part… «Oui.» Et toi ? ",
  "german": "„Geh jetzt.“ Er ging. »Komm!« rief er. ‚Ja.‘ Gut. ",
  "quoted_chinese": "他说。“走吧！”她笑。（好？）对!(行)好。‘我’们！“‘来。’”她。『是。』」 她",
}
UNSPACED = ("chinese", "japanese", "thai")
KINDS = (
  "unigram",
  "english_unigram",
  "bpe",
  "wordpiece",
  "bytelevel",
  "english_bytelevel",
  "bytes",
)
LENGTH = 96


@functools.cache
def train_vocabulary_of_kind(kind):
  """Return a vocabulary trained on all samples or, if named "english…", on the English one.

  An English vocabulary encodes other scripts as bytes.
  """
  scripts = ["english"] if kind.startswith("english") else SAMPLES
  lines = [(SAMPLES[script] * 3).encode() for script in scripts]
  if kind == "bytes":
    return ByteVocabulary()
  if kind == "wordpiece":
    return train_tokenizer.train(lines, size=428, kind="wordpiece", with_mask=True, extra_ids=0)
  if kind.endswith("bytelevel"):
    return train_tokenizer.train(lines, size=275, kind="bytelevel_bpe", with_mask=True, extra_ids=0)
  size = 299 if kind == "english_unigram" else 480
  model_type = "bpe" if kind == "bpe" else "unigram"
  model = train_vocabulary.train(
    lines, model_type=model_type, with_mask=True, byte_fallback=True, size=size
  )
  return SentencePieceVocabulary(model)


def encode_samples(pieces, samples=SAMPLES):
  """Return the ids of all samples, each repeated, as padded rows, and the bytes of every id."""
  ids = [pieces.encode(sample * 2) for sample in samples.values()]
  length = max(map(len, ids))
  return tf.constant([[*row, *[pieces.pad_id] * (length - len(row))] for row in ids]), [
    pieces.bytes_of(i) for i in ids
  ]


def expected_beginnings(data):
  """Return for each id whether it begins a word of the text; `data` has the bytes of each id."""
  text = b"".join(data).decode()
  begins_at_byte = {}
  position = 0
  previous_kind = Kind.OTHER
  for letter in text:
    kind = segmentation.kind(letter)
    follows_unspaced = kind == Kind.LETTER and previous_kind == Kind.UNSPACED
    begins_at_byte[position] = kind in (Kind.SPACE, Kind.UNSPACED) or follows_unspaced
    if kind != Kind.EXTENDING:
      previous_kind = kind
    position += len(letter.encode())
  starts = np.cumsum([0, *map(len, data)])[:-1]
  return [begins_at_byte.get(start, False) for start in starts.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_words_begin_at_the_same_bytes_as_in_the_text(kind):
  pieces = train_vocabulary_of_kind(kind)
  tokens_BL, texts = encode_samples(pieces)
  begins_BL = Boundaries(pieces).word_starts(tokens_BL).numpy()
  for script, data, begins in zip(SAMPLES, texts, begins_BL):
    assert begins[: len(data)].tolist() == expected_beginnings(data), script


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wordpiece"])
def test_sentences_begin_at_the_same_bytes_as_in_the_text(kind):
  pieces = train_vocabulary_of_kind(kind)
  tokens_BL, texts = encode_samples(pieces, SAMPLES | QUOTED)
  begins_BL = Sentences(pieces).starts(tokens_BL).numpy()
  for data, begins in zip(texts, begins_BL):
    cuts = [0, *(np.flatnonzero(begins[: len(data) - 1]) + 1), len(data)]
    parts = [b"".join(data[start:end]).decode().strip() for start, end in zip(cuts, cuts[1:])]
    text = b"".join(data).decode().strip()
    assert list(filter(None, parts)) == [
      sentence.strip() for sentence in segmentation.sentences(text)
    ]


@pytest.mark.parametrize("ending", ["走。", "走！", "go.”", "go!’", "go.", "है।", "هذا؟"])
@pytest.mark.parametrize("kind", ["bytelevel", "english_bytelevel", "bpe"])
def test_terminators_of_all_scripts_end_sentences(kind, ending):
  pieces = train_vocabulary_of_kind(kind)
  tokens = [*pieces.encode(ending), *pieces.encode(" fox")]
  assert Sentences(pieces).starts(tf.constant([tokens])).numpy().any()


def test_piece_of_a_terminator_ends_a_sentence():
  pieces = train_vocabulary_of_kind("unigram")
  marked = sentences.punctuation(pieces)
  assert marked[pieces.encode("。")[-1]]
  assert not marked[pieces.encode("a")].any()


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_targets(kind):
  pieces = train_vocabulary_of_kind(kind)
  draw = random.Random(0)
  tokens = []
  for script, sample in SAMPLES.items():
    separator = "" if script in UNSPACED else " "
    text = separator.join(draw.choices(segmentation.words(sample), k=400))
    ids = pieces.encode(text)
    rows_of_script = (ids[start : start + LENGTH] for start in (0, LENGTH))
    # In WordPiece an unknown word is a single id, so rows may be too short.
    tokens += [row for row in rows_of_script if len(row) == LENGTH]
  ordinary = ~np.isin(tokens, [pieces.unk_id, *pieces.special_ids]).all(axis=1)
  key_B = keys.row_keys(0, tf.range(len(tokens), dtype=tf.int64))
  for mode in ("words", "spans", "ngrams"):
    masked = Masking(pieces, LENGTH, mode)(tf.constant(tokens), key_B)
    assert (masked["weights"].numpy().sum(axis=1)[ordinary] > 0).all()


def test_row_of_one_long_word_has_targets():
  pieces = ByteVocabulary()
  row = tf.constant([pieces.encode("x" * 64)])
  for mode in ("words", "spans", "ngrams"):
    masked = Masking(pieces, 64, mode)(row, keys.row_keys(0, tf.range(1, dtype=tf.int64)))
    assert masked["weights"].numpy().sum() > 0


def test_letter_cut_by_the_end_of_a_row_begins_no_word():
  pieces = ByteVocabulary()
  data = "ab我".encode()[:-1]
  tokens = tf.constant([[byte + 3 for byte in data]])
  assert not Boundaries(pieces).word_starts(tokens).numpy().any()
