"""The text of single ids, from which that of a window is put together with a place for every token."""

from t5x_like.data.vocabularies import Vocabulary


def spellings(vocabulary: Vocabulary) -> list[str]:
  """The text that each id adds after a word; a line end, which no span crosses, for ids of no text or of part of a
  character."""
  lead = vocabulary.encode("a")
  alone, none = len(vocabulary.decode(lead)), vocabulary.special_ids | {vocabulary.unk_id}
  texts = ["\n" if i in none else vocabulary.decode([*lead, i])[alone:] for i in range(vocabulary.size)]
  return ["\n" if "\ufffd" in text else text for text in texts]
