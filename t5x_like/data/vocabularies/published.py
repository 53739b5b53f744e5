"""Published tokenizers: a `tokenizer.json` with its special ids as they are, and the files it came from."""

import dataclasses
import hashlib
import json
from typing import Any

from t5x_like import file_names
from t5x_like.data.objects import Place
from t5x_like.data.vocabularies import storage
from t5x_like.data.vocabularies.tokenizer_json import MODEL_FILE, TokenizerVocabulary
from t5x_like.errors import UserError

KIND = "published"
BROUGHT = "huggingface."  # before the names of the files it came from, beside the others


@dataclasses.dataclass(frozen=True)
class Facts:
  """Ids that files beside the `tokenizer.json` decide, see `protocol.Vocabulary`; EOS may not be None."""

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
  """The tokenizer of a Hugging Face directory; ids of text are those of `transformers`, without special ids added.

  Text spelled like a special piece becomes that piece, as there, unless `tokenizer_config.json` says
  `split_special_tokens`. Lone surrogates, which `transformers` does not take, become U+FFFD.

  Args:
    model: a `tokenizer.json`, complete with added tokens.
    facts: its special ids.
    brought: the files it was made of, by name, for the way back.
    origin: what to call it in messages.

  Raises:
    UserError: the model is not a tokenizer.
  """

  def __init__(self, model: bytes, facts: Facts, brought: dict[str, bytes], origin: str = "tokenizer.json"):
    for name, value in dataclasses.asdict(facts).items():
      setattr(self, name, value)
    self._facts, self.brought = facts, brought
    _, added = self._open(model, origin)
    self._finish(added)
    content = json.dumps(dataclasses.asdict(facts), sort_keys=True)
    self.fingerprint = hashlib.sha256(f"{KIND}\n{content}\n".encode() + model).hexdigest()

  def save(self, directory) -> None:
    brought = {BROUGHT + name: data for name, data in self.brought.items()}
    storage.save(directory, KIND, self, {MODEL_FILE: self.model, **brought}, published=dataclasses.asdict(self._facts))


def load(directory: Place, manifest: dict[str, Any]) -> PublishedVocabulary:
  """Opens what `save` wrote."""
  facts = manifest.get("published")
  known = {field.name for field in dataclasses.fields(Facts)}
  if not isinstance(facts, dict) or set(facts) != known:
    raise UserError(f"{directory / storage.MANIFEST}: found no complete 'published', expected the file save wrote")
  facts = Facts(**facts | {"sentinels": tuple(facts["sentinels"])})
  brought = [name for name in manifest.get("files", {}) if name.startswith(BROUGHT)]
  for name in brought:
    file_names.check(f"{directory / storage.MANIFEST}: files", name.removeprefix(BROUGHT), "copy the vocabulary again")
  return PublishedVocabulary(
    storage.read(directory / MODEL_FILE),
    facts,
    {name.removeprefix(BROUGHT): storage.read(directory / name) for name in brought},
    str(directory / MODEL_FILE),
  )
