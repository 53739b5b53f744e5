"""Write small trained tokenizers of the published kinds, in directories as on Hugging Face."""

import io
import json
import pathlib

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

WORDS = (
  "the quick brown fox jumps over a lazy dog while seven wizards box with jugs of liquid quartz "
  "naïve 世界"
).split()
LINES = [" ".join(WORDS[i % 18 :] + WORDS[: i % 7] + [str(i), "." * (i % 4)]) for i in range(300)]
BART = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
HOSTILE = [
  "",
  " ",
  "the quick  fox",
  " leading, trailing ",
  "\n\n x\t\ty \r\n",
  "a\0b\0",
  "e\u0301\u0323 \u00e9 \u1e69 s\u0323\u0307",
  "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7",
  "zero\u200bwidth\u200d\ufeff joiner\u2060",
  "你好世界 the 世",
  "\u05e9\u05dc\u05d5\u05dd \u202eabc\u202c \u0645",
  " " * 300 + "fox" + "\t" * 40,
  bytes(range(256)).decode("latin-1"),
  "\U0010ffff\ufffd\u2028\u2029\x85",
  "a</s>b <s> the <pad><unk> fox",
  "<|endoftext|>the fox<|endoftext|> fox",
  "[CLS] the [MASK] fox[SEP] [PAD]",
  "the <mask> fox<mask>",
  "<extra_id_0> the <extra_id_99>fox<extra_id_100>",
  "<bos><eos>\u2581the \u2581\u2581 fox <0x41>",
  "ﬁ ① ½ ｆｕｌｌ Straße İ don't 3.14",
]


def byte_level(specials: list[str]) -> Tokenizer:
  """Return a byte-level BPE tokenizer with its pipeline, as GPT-2's."""
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  options = dict(
    vocab_size=360, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
  )
  tokenizer.train_from_iterator(LINES, trainers.BpeTrainer(**options))
  return tokenizer


def word_piece() -> Tokenizer:
  """Return a WordPiece tokenizer with its pipeline, as BERT's."""
  tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer()
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=specials, show_progress=False)
  tokenizer.train_from_iterator(LINES, trainer)
  return tokenizer


def sentence_piece(lines: list[str] = LINES, **options) -> bytes:
  """Train a SentencePiece model and return its file."""
  model = io.BytesIO()
  fixed = dict(sentence_iterator=iter(lines), model_writer=model, minloglevel=2, num_threads=1)
  sentencepiece.SentencePieceTrainer.train(**fixed, **options)
  return model.getvalue()


def llama() -> bytes:
  ids = dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
  return sentence_piece(model_type="bpe", vocab_size=360, byte_fallback=True, **IDENTITY, **ids)


def gemma() -> bytes:
  ids = dict(
    pad_id=0,
    eos_id=1,
    bos_id=2,
    unk_id=3,
    eos_piece="<eos>",
    bos_piece="<bos>",
    add_dummy_prefix=False,
  )
  symbols = ["<mask>", *(f"<unused{i}>" for i in range(40))]
  return sentence_piece(
    model_type="bpe",
    vocab_size=420,
    byte_fallback=True,
    user_defined_symbols=symbols,
    **IDENTITY,
    **ids,
  )


def t5() -> bytes:
  return sentence_piece(
    model_type="unigram", vocab_size=85, pad_id=0, eos_id=1, unk_id=2, bos_id=-1
  )


def marian(directory: pathlib.Path, **config) -> pathlib.Path:
  """Write the tokenizer of a Marian model of opus-mt; return its directory.

  It has a SentencePiece model for source texts and one for target texts. `vocab.json` has the ids
  of their pieces, except for some that are missing, and of two language codes.
  """
  directory.mkdir(parents=True, exist_ok=True)
  lines = {"source": LINES, "target": [line[::-1].upper() for line in LINES]}
  pieces = ["</s>", "<unk>", ">>fra<<", ">>deu<<"]
  for side, texts in lines.items():
    model = sentence_piece(texts, model_type="unigram", vocab_size=85)
    (directory / f"{side}.spm").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces += [processor.id_to_piece(i) for i in range(3, processor.vocab_size() - 4)]
  pieces = [*dict.fromkeys(pieces), "<pad>"]
  (directory / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
  (directory / "tokenizer_config.json").write_text(
    json.dumps({"source_lang": "en", "target_lang": "ROMANCE"} | config)
  )
  values = {"model_type": "marian", "decoder_start_token_id": len(pieces) - 1, "bos_token_id": 0}
  (directory / "config.json").write_text(json.dumps(values))
  return directory


IDENTITY = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
CONFIGS = {
  "gpt2": {"eos_token_id": 50256},  # beyond these vocabularies, so the tokenizer's id is used
  "roberta": {},
  "bart": {"decoder_start_token_id": 2},
  "llama": {},
  "gemma2": {},
  "t5": {"decoder_start_token_id": 0},
  "bert": {},
}


def write(directory: pathlib.Path, kind: str) -> pathlib.Path:
  """Write the tokenizer files of the first models of a kind, and a config that names the kind."""
  directory.mkdir(parents=True, exist_ok=True)
  if kind in ("gpt2", "roberta", "bart"):
    byte_level(["<|endoftext|>"] if kind == "gpt2" else BART).model.save(str(directory))
  elif kind == "bert":
    word_piece().model.save(str(directory))
  else:
    name = "spiece.model" if kind == "t5" else "tokenizer.model"
    (directory / name).write_bytes({"llama": llama, "gemma2": gemma, "t5": t5}[kind]())
  if not (directory / "config.json").exists():
    (directory / "config.json").write_text(json.dumps({"model_type": kind} | CONFIGS[kind]))
  return directory
