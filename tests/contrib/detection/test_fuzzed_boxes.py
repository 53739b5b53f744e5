"""Images with boxes, damaged, lying or hostile: one line, or a store that counts skipped ones."""

import random

import pytest

from t5x_like.contrib.detection.data import boxes
from t5x_like.corpora.sources import open_source
from t5x_like.data.images import store
from tests.fuzz import harness, mutations, test_images

pytestmark = pytest.mark.runs

VOC = (
  "<annotation><size><width>10</width><height>12</height><depth>3</depth></size><object><name>cat</name>"
  "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>8</xmax><ymax>9</ymax></bndbox></object></annotation>"
)
BOMB = (
  '<!DOCTYPE a [<!ENTITY a0 "cat">'
  + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
  + "]>"
)
HOSTILE_XML = {
  "an entity bomb": BOMB + VOC.replace("cat", "&a9;"),
  "an external entity": '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
  + VOC.replace("cat", "&x;"),
  "a quadratic bomb": f'<!DOCTYPE a [<!ENTITY a "{"x" * 100_000}">]>'
  + VOC.replace("cat", "&a;" * 20_000),
  "an external DTD": '<!DOCTYPE a SYSTEM "file:///etc/passwd">' + VOC,
  "deep": "<a>" * 200_000 + "</a>" * 200_000,
  "NaN": VOC.replace("<xmin>1", "<xmin>nan"),
  "infinite": VOC.replace("<xmax>8", "<xmax>1e400"),
  "huge": VOC.replace("<width>10", f"<width>{'9' * 5000}"),
  "a large side": VOC.replace("<width>10", "<width>1" + "0" * 400),
  "no size": VOC.replace("<width>10</width>", ""),
  "negative": VOC.replace("<height>12", "<height>-12"),
  "no name": VOC.replace("<name>cat</name>", "<name/>"),
  "UTF-16": VOC,
}


def write_voc(rng: random.Random, folder) -> str:
  for name in ("Annotations", "JPEGImages"):
    (folder / name).mkdir()
  kind = rng.choice(("hostile", "hostile", "bent", "picture"))
  text = VOC.encode()
  data = test_images.encode("JPEG")
  change = ""
  if kind == "hostile":
    change = rng.choice(sorted(HOSTILE_XML))
    text = HOSTILE_XML[change].encode("utf-16" if change == "UTF-16" else "utf-8")
  elif kind == "bent":
    text, change = mutations.mutate_bytes(text, rng)
  else:
    data, change = test_images.picture(rng)
  (folder / "Annotations" / "1.xml").write_bytes(VOC.encode())
  (folder / "JPEGImages" / "1.jpg").write_bytes(test_images.encode("JPEG"))
  (folder / "Annotations" / "2.xml").write_bytes(text)
  (folder / "JPEGImages" / "2.jpg").write_bytes(data)
  return change


def write_coco(rng: random.Random, folder) -> str:
  tree = {
    "images": [{"id": n, "file_name": f"{n}.jpg", "height": 12, "width": 10} for n in (1, 2)],
    "annotations": [
      {"id": n, "image_id": n, "category_id": 1, "bbox": [1, 2, 5, 6], "area": 30, "iscrowd": 0}
      for n in (1, 2)
    ],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
  }
  content = mutations.json_text(tree)
  data = test_images.encode("JPEG")
  change = ""
  kind = rng.choice(("tree", "tree", "tree", "bent", "deep", "picture"))
  if kind == "tree":
    changed, change = mutations.mutate_json(tree, rng, rng.choice((1, 1, 2, 3)))
    content = mutations.json_text(changed)
  elif kind == "bent":
    content, change = mutations.mutate_bytes(content, rng)
  elif kind == "deep":
    content = mutations.DEEP
    change = "deep"
  else:
    data, change = test_images.picture(rng)
  (folder / "boxes.json").write_bytes(content)
  (folder / "1.jpg").write_bytes(test_images.encode("JPEG"))
  (folder / "2.jpg").write_bytes(data)
  return change


WRITERS = {"voc": write_voc, "coco": write_coco}
SOURCES = {"voc": "voc:{0}", "coco": "coco:{0}/boxes.json"}


def prepare(source: str, out) -> None:
  """Prepare the images of a source, and read their boxes."""
  notes, _ = boxes.make_notes(open_source(source), "objects", "image", ())
  image_store = store.open_store(source, "train", label_field=None, notes=notes, cache=str(out))
  boxes.read_boxes(image_store).pad_learned(100)


def case(rng: random.Random, root):
  return test_images.draw_case(rng, root, WRITERS, SOURCES, prepare)


@pytest.mark.parametrize("layout", WRITERS)
def test_whole_boxes_are_read(layout, tmp_path):
  never = test_images.Never(0)
  _, call = test_images.draw_case(never, tmp_path, {layout: WRITERS[layout]}, SOURCES, prepare)
  call(tmp_path / "out")


def test_a_few_mutated_boxes_are_read_or_refused(tmp_path):
  harness.run_cases(case, tmp_path, range(15))


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(2000, 2300, 60))
def test_many_mutated_boxes_are_read_or_refused(first, tmp_path):
  harness.run_cases(case, tmp_path, range(first, first + 60))
