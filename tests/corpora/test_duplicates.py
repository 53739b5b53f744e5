"""Duplicates: what the group-bys of any engine mark is what a loop over the corpus finds."""

import json
from collections import Counter

import numpy as np
import pytest

from t5x_like.corpora.cleaning import _repeats, exact, near, spans
from t5x_like.corpora.engines import processes
from t5x_like.segmentation import sentences
from t5x_like.store.tokens import TokenStore
from tools import prepare_data


def words(seed: int, count: int = 300) -> list[str]:
  return [f"w{i}" for i in np.random.default_rng(seed).integers(0, 5000, count)]


def by_hand(texts, steps, min_sentences=3):
  """The remaining texts, and how many pages and spans are removed, by loops over the corpus."""
  counts = Counter()
  removed = Counter()
  seen = set()
  kept = []
  for number, text in enumerate(texts):
    (signature,) = exact.Step().sign(text).tolist()
    if "exact" in steps and signature in seen:
      counts["exact duplicate"] += 1
    else:
      kept.append(number)
    seen.add(signature)
  if "near" in steps:
    representatives = {}
    live = kept
    kept = []
    for number in live:
      minhash = near.minhash(texts[number])
      like = False
      for key in near.band_keys(minhash).tolist():
        others = representatives.setdefault(key, [])
        if any(np.mean(other == minhash) >= 0.8 for other in others):
          like = True
        else:
          others.append(minhash)
      counts["near duplicate"] += like
      kept += [number] * (not like)
  seen = set()
  left = []
  for number in kept:
    text = texts[number]
    if "spans" in steps:
      repeated = []
      for span in spans.Step().sign(text).tolist():
        repeated.append(span in seen)
        seen.add(span)
      removed["span: repeated"] += sum(repeated)
      if any(repeated):
        text = spans.Step().remove_marked(text, np.array(repeated, bool))[0]
      if any(repeated) and len(list(sentences(text))) < min_sentences:
        counts["too short without repeated spans"] += 1
        continue
    left.append(text)
  return (
    left,
    {reason: n for reason, n in counts.items() if n},
    {reason: n for reason, n in removed.items() if n},
  )


def corpus(seed: int = 0) -> list[str]:
  """Pages with copies, near copies, near copies of those, and passages in common."""
  generator = np.random.default_rng(seed)
  texts = []
  for i in range(300):
    kind = generator.integers(0, 6)
    text = words(int(generator.integers(2**31)), int(generator.integers(30, 200)))
    page = [[*text[start : start + 8]] for start in range(0, len(text), 8)]
    if texts and kind in (1, 2, 3):
      other = texts[int(generator.integers(len(texts)))]
      if kind == 1:
        texts.append(other.upper())
        continue
      page = [sentence.strip(" .").split() for sentence in sentences(other)]
      if kind == 2:  # similar by about 0.8, more or less
        for _ in range(int(generator.integers(1, 4))):
          page[int(generator.integers(len(page)))][0] = f"changed{i}"
      else:
        page = page[: max(3, len(page) // 2)] + [[f"new{i}"] * 4] * 3
    texts.append(" ".join(" ".join(sentence) + "." for sentence in page))
  return texts


def entries(generator, count: int, keys: int, places: int):
  """Entries of different places, in any order."""
  place = generator.permutation(places)[:count]
  part = place % 3
  key = generator.integers(0, keys, count).astype(np.uint64)
  return {"part": part, "key": key, "place": place}


@pytest.mark.parametrize("count", [0, 1, 2, 400])
def test_comparisons_are_those_of_a_loop(count, monkeypatch):
  generator = np.random.default_rng(count)
  found = entries(generator, count, 40, 1_000)
  order = sorted(range(count), key=lambda n: (found["part"][n], found["place"][n]))
  keys = found["key"].tolist()
  times = Counter(found["key"].tolist())
  firsts = {key: next(n for n in order if keys[n] == key) for key in times}
  assert _repeats.mark_repeats(**found).tolist() == [firsts[key] != n for n, key in enumerate(keys)]
  assert near.mark_shared(**found).tolist() == [times[key] > 1 for key in keys]
  minhash = generator.integers(0, 2, (count, 16)).astype(np.uint32)
  monkeypatch.setattr(near, "_ROWS", 7)
  for most in (3, 1_000):
    monkeypatch.setattr(near, "REPRESENTATIVES", most)
    expected = [False] * count
    representatives = {}
    for n in order:
      others = representatives.setdefault(keys[n], [])
      expected[n] = any(np.mean(other == minhash[n]) >= 0.8 for other in others)
      if not expected[n] and len(others) < most:
        others.append(minhash[n])
    assert near.mark_similar(**found, minhash=minhash).tolist() == expected


@pytest.mark.parametrize("steps", ["exact", "near", "spans", "exact,near", "c4,exact,near,spans"])
def test_a_preparation_removes_what_a_loop_removes(steps, tmp_path, monkeypatch):
  texts = corpus()
  for part in range(4):
    lines = (json.dumps({"text": text}) for text in texts[part * 75 : part * 75 + 75])
    (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
  flags = [
    f"--source=jsonl:{tmp_path}/*.jsonl",
    "--vocabulary=bytes",
    "--split=train",
    "--part_bytes=1",
    f"--clean={steps}",
  ]
  flags += ["--workers=1", "--shard_tokens=20000", *["--min_words=1"] * ("c4" in steps)]
  monkeypatch.setattr(processes, "_RANGE_BYTES", 10_000)  # so there are many ranges of keys
  assert prepare_data.main([*flags, f"--output={tmp_path}/here"]) == 0
  store = TokenStore.open(tmp_path / "here" / "train")
  left, skipped, removed = by_hand(texts, steps.split(","), 3 if "c4" in steps else 1)
  stream = store.windows([0], store.num_tokens)[0]
  found = [store.vocabulary.decode(ids) for ids in np.split(stream, store.document_ends()[:-1])]
  assert found == left and store.num_tokens == sum(len(text) for text in left)
  counts = store.manifest.source["counts"]
  assert store.manifest.skipped == skipped and counts["removed_within_documents"] == removed
  assert len(skipped) + len(removed) >= steps.count(",") and store.manifest.num_shards > 6
  if steps.count(",") < 3:
    return
  pytest.importorskip("apache_beam")
  assert (
    prepare_data.main(
      [*flags, f"--output={tmp_path}/beam", "--engine=beam", "--runner=FnApiRunner"]
    )
    == 0
  )
  for file in (tmp_path / "here").rglob("*"):
    if file.is_file():
      assert (
        file.read_bytes() == (tmp_path / "beam" / file.relative_to(tmp_path / "here")).read_bytes()
      ), file


def test_minhash_estimates_the_similarity_of_shingles():
  base = words(3, 2000)
  mixed = base[:1000] + words(4, 1000)
  a, b = (near.minhash(" ".join(one)) for one in (base, mixed))
  assert abs(np.mean(a == b) - 1 / 3) < 0.13  # 3 standard deviations of 128 draws


def test_of_repeated_three_sentences_the_first_stays():
  common = "One common thing was said. Then came another. And so it ended."
  texts = [
    f"First of all this. {common}",
    f"{common} Something new came after it.",
    f"{common} {common}",
  ]
  left, _, removed = by_hand(texts, ("spans",), 1)
  assert left[:2] == [texts[0], "Something new came after it."] and removed == {"span: repeated": 3}
