"""The tokenizer of a Hugging Face directory, in any of its forms, with the ids of `transformers`.

Version 5 of `transformers` does not run a `tokenizer.json` as it is. For the classes of
`_pipelines` it takes only the pieces and merges from it, or from `vocab.json` and `merges.txt`,
`vocab.txt` or a SentencePiece model, and sets the rest itself. A `tokenizer.json` of any other
class is used whole. Added and special tokens are then added in the order of `transformers`, from
`tokenizer_config.json` or the older `special_tokens_map.json` and `added_tokens.json`;
`config.json` supplies ids missing from all of these. `make parity` compares ids on hostile text.

`transformers` itself is not used: with the protobuf that TensorFlow needs, it cannot read
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
from t5x_like.files.gguf_file import is_gguf, open_gguf
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies import CONFIG, SENTENCE_PIECE, TOKENIZER
from t5x_like.vocabularies.kinds import _gguf_tokenizer as gguf_tokenizer
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
  """The tokenizer of a Hugging Face directory, with the ids of `transformers`.

  No special ids are added to a text. Text spelled like a special piece becomes that piece, as
  there, unless `tokenizer_config.json` sets `split_special_tokens`. Lone surrogates, which
  `transformers` does not accept, become U+FFFD.

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
    ids = list(published_ids.sentinels)
    for name in ("pad", "eos", "unk", *protocol.SPECIAL_NAMES):
      ids.append(getattr(published_ids, f"{name}_id"))
    invalid = [i for i in ids if i is not None and not 0 <= i < self.size]
    if invalid:
      raise UserError(
        f"{origin}: found the special id {invalid[0]}, expected ids from 0 to {self.size - 1}"
      )
    self._finish(added)
    content = json.dumps(dataclasses.asdict(published_ids), sort_keys=True)
    self.fingerprint = hashlib.sha256(f"{KIND}\n{content}\n".encode() + model).hexdigest()

  def save(self, directory) -> None:
    files = {TOKENIZER: self.model}
    for name, data in self.original_files.items():
      files[shared.ORIGINAL_PREFIX + name] = data
    facts = dataclasses.asdict(self._published_ids)
    shared.save(directory, KIND, self, files, published=facts)

  def export_files(self) -> dict[str, bytes]:
    return self.original_files

  def with_text_only(self) -> "PublishedVocabulary":
    """Return the vocabulary that encodes text spelled like a special piece as plain text.

    Its exported files set `split_special_tokens`, so that `transformers` does the same.
    """
    config = json.loads(self.original_files.get(CONFIG, b"{}"))
    config["split_special_tokens"] = True
    config_text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    original_files = self.original_files | {CONFIG: config_text.encode()}
    published_ids = dataclasses.replace(self._published_ids, specials_in_text=False)
    return PublishedVocabulary(self.model, published_ids, original_files, self._origin)

  def count_pair_separators(self) -> int:
    """Return the number of special pieces that `transformers` puts between the texts of a pair.

    Raises:
      UserError: the tokenizer's own file does not join them.
    """
    file = json.loads(self.original_files.get(TOKENIZER, b"{}"))
    if not file.get("post_processor"):
      # RoBERTa's and BART's older files
      is_roberta = "merges.txt" in self.original_files and self.cls_id is not None
      return 2 if is_roberta else 1
    texts = _encode_letters(file["post_processor"], 2).sequence_ids
    last_of_first = len(texts) - 1 - texts[::-1].index(0)
    return texts.index(1) - last_of_first - 1

  def enclosing_ids(self) -> tuple[list[int], list[int]]:
    config = json.loads(self.original_files.get(CONFIG, b"{}"))
    file = json.loads(self.original_files.get(TOKENIZER, b"{}"))
    bos = [] if self.bos_id is None else [self.bos_id]
    eos = [] if self.eos_id is None else [self.eos_id]
    if "add_bos_token" in config or "add_eos_token" in config:
      before = bos if config.get("add_bos_token") else []
      after = eos if config.get("add_eos_token") else []
      return before, after
    if file.get("post_processor"):
      encoding = _encode_letters(file["post_processor"], 1)
      start = encoding.sequence_ids.index(0)
      return encoding.ids[:start], encoding.ids[start + 1 :]
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    files = self.original_files
    if name in ("BertTokenizer", "ElectraTokenizer") or "vocab.txt" in files:
      return [protocol.special_id(self, "cls")], [protocol.special_id(self, "sep")]
    if name in ("BartTokenizer", "RobertaTokenizer"):
      return bos, eos
    if "merges.txt" in files and self.cls_id is not None:
      return bos, eos
    t5_model, llama_model, *_ = SENTENCE_PIECE
    before = bos if llama_model in files and not file else []
    after = eos if t5_model in files or name == "T5Tokenizer" else []
    return before, after


def _encode_letters(post_processor: dict[str, Any], texts: int) -> "tokenizers.Encoding":
  """Return the encoding of one or two texts of one piece each by a post-processor.

  The post-processor holds its own ids, so the pieces are not needed: a tokenizer may have none for
  a given letter, and the padding and truncation of the last call, which `transformers` saves, do
  not belong to the pieces around a text.

  Raises:
    UserError: the post-processor is damaged, or leaves out a text.
  """
  import tokenizers

  model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
  tokenizer_json = {
    "version": "1.0",
    "added_tokens": [],
    "truncation": None,
    "padding": None,
    "normalizer": None,
    "pre_tokenizer": None,
    "decoder": None,
    "post_processor": post_processor,
    "model": model,
  }
  with convert_errors(TOKENIZER, "its post_processor cannot be used"):
    encoding = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json)).encode(*["a"] * texts)
  for number in range(texts):
    if encoding.sequence_ids.count(number) != 1:
      raise UserError(
        f"{TOKENIZER}: found a post_processor that contains text {number + 1} "
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
  original_files = {}
  for name in files:
    if name.startswith(shared.ORIGINAL_PREFIX):
      original = name.removeprefix(shared.ORIGINAL_PREFIX)
      file_names.check_name(f"{where}: files", original, "copy the vocabulary again")
      original_files[original] = vocabularies.read_file(directory / name)
  if TOKENIZER in original_files:
    growth.check_normalizers(parse_tokenizer_json(original_files[TOKENIZER]), where)
  model = vocabularies.read_file(directory / TOKENIZER)
  return PublishedVocabulary(model, published_ids, original_files, str(directory / TOKENIZER))


def read(directory: AnyPath, sentinels: str | None = None) -> protocol.Vocabulary:
  """Read a directory or a GGUF file.

  Args:
    sentinels: the pattern of pieces to use as sentinels, such as `<unused{}>`; by default
      `<extra_id_{}>`, if any.

  Raises:
    UserError: a file is missing, damaged or of an unsupported class, or no end-of-text token is
      named.
  """
  if is_gguf(directory):
    return _read_gguf(directory, sentinels)
  config = tokenizer_files.read_file(directory, CONFIG) or {}
  model_config = tokenizer_files.read_file(directory, MODEL_CONFIG) or {}
  file = tokenizer_files.read_file(directory, TOKENIZER)
  name = pipelines.choose_class(config, model_config, file)
  if name == "ByT5Tokenizer":
    return ByteVocabulary(bytes_as_sentinels=True)
  if file is None and name == "MarianTokenizer":
    return marian.read(directory, sentinels)
  where = f"vocabulary {directory}"
  is_legacy = config.get("added_tokens_decoder") is None
  if is_legacy:
    special_tokens_map = tokenizer_files.read_file(directory, SPECIAL) or {}
    config |= {key: _parse_token(token) for key, token in special_tokens_map.items()}
  description = "its files" if file is None else TOKENIZER
  with convert_errors(where, f"{description} cannot be read"):
    pipeline, defaults, model_tokens = _build_pipeline(directory, name, config, model_config, file)
    named = {kind: config.get(f"{kind}_token", defaults.get(kind)) for kind in NAMES}
    extra = _read_extra_tokens(config, name, where)
    special = {text_of(token) for token in (*named.values(), *extra) if token}
    if is_legacy:
      added = _read_legacy_added_tokens(directory, file or {}, special)
    else:
      tokens = config["added_tokens_decoder"]
      added = {int(i): _parse_token(token) for i, token in tokens.items()}
    pipelines.check_charsmap(pipeline, where)
    # `enclosing_ids` and `count_pair_separators` use the file as it is.
    growth.check_normalizers(file or {}, where)
    growth.check_normalizers(pipeline, where)
    if pipeline["model"].get("type") == "Unigram":
      pipelines.check_lengths((piece for piece, _ in pipeline["model"]["vocab"]), where)
    unnamed_tokens = [*model_tokens, *extra]
    num_vectors = _vector_count(model_config)
    tokenizer_json, ids = _add_tokens(pipeline, added, named, unnamed_tokens, num_vectors)
  named_pieces = {kind: text_of(token) for kind, token in named.items() if token}
  published_ids = find_published_ids(where, ids, named_pieces, model_config, config, sentinels)
  model = json.dumps(tokenizer_json, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
  original_files = {}
  for name in shared.PUBLISHED_FILES:
    if (directory / name).exists():
      original_files[name] = vocabularies.read_file(directory / name)
  return PublishedVocabulary(model.encode(), published_ids, original_files, where)


def _read_gguf(path: AnyPath, sentinels: str | None) -> PublishedVocabulary:
  """Read the tokenizer of a GGUF file; its original files are those that equal it."""
  where = f"vocabulary {path}"
  tokenizer_json, config = gguf_tokenizer.read_tokenizer(open_gguf(path).metadata, where)
  ids = dict(tokenizer_json["model"]["vocab"])
  named_pieces = {kind: config[f"{kind}_token"] for kind in NAMES if f"{kind}_token" in config}
  published_ids = find_published_ids(where, ids, named_pieces, {}, config, sentinels)
  original_files = {
    TOKENIZER: json.dumps(tokenizer_json, ensure_ascii=False).encode(),
    CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
  }
  pipeline = tokenizer_json | {"post_processor": None}
  model = json.dumps(pipeline, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
  return PublishedVocabulary(model.encode(), published_ids, original_files, where)


def _build_pipeline(
  directory: AnyPath,
  name: str | None,
  config: dict[str, Any],
  model_config: dict[str, Any],
  file: dict[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, str], list]:
  """Return (a `tokenizer.json` without added tokens, default special pieces, the model's tokens).

  The model's tokens are the pieces of a SentencePiece model into which no text is cut.

  Args:
    name: the class of the tokenizer.
    config, model_config, file: the files of the directory; `file` is the `tokenizer.json`, if any.

  Raises:
    UserError: the class is not supported, or its files are missing.
  """
  where = f"vocabulary {directory}"
  model_tokens = []
  if name in pipelines.PIPELINES:
    if file is None:
      pieces = _read_pieces(directory, name, config)
    else:
      pieces = pipelines.Pieces.of(file)
    if not pieces.vocab:
      raise UserError(f"{where}: found {TOKENIZER} without pieces; copy it again")
    pipeline = pipelines.PIPELINES[name](pieces, config)
    defaults = pipelines.DEFAULTS[name]
    model_tokens = pieces.added
  elif file is not None:
    pipeline = file
    defaults = pipelines.DEFAULTS_BY_MODEL_TYPE.get(model_config.get("model_type"), {})
  elif name in pipelines.PYTHON_CLASSES:
    raise UserError(
      f"{where}: found a {name}, which is a program without a {TOKENIZER}, and is not read "
      "here; python -m tools.convert_hf takes the weights, with the vocabulary of the recipe's "
      "data"
    )
  else:
    raise UserError(
      f"{where}: found no {TOKENIZER}, expected one, as the tokenizer's class "
      f"{name or 'is not named and'} can be read from no other file; save it with transformers' "
      f"save_pretrained, or name one of {', '.join(pipelines.PIPELINES)} as tokenizer_class in "
      f"{CONFIG}"
    )
  pipeline = pipeline | {"truncation": None, "padding": None, "post_processor": None}
  return pipeline, defaults, model_tokens


def _read_extra_tokens(config: dict[str, Any], name: str | None, where: str) -> list:
  """Return the special tokens of a config that have no name, such as T5's sentinels."""
  extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
  extra = list(extra.values() if isinstance(extra, dict) else extra)
  if name == "T5Tokenizer" and not any("<extra_id_" in text_of(token) for token in extra):
    extra += [f"<extra_id_{i}>" for i in range(_read_extra_ids(config, where))]
  return extra


def python_class(directory: AnyPath) -> str | None:
  """Return the class of a tokenizer if it is one of `pipelines.PYTHON_CLASSES`, else None."""
  if (directory / TOKENIZER).exists():
    return None
  config = tokenizer_files.read_file(directory, CONFIG) or {}
  model_config = tokenizer_files.read_file(directory, MODEL_CONFIG) or {}
  name = pipelines.choose_class(config, model_config, None)
  return name if name in pipelines.PYTHON_CLASSES else None


def _read_pieces(directory: AnyPath, name: str, config: dict[str, Any]) -> pipelines.Pieces:
  """Read pieces and merges from files other than `tokenizer.json`."""
  where = f"vocabulary {directory}"
  for file in SENTENCE_PIECE:
    if (directory / file).exists() and name in pipelines.SENTENCE_PIECE_CLASSES:
      return pipelines.Pieces.of_sentence_piece(
        vocabularies.read_file(directory / file),
        name,
        _read_extra_ids(config, where),
        f"vocabulary {directory / file}",
      )
  if name == "BertTokenizer" and (directory / "vocab.txt").exists():
    lines = _read_lines(directory / "vocab.txt")
    return pipelines.Pieces({line.rstrip(): i for i, line in enumerate(lines)})
  vocab = tokenizer_files.read_file(directory, VOCABULARY)
  if vocab is None or not (directory / "merges.txt").exists():
    raise UserError(
      f"vocabulary {directory}: found no files of a {name}, expected {TOKENIZER}, or vocab.json "
      "and merges.txt, vocab.txt, or a SentencePiece model, as its class has them; copy them there"
    )
  merges = []
  for line in _read_lines(directory / "merges.txt"):
    pair = line.split(" ")
    if len(pair) == 2 and not line.startswith("#version"):
      merges.append(pair)
  return pipelines.Pieces(vocab, merges)


def _read_legacy_added_tokens(
  directory: AnyPath, file: dict[str, Any], special: set[str]
) -> dict[int, "tokenizers.AddedToken"]:
  """Return the tokens added to the pieces, by id, from older files and the `tokenizer.json`.

  Args:
    file: the content of `tokenizer.json`.
    special: the special pieces that the files name.
  """
  tokens = {}
  for piece, i in (tokenizer_files.read_file(directory, ADDED) or {}).items():
    is_special = piece in special
    tokens[i] = _parse_token(
      {"content": piece, "normalized": not is_special, "special": is_special}
    )
  for token in file.get("added_tokens") or ():
    fields = {key: value for key, value in token.items() if key != "id"}
    tokens[token["id"]] = _parse_token(fields)
  return tokens


def _vector_count(model_config: dict[str, Any]) -> int | None:
  """Return the number of token vectors that a `config.json` states; None without one."""
  text_config = model_config.get("text_config")
  if not isinstance(text_config, dict):
    text_config = model_config
  size = text_config.get("vocab_size")
  return size if isinstance(size, int) else None


def _add_tokens(
  pipeline: dict[str, Any],
  added: dict[int, "tokenizers.AddedToken"],
  named: dict[str, Any],
  extra: list,
  vectors: int | None,
) -> tuple[dict[str, Any], dict[str, int]]:
  """Return (`tokenizer.json` with the tokens that `transformers` adds, the ids of all pieces).

  Special tokens without a vector are left out, such as the token of images in Gemma 3 1B.

  Args:
    pipeline: the `tokenizer.json` without added tokens.
    added: the added tokens by id.
    named: the special tokens by name.
    extra: special tokens without a name.
    vectors: the number of token vectors of the model, if known.
  """
  import tokenizers

  tokenizer = tokenizers.Tokenizer.from_str(json.dumps(pipeline))
  added_by_text = {token.content: token for token in added.values()}
  special_tokens = []
  for token in named.values():
    if token:
      special_tokens.append(added_by_text.get(text_of(token)) or _special_token(token))
  named_texts = {token.content for token in special_tokens}
  special_tokens += [_special_token(token) for token in extra if token]
  known_texts = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
  new_tokens = [token for _, token in sorted(added.items()) if token.content not in known_texts]
  known_texts |= {token.content for token in new_tokens}
  new_tokens += [token for token in special_tokens if token.content not in known_texts]
  for token in new_tokens:
    token.special = token.special or token.content in named_texts
  tokenizer.add_tokens(new_tokens)
  tokenizer.add_special_tokens(special_tokens)
  tokens = sorted(tokenizer.get_added_tokens_decoder().items())
  ids = tokenizer.get_vocab(with_added_tokens=True)
  if vectors is not None and all(token.special for i, token in tokens if i >= vectors):
    tokens = [(i, token) for i, token in tokens if i < vectors]
    ids = {piece: i for piece, i in ids.items() if i < vectors}
  added_tokens = []
  for i, token in tokens:
    fields = {field: getattr(token, field) for field in ("content", *FLAGS)}
    added_tokens.append({"id": i, **fields})
  return pipeline | {"added_tokens": added_tokens}, ids


def _parse_token(token):
  """Convert a token of a file: text, a list of tokens, or an object with its flags."""
  import tokenizers

  if isinstance(token, list):
    return [_parse_token(element) for element in token]
  if not isinstance(token, dict) or "content" not in token:
    return token
  fields = {key: token[key] for key in ("content", *FLAGS) if key in token}
  return tokenizers.AddedToken(**{"special": True} | fields)


def _special_token(token) -> "tokenizers.AddedToken":
  """Convert a special token of a file; text stands for a token without flags."""
  import tokenizers

  token = _parse_token(token)
  if isinstance(token, str):
    return tokenizers.AddedToken(token, special=True, normalized=False)
  return token


def _read_extra_ids(config: dict[str, Any], where: str) -> int:
  """Return the number of sentinels that `T5Tokenizer` adds."""
  extra_ids = config.get("extra_ids")
  if extra_ids is None:
    return shared.T5_EXTRA_IDS
  return shared.check_extra_ids(extra_ids, f"{where}, {CONFIG}")


def _read_lines(path: AnyPath) -> list[str]:
  """Return the lines of a file of pieces or merges."""
  try:
    return vocabularies.read_file(path).decode().removesuffix("\n").split("\n")
  except UnicodeDecodeError as error:
    raise UserError(f"{path}: found no UTF-8 text at byte {error.start}; copy it again") from None
