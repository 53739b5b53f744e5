"""XLNet's logits of texts are those of `transformers`.

The library's rows end with <cls> and are padded on the left; ours begin with it.
"""

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
  logits, head_options = HEADS[task]
  values = dict(vocab_size=len(PIECES), d_model=20, n_layer=2, n_head=5, d_inner=28) | head_options
  hf_model = reference.make(cases.Case(f"XLNet{task}", "XLNetConfig", values, "encoder"), tmp_path)
  tokenizer = transformers.XLNetTokenizer(
    vocab=[(piece, -float(n)) for n, piece in enumerate(PIECES)]
  )
  tokenizer.save_pretrained(tmp_path)
  first_texts = [first for first, _ in PAIRS]
  second_texts = [second for _, second in PAIRS]
  inputs = tokenizer(
    first_texts,
    second_texts if texts == 2 else None,
    padding=True,
    return_token_type_ids=True,
    return_tensors="pt",
  )
  with torch.no_grad():
    expected_BX = hf_model(**inputs)[logits].numpy()

  model = hf.load(str(tmp_path))
  vocabulary = vocabularies.load(str(tmp_path))
  tokens_BS = np.full((len(PAIRS), 20), vocabulary.pad_id, np.int32)
  types_BS = np.zeros_like(tokens_BS)
  for row, pair in enumerate(PAIRS):
    parts = [[*vocabulary.encode(text), vocabulary.sep_id] for text in pair[:texts]]
    ids = [vocabulary.cls_id, *sum(parts, [])]
    tokens_BS[row, : len(ids)] = ids
    types_BS[row, 1 + len(parts[0]) : len(ids)] = 1
  batch = {"encoder_input_tokens": tokens_BS, "encoder_token_types": types_BS}
  values_BX = np.array(model(batch)[logits])
  if logits == "logits":
    np.testing.assert_allclose(values_BX, expected_BX, atol=1e-4)
    return
  for row, values_S in enumerate(values_BX):  # a value a token: <cls> is first in ours
    size = (tokens_BS[row] != vocabulary.pad_id).sum()
    expected_S = np.roll(expected_BX[row, -size:], 1)
    np.testing.assert_allclose(values_S[:size], expected_S, atol=1e-4)
