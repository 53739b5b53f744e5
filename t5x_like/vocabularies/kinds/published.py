"""The tokenizer of a Hugging Face directory, in any of its forms, with the ids of `transformers`.

Version 5 of `transformers` does not run a `tokenizer.json` as it is. For the classes of
`_pipelines` it takes only the pieces and merges from it, or from `vocab.json` and `merges.txt`,
`vocab.txt` or a SentencePiece model, and sets the rest itself. A `tokenizer.json` of any other
class is used whole. Added and special tokens are then added in the library's order, from
`tokenizer_config.json` or the older `special_tokens_map.json` and `added_tokens.json`;
`config.json` supplies ids missing from all of these. `make parity` compares ids on hostile text.

The library itself is not used: with the protobuf that TensorFlow needs, it cannot read
SentencePiece models.
"""

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import t5x_like.vocabularies.kinds._shared as shared
import t5x_like.vocabularies.protocol as protocol
from t5x_like import slots, vocabularies
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.checked_json import json_type_name
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies import CONFIG, SENTENCE_PIECE, TOKENIZER
from t5x_like.vocabularies.kinds import _growth as growth
from t5x_like.vocabularies.kinds import _pipelines as pipelines
from t5x_like.vocabularies.kinds import _tokenizer_files as tokenizer_files
from t5x_like.vocabularies.kinds import marian
from t5x_like.vocabularies.kinds._pipelines import text_of
from t5x_like.vocabularies.kinds._published_ids import PublishedIds, find_published_ids
from t5x_like.vocabularies.kinds._tokenizer_files import (
  ADDED,
  FLAGS,
  MODEL_CONFIG,
  NAMES,
  SPECIAL,
  VOCABULARY,
)
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary
from t5x_like.vocabularies.kinds.tokenizer import (
  TokenizerVocabulary,
  convert_errors,
  parse_tokenizer_json,
)

if TYPE_CHECKING:
  import tokenizers

KIND = "published"


class PublishedVocabulary(TokenizerVocabulary):
  """The tokenizer of a Hugging Face directory; text gets the same ids as in `transformers`, without
  added special ids.

  Text spelled like a special piece becomes that piece, as there, unless `tokenizer_config.json`
  sets `split_special_tokens`. Lone surrogates, which `transformers` does not accept, become U+FFFD.

  Args:
    model: a `tokenizer.json`, complete with added tokens.
    published_ids: the special ids, and the decoder's first input.
    original_files: the original files, by name, for export.
    origin: the name of the vocabulary in messages.

  Raises:
    UserError: the model is not a tokenizer.
  """

  def __init__(
    self,
    model: bytes,
    published_ids: PublishedIds,
    original_files: dict[str, bytes],
    origin: str = "tokenizer.json",
  ):
    for name, value in dataclasses.asdict(published_ids).items():
      setattr(self, name, value)
    self._published_ids = published_ids
    self.original_files = original_files
    _, added = self._open(model, origin)
    ids = [
      *published_ids.sentinels,
      *(
        getattr(published_ids, f"{name}_id")
        for name in ("pad", "eos", "unk", *protocol.SPECIAL_NAMES)
      ),
    ]
    invalid = [i for i in ids if i is not None and not 0 <= i < self.size]
    if invalid:
      raise UserError(
        f"{origin}: found the special id {invalid[0]}, expected ids from 0 to {self.size - 1}"
      )
    self._finish(added)
    content = json.dumps(dataclasses.asdict(published_ids), sort_keys=True)
    self.fingerprint = hashlib.sha256(f"{KIND}\n{content}\n".encode() + model).hexdigest()

  def save(self, directory) -> None:
    original_files = {
      shared.ORIGINAL_PREFIX + name: data for name, data in self.original_files.items()
    }
    shared.save(
      directory,
      KIND,
      self,
      {TOKENIZER: self.model, **original_files},
      published=dataclasses.asdict(self._published_ids),
    )

  def export_files(self) -> dict[str, bytes]:
    return self.original_files

  def with_text_only(self) -> "PublishedVocabulary":
    """Return the vocabulary to which text spelled like a special piece is text, by
    `split_special_tokens`."""
    config = json.loads(self.original_files.get(CONFIG, b"{}")) | {"split_special_tokens": True}
    original_files = self.original_files | {
      CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    }
    published_ids = dataclasses.replace(self._published_ids, specials_in_text=False)
    return PublishedVocabulary(self.model, published_ids, original_files, self._origin)

  def between(self) -> int:
    """Return the number of special pieces that `transformers` puts between the two texts of a pair.

    Raises:
      UserError: the tokenizer's own file does not join them.
    """
    file = json.loads(self.original_files.get(TOKENIZER, b"{}"))
    if not file.get("post_processor"):
      # RoBERTa's and BART's older files
      return 1 + ("merges.txt" in self.original_files and self.cls_id is not None)
    texts = _encode_letters(file["post_processor"], 2).sequence_ids
    last_of_first = len(texts) - 1 - texts[::-1].index(0)
    return texts.index(1) - last_of_first - 1

  def enclosing_ids(self) -> tuple[list[int], list[int]]:
    config, file = (
      json.loads(self.original_files.get(name, b"{}")) for name in (CONFIG, TOKENIZER)
    )
    bos, eos = ([] if i is None else [i] for i in (self.bos_id, self.eos_id))
    if "add_bos_token" in config or "add_eos_token" in config:
      return bos * bool(config.get("add_bos_token")), eos * bool(config.get("add_eos_token"))
    if file.get("post_processor"):
      encoding = _encode_letters(file["post_processor"], 1)
      start = encoding.sequence_ids.index(0)
      return encoding.ids[:start], encoding.ids[start + 1 :]
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    if name in ("BertTokenizer", "ElectraTokenizer") or "vocab.txt" in self.original_files:
      return [protocol.special_id(self, "cls")], [protocol.special_id(self, "sep")]
    encloses = name in ("BartTokenizer", "RobertaTokenizer") or (
      "merges.txt" in self.original_files and self.cls_id is not None
    )
    begins = encloses or (not file and SENTENCE_PIECE[1] in self.original_files)
    return bos * begins, eos * (
      encloses or name == "T5Tokenizer" or SENTENCE_PIECE[0] in self.original_files
    )


def _encode_letters(post_processor: dict[str, Any], texts: int) -> "tokenizers.Encoding":
  """Return what the post-processor of a `tokenizer.json` makes of one or two texts of one piece
  each.

  The post-processor holds its own ids, so the pieces are not needed: a tokenizer may have none for
  a given letter, and the padding and truncation of the last call, which `transformers` saves, are
  no part of what stands around a text.

  Raises:
    UserError: the post-processor is damaged, or leaves out a text.
  """
  import tokenizers

  model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
  parts = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "decoder"))
  described = {
    "version": "1.0",
    "added_tokens": [],
    **parts,
    "post_processor": post_processor,
    "model": model,
  }
  with convert_errors(TOKENIZER, "its post_processor cannot be used"):
    encoding = tokenizers.Tokenizer.from_str(json.dumps(described)).encode(*["a"] * texts)
  for number in range(texts):
    if encoding.sequence_ids.count(number) != 1:
      raise UserError(
        f"{TOKENIZER}: found a post_processor that puts text {number + 1} "
        f"{encoding.sequence_ids.count(number)} times, expected each text once; copy the file "
        "again"
      )
  return encoding


def load(directory: AnyPath, manifest: dict[str, Any]) -> PublishedVocabulary:
  """Open a directory written by `save`."""
  where = f"{directory / vocabularies.MANIFEST}"
  files = manifest.get("files", {})
  published_ids = PublishedIds(
    **slots.fill(f"{where}: published", manifest.get("published"), PublishedIds)
  )
  if not isinstance(files, dict):
    raise UserError(
      f"{where}: found {json_type_name(files)} in 'files', expected an object; copy the "
      "directory again"
    )
  names = [name for name in files if name.startswith(shared.ORIGINAL_PREFIX)]
  if shared.ORIGINAL_PREFIX + TOKENIZER in names:
    growth.check_normalizers(
      parse_tokenizer_json(
        vocabularies.read_file(directory / (shared.ORIGINAL_PREFIX + TOKENIZER))
      ),
      where,
    )
  for name in names:
    file_names.check_name(
      f"{where}: files", name.removeprefix(shared.ORIGINAL_PREFIX), "copy the vocabulary again"
    )
  return PublishedVocabulary(
    vocabularies.read_file(directory / TOKENIZER),
    published_ids,
    {
      name.removeprefix(shared.ORIGINAL_PREFIX): vocabularies.read_file(directory / name)
      for name in names
    },
    str(directory / TOKENIZER),
  )


def read(directory: AnyPath, sentinels: str | None = None) -> protocol.Vocabulary:
  """Read a directory.

  Args:
    sentinels: the pattern of pieces to use as sentinels, such as `<unused{}>`; by default
      `<extra_id_{}>`, if any.

  Raises:
    UserError: a file is missing, damaged or of an unsupported class, or no end-of-text token is
      named.
  """
  config = tokenizer_files.read_file(directory, CONFIG) or {}
  model_config = tokenizer_files.read_file(directory, MODEL_CONFIG) or {}
  file = tokenizer_files.read_file(directory, TOKENIZER)
  name = pipelines.choose_class(config, model_config, file)
  if name == "ByT5Tokenizer":
    return ByteVocabulary(own=False)
  if file is None and name == "MarianTokenizer":
    return marian.read(directory, sentinels)
  where = f"vocabulary {directory}"
  legacy = config.get("added_tokens_decoder") is None
  if legacy:
    config |= {
      key: _parse_token(value)
      for key, value in (tokenizer_files.read_file(directory, SPECIAL) or {}).items()
    }
  with convert_errors(where, f"{TOKENIZER if file is not None else 'its files'} cannot be read"):
    if name in pipelines.PIPELINES:
      pieces = pipelines.Pieces.of(file) if file is not None else _pieces(directory, name, config)
      if not pieces.vocab:
        raise UserError(f"{where}: {TOKENIZER} has no pieces; copy it again")
      described = pipelines.PIPELINES[name](pieces, config)
      defaults = pipelines.DEFAULTS[name]
    elif file is None and name in pipelines.PYTHON_CLASSES:
      raise UserError(
        f"{where}: found a {name}, which is a program without a {TOKENIZER}, and is not read "
        "here; python -m tools.convert_hf takes the weights, with the vocabulary of the recipe's "
        "data"
      )
    elif file is None:
      raise UserError(
        f"{where}: found no {TOKENIZER}, expected one, as the tokenizer's class "
        f"{name or 'is not named and'} can be read from no other file; save it with transformers' "
        f"save_pretrained, or name one of {', '.join(pipelines.PIPELINES)} as tokenizer_class in "
        f"{CONFIG}"
      )
    else:
      pieces = None
      described = file
      defaults = pipelines.DEFAULTS_BY_MODEL_TYPE.get(model_config.get("model_type"), {})
    described = {**described, "truncation": None, "padding": None, "post_processor": None}
    named = {n: config.get(f"{n}_token", defaults.get(n)) for n in NAMES}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(extra.values() if isinstance(extra, dict) else extra)
    if name == "T5Tokenizer" and not any("<extra_id_" in text_of(token) for token in extra):
      extra += [f"<extra_id_{i}>" for i in range(_extra_ids(config, where))]
    own = pieces.added if pieces is not None else []
    added = _read_added_tokens(
      directory,
      config,
      legacy,
      file,
      {text_of(token) for token in (*named.values(), *extra) if token},
    )
    pipelines.check_charsmap(described, where)
    growth.check_normalizers(file or {}, where)  # which `enclosing_ids` and `between` use as it is
    growth.check_normalizers(described, where)
    if described["model"].get("type") == "Unigram":
      pipelines.check_lengths((piece for piece, _ in described["model"]["vocab"]), where)
    described, ids = _add_tokens(
      described, added, named, [*own, *extra], _vector_count(model_config)
    )
  published_ids = find_published_ids(
    where,
    ids,
    {n: text_of(token) for n, token in named.items() if token},
    model_config,
    config,
    sentinels,
  )
  model = json.dumps(described, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
  original_files = {
    name: vocabularies.read_file(directory / name)
    for name in shared.PUBLISHED_FILES
    if (directory / name).exists()
  }
  return PublishedVocabulary(model, published_ids, original_files, where)


def python_class(directory: AnyPath) -> str | None:
  """Return the class of a directory's tokenizer if it is one of `pipelines.PYTHON` without a
  `tokenizer.json`."""
  if (directory / TOKENIZER).exists():
    return None
  config = tokenizer_files.read_file(directory, CONFIG) or {}
  name = pipelines.choose_class(
    config, tokenizer_files.read_file(directory, MODEL_CONFIG) or {}, None
  )
  return name if name in pipelines.PYTHON_CLASSES else None


def _pieces(directory: AnyPath, name: str, config: dict[str, Any]) -> pipelines.Pieces:
  """Read pieces and merges from files other than `tokenizer.json`."""
  where = f"vocabulary {directory}"
  for file in SENTENCE_PIECE:
    if (directory / file).exists() and name in pipelines.SENTENCE_PIECE_CLASSES:
      return pipelines.Pieces.of_sentence_piece(
        vocabularies.read_file(directory / file),
        name,
        _extra_ids(config, where),
        f"vocabulary {directory / file}",
      )
  if name == "BertTokenizer" and (directory / "vocab.txt").exists():
    lines = _lines(directory / "vocab.txt")
    return pipelines.Pieces({line.rstrip(): i for i, line in enumerate(lines)})
  vocab = tokenizer_files.read_file(directory, VOCABULARY)
  if vocab is None or not (directory / "merges.txt").exists():
    raise UserError(
      f"vocabulary {directory}: found no files of a {name}, expected {TOKENIZER}, or vocab.json "
      "and merges.txt, vocab.txt, or a SentencePiece model, as its class has them; copy them there"
    )
  lines = (
    line.split(" ") for line in _lines(directory / "merges.txt") if not line.startswith("#version")
  )
  return pipelines.Pieces(vocab, [pair for pair in lines if len(pair) == 2])


def _read_added_tokens(
  directory: AnyPath, config: dict, legacy: bool, file: dict | None, special: set[str]
) -> dict:
  """Return the tokens added to the pieces, by id, from the newer file or from all the older
  ones."""
  if not legacy:
    return {int(i): _parse_token(token) for i, token in config["added_tokens_decoder"].items()}
  found = {}
  for token, i in (tokenizer_files.read_file(directory, ADDED) or {}).items():
    found[i] = _parse_token(
      {"content": token, "normalized": token not in special, "special": token in special}
    )
  for token in (file or {}).get("added_tokens") or ():
    found[token["id"]] = _parse_token({key: value for key, value in token.items() if key != "id"})
  return found


def _vector_count(model_config: dict[str, Any]) -> int | None:
  """Return the number of token vectors that a `config.json` states; None without one."""
  text = model_config.get("text_config")
  size = (text if isinstance(text, dict) else model_config).get("vocab_size")
  return size if isinstance(size, int) else None


def _add_tokens(
  described: dict[str, Any], added: dict, named: dict, extra: list, vectors: int | None
) -> tuple[dict, dict[str, int]]:
  """Return (the tokenizer with all tokens added as in the library, the ids of all pieces).

  Special tokens without a vector are left out, such as that of images in Gemma 3 1B.
  """
  import tokenizers

  tokenizer = tokenizers.Tokenizer.from_str(json.dumps(described))
  by_text = {token.content: token for token in added.values()}
  named = [_as(token, by_text.get(text_of(token))) for token in named.values() if token]
  extra = [_as(token) for token in extra if token]
  known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
  new = [token for _, token in sorted(added.items()) if token.content not in known]
  new += [
    token for token in [*named, *extra] if token.content not in known | {n.content for n in new}
  ]
  special = {token.content for token in named}
  for token in new:
    token.special = token.special or token.content in special
  tokenizer.add_tokens(new)
  tokenizer.add_special_tokens([*named, *extra])
  held = sorted(tokenizer.get_added_tokens_decoder().items())
  ids = tokenizer.get_vocab(with_added_tokens=True)
  if vectors is not None and all(token.special for i, token in held if i >= vectors):
    held = [one for one in held if one[0] < vectors]
    ids = {piece: i for piece, i in ids.items() if i < vectors}
  fields = ("content", *FLAGS)
  listed = [{"id": i, **{field: getattr(token, field) for field in fields}} for i, token in held]
  return {**described, "added_tokens": listed}, ids


def _parse_token(token):
  """Convert a token of a file: text, a list of tokens, or an object with its flags."""
  import tokenizers

  if isinstance(token, list):
    return [_parse_token(one) for one in token]
  if not isinstance(token, dict) or "content" not in token:
    return token
  flags = ("content", *FLAGS)
  return tokenizers.AddedToken(
    **{"special": True} | {key: token[key] for key in flags if key in token}
  )


def _as(token, known=None):
  import tokenizers

  token = _parse_token(token)
  if known is not None or not isinstance(token, str):
    return known or token
  return tokenizers.AddedToken(token, special=True, normalized=False)


def _extra_ids(config: dict[str, Any], where: str) -> int:
  extra_ids = config.get("extra_ids")
  return (
    shared.T5_EXTRA_IDS
    if extra_ids is None
    else shared.check_extra_ids(extra_ids, f"{where}, {CONFIG}")
  )


def _lines(path: AnyPath) -> list[str]:
  try:
    return vocabularies.read_file(path).decode().removesuffix("\n").split("\n")
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: not UTF-8 at byte {error.start}; copy it again") from None
