"""A decoder trained on conversations answers a message and stops at the end of its turn."""

import types

import pytest

from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.inference import predictors

BYTES = vocabularies.load("bytes")
# A stand-in for a decoder without a table of positions.
MODEL = types.SimpleNamespace(inputs=types.SimpleNamespace(position=None))


def test_a_text_is_a_message_and_the_answer_ends_with_its_turn():
  predictor = predictors.build_predictor(MODEL, BYTES, {"decoder_target_tokens": [64]}, {}, "plain")
  (ids,) = predictor.encode(["Hi!"], "origin")
  assert ids == [vocabularies.start_id(BYTES), *BYTES.encode("User: Hi!\n\nAssistant:")]
  generated = [*BYTES.encode(" Hello."), BYTES.eos_id, *BYTES.encode("\n\nUser:")]
  assert predictor.decode_answer(ids, predictor._until_end(generated)) == "Hello."
  assert predictor.ends == (BYTES.eos_id,)


def test_a_vocabulary_without_the_pieces_of_the_template_is_refused():
  with pytest.raises(UserError, match="needs the piece '<.im_start.>'"):
    predictors.build_predictor(MODEL, BYTES, {"decoder_target_tokens": [64]}, {}, "chatml")
