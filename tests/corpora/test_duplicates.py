"""Duplicates that a preparation removes, with any engine, are those of a loop over the corpus."""

from collections import Counter

import numpy as np
import pytest

import json_lines
from preparations import files_of, prepare, texts_of
from t5x_like.corpora.cleaning import _repeats, exact, near, spans
from t5x_like.corpora.engines import processes
from t5x_like.segmentation import sentences
from t5x_like.store.tokens import TokenStore


def words(seed: int, count: int = 300) -> list[str]:
  return [f"w{i}" for i in np.random.default_rng(seed).integers(0, 5000, count)]


def remove_duplicates(texts, steps, min_sentences=3):
  """Remove duplicates by loops over the corpus.

  Returns: (the remaining texts, removed pages by reason, removed spans by reason).
  """
  counts = Counter()
  removed = Counter()
  signatures = set()
  numbers = []
  for number, text in enumerate(texts):
    (signature,) = exact.Step().sign(text).tolist()
    if "exact" in steps and signature in signatures:
      counts["exact duplicate"] += 1
    else:
      numbers.append(number)
    signatures.add(signature)
  if "near" in steps:
    representatives = {}
    candidates = numbers
    numbers = []
    for number in candidates:
      minhash = near.minhash(texts[number])
      is_near_duplicate = False
      for key in near.band_keys(minhash).tolist():
        earlier_minhashes = representatives.setdefault(key, [])
        if any(np.mean(earlier == minhash) >= 0.8 for earlier in earlier_minhashes):
          is_near_duplicate = True
        else:
          earlier_minhashes.append(minhash)
      counts["near duplicate"] += is_near_duplicate
      numbers += [number] * (not is_near_duplicate)
  signatures = set()
  texts_left = []
  for number in numbers:
    text = texts[number]
    if "spans" in steps:
      repeated = []
      for span in spans.Step().sign(text).tolist():
        repeated.append(span in signatures)
        signatures.add(span)
      removed["span: repeated"] += sum(repeated)
      if any(repeated):
        text = spans.Step().remove_marked(text, np.array(repeated, bool))[0]
      if any(repeated) and len(list(sentences(text))) < min_sentences:
        counts["too short without repeated spans"] += 1
        continue
    texts_left.append(text)
  # unary plus drops the reasons that never occurred
  return texts_left, dict(+counts), dict(+removed)


def corpus(seed: int = 0) -> list[str]:
  """Return pages with copies, near copies, near copies of these, and passages in common."""
  generator = np.random.default_rng(seed)
  texts = []
  for i in range(300):
    kind = generator.integers(0, 6)
    text = words(int(generator.integers(2**31)), int(generator.integers(30, 200)))
    page = [[*text[start : start + 8]] for start in range(0, len(text), 8)]
    if texts and kind in (1, 2, 3):
      earlier_text = texts[int(generator.integers(len(texts)))]
      if kind == 1:
        texts.append(earlier_text.upper())
        continue
      page = [sentence.strip(" .").split() for sentence in sentences(earlier_text)]
      if kind == 2:  # similar by about 0.8, more or less
        for _ in range(int(generator.integers(1, 4))):
          page[int(generator.integers(len(page)))][0] = f"changed{i}"
      else:
        page = page[: max(3, len(page) // 2)] + [[f"new{i}"] * 4] * 3
    texts.append(" ".join(" ".join(sentence) + "." for sentence in page))
  return texts


def entries(generator, count: int, keys: int, places: int):
  """Return entries of different places in random order."""
  places_of_entries = generator.permutation(places)[:count]
  part = places_of_entries % 3
  key = generator.integers(0, keys, count).astype(np.uint64)
  return {"part": part, "key": key, "position": places_of_entries}


@pytest.mark.parametrize("count", [0, 1, 2, 400])
def test_entries_are_marked_as_by_a_loop_in_the_order_of_the_corpus(count, monkeypatch):
  generator = np.random.default_rng(count)
  key_entries = entries(generator, count, 40, 1_000)
  order = sorted(range(count), key=lambda n: (key_entries["part"][n], key_entries["position"][n]))
  keys = key_entries["key"].tolist()
  times = Counter(key_entries["key"].tolist())
  firsts = {key: next(n for n in order if keys[n] == key) for key in times}
  assert _repeats.mark_repeats(**key_entries).tolist() == [
    firsts[key] != n for n, key in enumerate(keys)
  ]
  assert near.mark_shared(**key_entries).tolist() == [times[key] > 1 for key in keys]
  minhash = generator.integers(0, 2, (count, 16)).astype(np.uint32)
  monkeypatch.setattr(near, "_ROWS", 7)
  for max_representatives in (3, 1_000):
    monkeypatch.setattr(near, "REPRESENTATIVES", max_representatives)
    expected = [False] * count
    representatives = {}
    for n in order:
      earlier_minhashes = representatives.setdefault(keys[n], [])
      expected[n] = any(np.mean(earlier == minhash[n]) >= 0.8 for earlier in earlier_minhashes)
      if not expected[n] and len(earlier_minhashes) < max_representatives:
        earlier_minhashes.append(minhash[n])
    assert near.mark_similar(**key_entries, minhash=minhash).tolist() == expected


@pytest.mark.parametrize("steps", ["exact", "near", "spans", "exact,near", "c4,exact,near,spans"])
def test_a_preparation_removes_what_a_loop_removes(steps, tmp_path, monkeypatch):
  texts = corpus()
  for part in range(4):
    rows = [{"text": text} for text in texts[part * 75 : part * 75 + 75]]
    json_lines.write(tmp_path / f"{part}.jsonl", rows)
  source = f"jsonl:{tmp_path}/*.jsonl"
  flags = ["--split=train", "--part_bytes=1", "--shard_tokens=20000", f"--clean={steps}"]
  flags += ["--min_words=1"] * ("c4" in steps)
  monkeypatch.setattr(processes, "_RANGE_BYTES", 10_000)  # for many ranges of keys
  assert prepare(source, tmp_path / "here", *flags) == 0
  store = TokenStore.open(tmp_path / "here" / "train")
  min_sentences = 3 if "c4" in steps else 1
  expected_texts, skipped, removed = remove_duplicates(texts, steps.split(","), min_sentences)
  assert texts_of(store) == expected_texts
  counts = store.manifest.source["counts"]
  assert store.manifest.skipped == skipped
  assert counts["removed_within_documents"] == removed
  assert len(skipped) + len(removed) >= steps.count(",")
  assert store.manifest.num_shards > 6
  if steps.count(",") < 3:
    return
  pytest.importorskip("apache_beam")
  beam = ["--engine=beam", "--runner=FnApiRunner"]
  assert prepare(source, tmp_path / "beam", *flags, *beam) == 0
  assert files_of(tmp_path / "beam") == files_of(tmp_path / "here")


def test_minhash_estimates_the_similarity_of_shingles():
  base = words(3, 2000)
  half_changed = base[:1000] + words(4, 1000)
  a = near.minhash(" ".join(base))
  b = near.minhash(" ".join(half_changed))
  assert abs(np.mean(a == b) - 1 / 3) < 0.13  # 3 standard deviations of 128 draws


def test_the_first_of_repeated_spans_of_three_sentences_stays():
  common = "One common thing was said. Then came another. And so it ended."
  texts = [
    f"First of all this. {common}",
    f"{common} Something new came after it.",
    f"{common} {common}",
  ]
  texts_left, _, removed = remove_duplicates(texts, ("spans",), 1)
  assert texts_left[:2] == [texts[0], "Something new came after it."]
  assert removed == {"span: repeated": 3}
