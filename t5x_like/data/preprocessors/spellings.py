"""The text of single ids; a window's text is their concatenation, so every token has a place in
it."""

from t5x_like.vocabularies import Vocabulary


def spellings(vocabulary: Vocabulary) -> list[str]:
  """Return the text that each id adds after a word, or a line end, which no span crosses, for ids
  without text or with part of a character."""
  lead = vocabulary.encode("a")
  alone = len(vocabulary.decode(lead))
  none = vocabulary.special_ids | {vocabulary.unk_id}
  texts = [
    "\n" if i in none else vocabulary.decode([*lead, i])[alone:] for i in range(vocabulary.size)
  ]
  return ["\n" if "\ufffd" in text else text for text in texts]
