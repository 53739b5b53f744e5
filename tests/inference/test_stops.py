"""A text ends before its stop string, and the shown part of a growing text never changes."""

import pytest

from t5x_like.errors import UserError
from t5x_like.inference.stops import Stops, token_bytes
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


@pytest.mark.parametrize(
  "strings, text, cut_text",
  [
    ((), "a b", "a b"),
    (("\n",), "a\nb\n", "a"),
    (("Q:", "\n\n"), "a\n\nQ:", "a"),
    (("bcd", "c"), "abcd", "ab"),  # "c" is complete before "bcd"
    (("cd", "bcd"), "abcd", "a"),  # of strings complete at once, the longest
    (("xyz",), "abxy", "abxy"),
    (("a",), "abc", ""),
  ],
)
def test_a_text_is_cut_before_the_string_that_is_complete_first(strings, text, cut_text):
  stops = Stops(strings)
  assert stops.cut(text) == cut_text
  for size in (1, 2, 3):  # the characters by which the text grows
    grown = ""
    stable = ""
    for start in range(0, len(text), size):
      grown += text[start : start + size]
      if stops.cut(grown) != grown:
        break
      assert stops.stable_prefix(grown).startswith(stable)
      stable = stops.stable_prefix(grown)
    assert stops.cut(grown).startswith(stable)
    assert stops.cut(grown) == cut_text


def test_bytes_of_ids_join_to_the_text():
  vocabulary = ByteVocabulary(extra_ids=2)
  text = "é €\n"
  bytes_by_id = token_bytes(vocabulary)
  assert b"".join(bytes_by_id[i] for i in vocabulary.encode(text)) == text.encode()
  assert bytes_by_id[:2] == [b"", b""]
  assert bytes_by_id[-1] == b"<extra_id_0>"


def test_an_empty_string_is_refused():
  with pytest.raises(UserError, match="--stop: found an empty string"):
    Stops(("a", ""))
