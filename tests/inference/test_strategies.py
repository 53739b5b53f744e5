"""The flags of `predict` choose a decoding strategy; impossible flags are refused."""

import pytest

from t5x_like.decoding.beam_search import GnmtPenalty, PowerPenalty
from t5x_like.decoding.penalties import NoRepeatNgrams, RepetitionPenalty
from t5x_like.decoding.sampling import MinLength, TopP
from t5x_like.errors import UserError
from t5x_like.inference import strategies


@pytest.mark.parametrize(
  "flags, words",
  [
    ({"beams": 4, "temperature": 0.7}, "--beams=4 --temperature: a beam search draws nothing"),
    ({"beams": 4, "seed": 0}, "--beams=4 --seed"),
    ({"beams": 2, "samples": 3}, "--samples=3 --beams=2: .* raise --beams"),
    ({"beams": 0}, "--beams=0: expected at least 1"),
    ({"samples": 0}, "--samples=0: expected at least 1"),
    ({"min_new_tokens": -1}, "--min_new_tokens=-1: found -1, expected at least 0"),
    ({"repetition_penalty": 0.0}, "--repetition_penalty=0.0: found 0.0, expected a number above 0"),
    (
      {"no_repeat_ngram_size": 0},
      "--no_repeat_ngram_size=0: found 0, expected a whole number from 1",
    ),
    ({"typical_p": 0.0}, "--typical_p=0.0: found 0.0"),
    ({"beams": 4, "typical_p": 0.5}, "--beams=4 --typical_p: a beam search draws nothing"),
    ({"length_power": 1.0}, "--length_power=1.0: .*--beams=4"),
    (
      {"beams": 2, "length_power": 1.0, "length_penalty": 1.0},
      "--length_penalty=1.0 --length_power=1.0: leave out",
    ),
    ({"length_penalty": 1.0}, "--length_penalty=1.0: .*--beams=4"),
    ({"beams": 2, "length_penalty": float("nan")}, "--length_penalty=nan: expected -10 to 10"),
    ({"top_p": 1.5}, "--top_p=1.5: found 1.5, expected a number above 0 and at most 1"),
    ({"top_p": float("nan")}, "--top_p=nan: found nan"),
    ({"min_p": 0.0}, "--min_p=0.0: found 0.0"),
    ({"top_k": 0}, "--top_k=0: found 0, expected at least 1"),
    ({"temperature": 0.0}, "--temperature=0.0: .* use greedy"),
    ({"seed": 3}, "--seed=3: nothing is drawn; add --temperature"),
    ({"seed": 2**32, "samples": 2}, "--seed=4294967296: expected 0 to"),
  ],
  ids=str,
)
def test_impossible_flags_are_refused(flags, words):
  with pytest.raises(UserError, match=f"^{words}"):
    strategies.choose_strategy(**flags)


@pytest.mark.parametrize(
  "flags, strategy",
  [
    ({"min_new_tokens": 2}, strategies.Greedy((MinLength(2),))),
    ({"samples": 2}, strategies.Sampling(0, 2)),
    ({"top_p": 0.5, "seed": 2**32 - 1}, strategies.Sampling(2**32 - 1, 1, (TopP(0.5),))),
    (
      {"top_p": 0.5, "repetition_penalty": 1.2},
      strategies.Sampling(0, 1, (RepetitionPenalty(1.2), TopP(0.5))),
    ),
    ({"beams": 4, "samples": 2}, strategies.Beams(4, 2, GnmtPenalty(0.6))),
    (
      {"beams": 4, "length_power": 2.0, "min_new_tokens": 55, "no_repeat_ngram_size": 3},
      strategies.Beams(4, 1, PowerPenalty(2.0), (NoRepeatNgrams(3), MinLength(55))),
    ),
  ],
  ids=str,
)
def test_flags_choose_a_strategy(flags, strategy):
  assert strategies.choose_strategy(**flags) == strategy
