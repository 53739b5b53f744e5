"""The text of single ids, whose concatenation is the text of a window."""

from t5x_like.vocabularies import Vocabulary


def spellings(vocabulary: Vocabulary) -> list[str]:
  """Return the text that each id adds after a word.

  It is a line end, which no span crosses, for ids without text or with part of a character.
  """
  lead = vocabulary.encode("a")
  lead_length = len(vocabulary.decode(lead))
  textless = vocabulary.special_ids | {vocabulary.unk_id}
  texts = []
  for i in range(vocabulary.size):
    text = "\n"
    if i not in textless:
      text = vocabulary.decode([*lead, i])[lead_length:]
    texts.append("\n" if "\ufffd" in text else text)
  return texts
