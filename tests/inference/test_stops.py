"""Strings that end a text: where it is cut, what can be shown of a growing one, and the bytes of
ids."""

import pytest

from t5x_like.errors import UserError
from t5x_like.inference.stops import Stops, token_bytes
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


@pytest.mark.parametrize(
  "strings, text, kept",
  [
    ((), "a b", "a b"),
    (("\n",), "a\nb\n", "a"),
    (("Q:", "\n\n"), "a\n\nQ:", "a"),
    (("bcd", "c"), "abcd", "ab"),  # c is complete first
    (("cd", "bcd"), "abcd", "a"),  # at once: the longest
    (("xyz",), "abxy", "abxy"),
    (("a",), "abc", ""),
  ],
)
def test_a_text_is_cut_before_the_string_that_is_complete_first(strings, text, kept):
  stops = Stops(strings)
  assert stops.cut(text) == kept
  for size in (1, 2, 3):  # however it grows, what is shown stays
    grown = ""
    shown = ""
    for start in range(0, len(text), size):
      grown += text[start : start + size]
      if stops.cut(grown) != grown:
        break
      assert stops.stable_prefix(grown).startswith(shown)
      shown = stops.stable_prefix(grown)
    assert stops.cut(grown).startswith(shown) and stops.cut(grown) == kept


def test_bytes_of_ids_join_to_the_text():
  vocabulary = ByteVocabulary(extra_ids=2)
  text = "é €\n"
  found = token_bytes(vocabulary)
  assert b"".join(found[i] for i in vocabulary.encode(text)) == text.encode()
  assert found[:2] == [b"", b""] and found[-1] == b"<extra_id_0>"


def test_an_empty_string_is_refused():
  with pytest.raises(UserError, match="--stop: found an empty string"):
    Stops(("a", ""))
