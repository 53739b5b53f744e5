"""The text of each id of a vocabulary, so that the text of a window is a concatenation."""

from t5x_like.vocabularies import Vocabulary

# The text of ids that stand for none. No span crosses the end of a line.
_NO_TEXT = "\n"


def spell_ids(vocabulary: Vocabulary) -> list[str]:
  """Return the text that each id adds after a word.

  Special ids and ids of part of a character have the text of a line end.
  """
  word_ids = vocabulary.encode("a")
  word_length = len(vocabulary.decode(word_ids))
  ids_without_text = vocabulary.special_ids | {vocabulary.unk_id}
  texts = []
  for i in range(vocabulary.size):
    text = _NO_TEXT
    if i not in ids_without_text:
      text = vocabulary.decode([*word_ids, i])[word_length:]
    if "\ufffd" in text:
      text = _NO_TEXT
    texts.append(text)
  return texts
