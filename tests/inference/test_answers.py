"""A decoder trained on conversations answers a message and stops at the end of its turn."""

import types

import pytest

from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.inference import predictors

BYTES = vocabularies.load("bytes")
MODEL = types.SimpleNamespace(inputs=types.SimpleNamespace(position=None))


def test_a_text_is_a_message_and_the_answer_ends_with_its_turn():
  answer = predictors.build_predictor(MODEL, BYTES, {"decoder_target_tokens": [64]}, {}, "plain")
  (ids,) = answer.encode(["Hi!"], "-")
  assert ids == [vocabularies.start_id(BYTES), *BYTES.encode("User: Hi!\n\nAssistant:")]
  generated = [*BYTES.encode(" Hello."), BYTES.eos_id, *BYTES.encode("\n\nUser:")]
  assert answer.decode_answer(ids, answer._until_end(generated)) == "Hello."
  assert answer.ends == (BYTES.eos_id,)


def test_a_vocabulary_without_the_pieces_of_the_template_is_refused():
  with pytest.raises(UserError, match="needs the piece '<.im_start.>'"):
    predictors.build_predictor(MODEL, BYTES, {"decoder_target_tokens": [64]}, {}, "chatml")
