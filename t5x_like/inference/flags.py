"""The flags of generation, shared by all commands that generate.

`library.model.PredictOptions` has the same names.
"""

from collections.abc import Iterable
from typing import Any

_LONGEST = (
  "the most tokens to generate (default: the length of training targets; decoders up to 64)"
)
GENERATION_FLAGS = (
  ("max_new_tokens", int, _LONGEST),
  ("min_new_tokens", int, "the fewest tokens to generate"),
  ("stop", str, "a string that ends a prediction and is not part of it; may be repeated"),
  ("banned_words", str, "text whose tokens a prediction may not contain; may be repeated"),
  (
    "repetition_penalty",
    float,
    "divide the scores of earlier tokens, including a decoder's prompt (such as 1.2)",
  ),
  (
    "no_repeat_ngram_size",
    int,
    "no sequence of N tokens occurs twice, including a decoder's prompt (such as 3)",
  ),
  ("beams", int, "number of beams (default: 1, greedy)"),
  (
    "length_penalty",
    float,
    "alpha of the beams' score, log-probability / ((5 + length) / 6)^alpha (default: 0.6)",
  ),
  (
    "length_power",
    float,
    "instead: score beams by log-probability / length^X, as fairseq and transformers",
  ),
  ("samples", int, "predictions per text: random samples, or the best beams (default: 1)"),
  ("temperature", float, "sample from logits divided by this"),
  (
    "top_k",
    int,
    "sample from the N likeliest tokens; for an encoder, candidates for each mask, or classes "
    "(default: 5); for a detector, objects (default: those with a score of at least 0.5)",
  ),
  ("top_p", float, "sample from the fewest likeliest tokens with this total probability"),
  ("min_p", float, "sample from tokens at least this fraction as likely as the likeliest"),
  (
    "typical_p",
    float,
    "sample from the tokens of most typical information content with this total probability",
  ),
  ("seed", int, "seed of the samples (default: 0)"),
)
_METAVARS = {int: "N", float: "X", str: "TEXT"}


def build_flags(names: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
  """Return the flags of `GENERATION_FLAGS` with these names; flags of text may be repeated."""
  flags_by_name = {name: (kind, text) for name, kind, text in GENERATION_FLAGS}
  flags = []
  for name in names:
    kind, text = flags_by_name[name]
    options: dict[str, Any] = {"type": kind, "metavar": _METAVARS[kind], "help": text}
    if kind is str:
      options["action"] = "append"
    flags.append((f"--{name}", options))
  return flags
