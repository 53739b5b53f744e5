"""XLNet's rows from text, against `transformers`, whose rows end with <cls> and are padded on the
left."""

import numpy as np
import pytest
import torch
import transformers

from parity import cases, reference
from t5x_like import vocabularies
from t5x_like.interop import hf

pytestmark = pytest.mark.parity

SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
PIECES = [
  *SPECIAL,
  *(f"\u2581{word}" for word in "the quick brown fox jumps over a lazy dog".split()),
  "s",
  "\u2581",
]
PAIRS = [
  ("the quick fox", "a dog jumps"),
  ("the dogs", "the lazy brown fox jumps over the quick dog"),
  ("a", "fox"),
]
HEADS = {
  "ForSequenceClassification": ("logits", dict(num_labels=3)),
  "ForQuestionAnsweringSimple": ("start_logits", {}),
}


@pytest.mark.parametrize("task", HEADS)
@pytest.mark.parametrize("texts", [1, 2])
def test_logits_of_texts_are_those_of_transformers(task, texts, tmp_path):
  logits, more = HEADS[task]
  values = dict(vocab_size=len(PIECES), d_model=20, n_layer=2, n_head=5, d_inner=28) | more
  theirs = reference.make(cases.Case(f"XLNet{task}", "XLNetConfig", values, "encoder"), tmp_path)
  tokenizer = transformers.XLNetTokenizer(
    vocab=[(piece, -float(n)) for n, piece in enumerate(PIECES)]
  )
  tokenizer.save_pretrained(tmp_path)
  given = tokenizer(
    *([list(x) for x in zip(*PAIRS)][:texts]),
    padding=True,
    return_token_type_ids=True,
    return_tensors="pt",
  )
  with torch.no_grad():
    expected_BX = theirs(**given)[logits].numpy()

  model = hf.load(str(tmp_path))
  vocabulary = vocabularies.load(str(tmp_path))
  tokens_BS = np.full((len(PAIRS), 20), vocabulary.pad_id, np.int32)
  types_BS = np.zeros_like(tokens_BS)
  for row, pair in enumerate(PAIRS):
    parts = [[*vocabulary.encode(text), vocabulary.sep_id] for text in pair[:texts]]
    ids = [vocabulary.cls_id, *sum(parts, [])]
    tokens_BS[row, : len(ids)], types_BS[row, 1 + len(parts[0]) : len(ids)] = ids, 1
  found_BX = np.array(
    model({"encoder_input_tokens": tokens_BS, "encoder_token_types": types_BS})[logits]
  )
  if logits != "logits":  # a score for each token: in their order
    for row, found_S in enumerate(found_BX):
      size = (tokens_BS[row] != vocabulary.pad_id).sum()
      expected_S = np.roll(expected_BX[row, -size:], 1)
      np.testing.assert_allclose(found_S[:size], expected_S, atol=1e-4)
  else:
    np.testing.assert_allclose(found_BX, expected_BX, atol=1e-4)
