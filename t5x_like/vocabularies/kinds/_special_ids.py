"""The special ids of a published tokenizer, from the files beside its pieces."""

import dataclasses
import re

from t5x_like.errors import UserError
from t5x_like.vocabularies import CONFIG
from t5x_like.vocabularies.kinds._tokenizer_files import MODEL_CONFIG, NAMES

SPELLINGS = {  # used if no file names them
  "bos": ("<s>", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
  "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[EOS]"),
  "unk": ("<unk>", "[UNK]"),
  "sep": ("[SEP]", "<sep>"),
  "pad": ("<pad>", "[PAD]"),
  "cls": ("[CLS]", "<cls>"),
  "mask": ("[MASK]", "<mask>"),
}
SENTINELS = ("<extra_id_{}>", "\u2581<extra_id_{}>")
# model types whose decoder starts with EOS if their config does not say
ENDS_FIRST = ("bart", "mbart")


@dataclasses.dataclass(frozen=True)
class SpecialIds:
  """Ids decided by files beside the `tokenizer.json`, see `protocol.Vocabulary`; EOS must not be
  None."""

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


def find_special_ids(
  where: str,
  ids: dict[str, int],
  named: dict[str, str],
  model_config: dict,
  config: dict,
  pattern: str | None,
) -> SpecialIds:
  """Determine the special ids: as named, else from `config.json`, else by their usual spellings."""
  size = max(ids.values()) + 1
  found = {}
  for name in NAMES:
    other = model_config.get(f"{name}_token_id")
    other = other[0] if isinstance(other, list) and other else other
    spelled = next((ids[s] for s in SPELLINGS[name] if s in ids), None) if not named else None
    fits = isinstance(other, int) and 0 <= other < size
    found[name] = ids.get(named[name]) if name in named else other if fits else spelled
  eos = found["eos"] if found["eos"] is not None else found["sep"]
  if eos is None:
    raise UserError(
      f"{where}: found no end of text, expected eos_token or sep_token in {CONFIG}, or "
      f"eos_token_id in {MODEL_CONFIG}"
    )
  start = model_config.get("decoder_start_token_id")
  if start is None:
    start = (
      eos if model_config.get("model_type") in ENDS_FIRST or found["pad"] is None else found["pad"]
    )
  others = {eos, *(i for name, i in found.items() if name != "pad")}
  return SpecialIds(
    pad_id=None
    if found["pad"] in others
    else found["pad"],  # a piece that also stands for something else is not padding
    eos_id=eos,
    unk_id=eos if found["unk"] is None else found["unk"],
    bos_id=found["bos"],
    mask_id=found["mask"],
    cls_id=found["cls"],
    sep_id=found["sep"],
    decoder_start_id=start,
    sentinels=_sentinels(where, ids, pattern),
    specials_in_text=not config.get("split_special_tokens", False),
  )


def _sentinels(where: str, ids: dict[str, int], pattern: str | None) -> tuple[int, ...]:
  """Return the ids of a pattern's pieces, numbered from 0 (or from 1, if 0 is missing) up to the
  first gap."""
  if pattern is not None and pattern.count("{}") != 1:
    raise UserError(
      f"--sentinels={pattern}: expected a pattern with {{}} where the number "
      f"stands, as '<unused{{}}>'"
    )
  for form in SENTINELS if pattern is None else (pattern,):
    first = 0 if form.format(0) in ids else 1
    found = []
    while (piece := form.format(first + len(found))) in ids:
      found.append(ids[piece])
    if found:
      return tuple(found)
  if pattern is not None:
    known = {
      re.sub("[0-9]+", "{}", piece, count=1)
      for piece in ids
      if re.fullmatch(r"\W*[a-z_|]+[0-9]+\W*", piece)
    }
    raise UserError(f"{where}: found no piece {pattern.format(0)!r}, expected one{_such(known)}")
  return ()


def _such(known: set[str]) -> str:
  return f"; there are {', '.join(sorted(known)[:8])}" if known else ""
