"""Published tokenizers: a `tokenizer.json` with its own special ids, and its original files."""

import dataclasses
import hashlib
import json
from typing import Any

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.checked_json import kind_of
from t5x_like.files.objects import Place
from t5x_like.vocabularies import protocol, storage
from t5x_like.vocabularies.tokenizer_json import MODEL_FILE, TokenizerVocabulary

KIND = "published"
BROUGHT = "huggingface."  # prefix of the names of the original files


@dataclasses.dataclass(frozen=True)
class Facts:
  """Ids decided by files beside the `tokenizer.json`, see `protocol.Vocabulary`; EOS must not be None."""

  pad_id: int | None
  eos_id: int
  unk_id: int
  bos_id: int | None
  mask_id: int | None
  cls_id: int | None
  sep_id: int | None
  decoder_start_id: int
  sentinels: tuple[int, ...]
  specials_in_text: bool


class PublishedVocabulary(TokenizerVocabulary):
  """The tokenizer of a Hugging Face directory; text gets the same ids as in `transformers`, without added special ids.

  Text spelled like a special piece becomes that piece, as there, unless `tokenizer_config.json` sets
  `split_special_tokens`. Lone surrogates, which `transformers` does not accept, become U+FFFD.

  Args:
    model: a `tokenizer.json`, complete with added tokens.
    facts: the special ids.
    brought: the original files, by name, for export.
    origin: the name of the vocabulary in messages.

  Raises:
    UserError: the model is not a tokenizer.
  """

  def __init__(self, model: bytes, facts: Facts, brought: dict[str, bytes], origin: str = "tokenizer.json"):
    for name, value in dataclasses.asdict(facts).items():
      setattr(self, name, value)
    self._facts, self.brought = facts, brought
    _, added = self._open(model, origin)
    ids = [*facts.sentinels, *(getattr(facts, f"{name}_id") for name in ("pad", "eos", "unk", *protocol.SPECIAL))]
    if wrong := [i for i in ids if i is not None and not 0 <= i < self.size]:
      raise UserError(f"{origin}: found the special id {wrong[0]}, expected ids from 0 to {self.size - 1}")
    self._finish(added)
    content = json.dumps(dataclasses.asdict(facts), sort_keys=True)
    self.fingerprint = hashlib.sha256(f"{KIND}\n{content}\n".encode() + model).hexdigest()

  def save(self, directory) -> None:
    brought = {BROUGHT + name: data for name, data in self.brought.items()}
    storage.save(directory, KIND, self, {MODEL_FILE: self.model, **brought}, published=dataclasses.asdict(self._facts))


def load(directory: Place, manifest: dict[str, Any]) -> PublishedVocabulary:
  """Open a directory written by `save`."""
  where, files = f"{directory / storage.MANIFEST}", manifest.get("files", {})
  facts = Facts(**slots.fill(f"{where}: published", manifest.get("published"), Facts))
  if not isinstance(files, dict):
    raise UserError(f"{where}: found {kind_of(files)} in 'files', expected an object; copy the directory again")
  brought = [name for name in files if name.startswith(BROUGHT)]
  for name in brought:
    file_names.check(f"{where}: files", name.removeprefix(BROUGHT), "copy the vocabulary again")
  return PublishedVocabulary(
    storage.read(directory / MODEL_FILE),
    facts,
    {name.removeprefix(BROUGHT): storage.read(directory / name) for name in brought},
    str(directory / MODEL_FILE),
  )
