"""Train WordPiece and byte-level BPE vocabularies with the tokenizers library.

Ids are [PAD] 0, </s> 1 and [UNK] 2, with --with_mask also [CLS] 3, [SEP] 4 and [MASK] 5, then the
pieces, then the sentinels from `<extra_id_0>` at the highest id downwards.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from t5x_like.errors import UserError
from t5x_like.vocabularies.kinds.tokenizer import MASK_TOKENS, SPECIAL_TOKENS, TokenizerVocabulary

KINDS = ("wordpiece", "bytelevel_bpe")


def train(
  lines: Sequence[bytes],
  *,
  size: int,
  kind: str,
  extra_ids: int = 100,
  with_mask: bool = False,
  lowercase: bool = False,
  character_coverage: float = 0.9995,
) -> TokenizerVocabulary:
  """Train a vocabulary deterministically.

  Args:
    lines: lines of text in UTF-8.
    size: number of ids without the sentinels.
    kind: `wordpiece` (as BERT: words and punctuation, continued by ##) or `bytelevel_bpe` (as
      GPT-2: lossless).
    extra_ids: number of sentinels, which have the highest ids.
    with_mask: include [CLS], [SEP] and [MASK].
    lowercase: remove case and accents; wordpiece only.
    character_coverage: share of the text's characters that get pieces; words with other characters
      are unknown; wordpiece only.

  Raises:
    UserError: the text is too small for the size, or the size too small for the characters.
  """
  from tokenizers import AddedToken

  special_tokens = list(SPECIAL_TOKENS)
  if with_mask:
    special_tokens += MASK_TOKENS
  if kind == "wordpiece":
    tokenizer, trainer = _wordpiece(lines, size, special_tokens, lowercase, character_coverage)
  else:
    tokenizer, trainer = _bytelevel_bpe(size, special_tokens)
  tokenizer.train_from_iterator((line.decode() for line in lines), trainer)
  trained_size = tokenizer.get_vocab_size()
  if trained_size != size:
    remedy = "choose a larger --size"
    if trained_size < size:
      remedy = "choose a smaller --size or a larger text"
    raise UserError(
      f"--size: found {size} ids, sentinels not counted, expected {trained_size} for this text; "
      f"{remedy}"
    )
  tokenizer.add_special_tokens(
    [AddedToken(f"<extra_id_{i}>", special=True) for i in reversed(range(extra_ids))]
  )
  document = json.loads(tokenizer.to_str())
  # Continuation pieces were special tokens for the trainer only (see `_wordpiece`).
  document["added_tokens"] = [
    token for token in document["added_tokens"] if not token["content"].startswith("##")
  ]
  text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
  return TokenizerVocabulary(text.encode(), origin=f"trained {kind}")


def _wordpiece(
  lines: Sequence[bytes],
  size: int,
  special_tokens: list[str],
  lowercase: bool,
  character_coverage: float,
):
  """Return BERT's tokenizer and its trainer."""
  from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

  tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
  tokenizer.normalizer = normalizers.BertNormalizer(
    clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece(cleanup=False)
  texts = (tokenizer.normalizer.normalize_str(line.decode()) for line in lines)
  alphabet = _alphabet(texts, character_coverage)
  # The trainer numbers the pieces ##x in the order of a hash map, and breaks ties by these ids.
  # With the pieces among the special tokens, which it numbers first, training is deterministic.
  continuations = [f"##{character}" for character in alphabet]
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    special_tokens=[*special_tokens, *continuations],
    show_progress=False,
    initial_alphabet=alphabet,
    limit_alphabet=len(alphabet),
  )
  return tokenizer, trainer


def _bytelevel_bpe(size: int, special_tokens: list[str]):
  """Return GPT-2's tokenizer and its trainer."""
  from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=size,
    special_tokens=special_tokens,
    show_progress=False,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
  )
  return tokenizer, trainer


def _alphabet(texts: Iterable[str], coverage: float) -> list[str]:
  """Return the most frequent characters that cover a share of the texts without spaces, sorted."""
  counts: Counter[str] = Counter()
  for text in texts:
    counts.update(text)
  characters_in_text = [character for character in counts if not character.isspace()]
  ranked = sorted(characters_in_text, key=lambda character: (-counts[character], character))
  required = coverage * sum(counts[character] for character in ranked)
  covered = 0
  characters = []
  for character in ranked:
    if covered >= required:
      break
    covered += counts[character]
    characters.append(character)
  return sorted(characters)
