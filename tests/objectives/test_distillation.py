"""Distillation follows its formulas and never changes the teacher, for any pair of families."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from scipy import special

import tests.recipes.nano_image  # noqa: F401 -- registers the variant of the runs
from t5x_like import evaluate, train
from t5x_like.data.features import Feature
from t5x_like.data.images.layout import describe
from t5x_like.models import deit, vit
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.objectives.classification import Objective as Classification
from t5x_like.objectives.distillation import Objective
from t5x_like.report.writer import read_metrics
from tests.fine_tuning import fine_tuning
from tests.image_files import encode
from tests.models.families import Case, model
from tests.refusals import refuses
from tests.runs import assert_same_bits, load_tensors
from tools import convert_hf

pytestmark = pytest.mark.runs

NANO = "tests/recipes/nano_image.py"
B = 5
V = 7


def build_small_model(family, head, dims=Dims(16, 4, 4, 4, 32, 2), resolution=8, labels=V):  # noqa: B008 (frozen)
  first = next(iter(family.VARIANTS.values()))
  changed = dict(
    dims=dims, patch=4, resolution=resolution, channels=1, head={"name": head, "labels": labels}
  )
  name = family.__name__.rpartition(".")[2]
  return model(Case(name, name, dataclasses.replace(first, **changed)))


def make_batch():
  generator = np.random.default_rng(2)
  return {
    "image": generator.standard_normal((B, 8, 8, 1)).astype(np.float32),
    "label": generator.integers(0, V, B).astype(np.int32),
    "other_label": generator.integers(0, V, B).astype(np.int32),
    "label_share": generator.uniform(size=B).astype(np.float32),
    "example_weights": np.array([1, 1, 1, 0.5, 0], np.float32),
  }


@pytest.mark.parametrize("student", [deit, vit])
def test_losses_follow_the_paper_and_no_gradient_reaches_the_teacher(student):
  head = "distillation" if student is deit else "image_classification"
  model = build_small_model(student, head)
  data = make_batch()
  weights = data["example_weights"]
  model.reference = build_small_model(vit, "image_classification", Dims(24, 3, 3, 8, 32, 1))
  outputs = {name: np.asarray(x, np.float64) for name, x in model(data).items()}
  logits = outputs["logits"]
  class_logits = outputs.get("class_logits", logits)
  distillation_logits = outputs.get("distillation_logits", logits)
  np.testing.assert_allclose(logits, (class_logits + distillation_logits) / 2, rtol=1e-6)
  teacher_logits = np.asarray(model.reference(data)["logits"], np.float64)
  teacher_label = teacher_logits.argmax(-1)

  smoothing_per_class = 0.1 / V  # label smoothing is spread over all classes, as in torch and timm
  share = data["label_share"][:, None]
  one_hot, other_one_hot = np.eye(V)[[data["label"], data["other_label"]]]
  target = 0.9 * (share * one_hot + (1 - share) * other_one_hot) + smoothing_per_class
  likeliest = 0.9 + smoothing_per_class
  smoothed_one_hot_entropy = -likeliest * np.log(likeliest) - (
    V - 1
  ) * smoothing_per_class * np.log(smoothing_per_class)
  label_loss = -(target * special.log_softmax(class_logits, -1)).sum(-1) - smoothed_one_hot_entropy
  hard_loss = -special.log_softmax(distillation_logits, -1)[np.arange(B), teacher_label]
  log_p = special.log_softmax(teacher_logits / 3, -1)
  log_q = special.log_softmax(distillation_logits / 3, -1)
  soft_loss = 9 * (np.exp(log_p) * (log_p - log_q)).sum(-1)
  arrays = params.arrays(model)
  for kind, share, distilled in (("hard", 0.5, hard_loss), ("soft", 0.1, soft_loss)):
    objective = Objective(kind=kind, share=share, temperature=3.0, label_smoothing=0.1)

    def compute_loss(arrays, objective=objective):
      return objective(params.with_arrays(model, arrays), data)

    (loss, sums), gradients = jax.jit(jax.value_and_grad(compute_loss, has_aux=True))(arrays)
    expected = (weights * ((1 - share) * label_loss + share * distilled)).sum()
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert float(sums["distillation_loss"]) == pytest.approx((weights * distilled).sum(), rel=1e-4)
    assert float(sums["agreement"]) == (weights * (logits.argmax(-1) == teacher_label)).sum()
    assert set(sums) == {*Objective.reported_sums, "weights"}
    for name, gradient in gradients.items():
      assert np.any(gradient) != name.startswith("reference/"), name


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sigmoid_loss_is_a_mean_over_classes_where_a_mixed_image_has_two_labels(smoothing):
  model = build_small_model(vit, "image_classification")
  data = make_batch()
  data["label_share"] = np.linspace(0, 1, B).astype(np.float32)  # row 0 has `other_label` only
  data["other_label"][1] = data["label"][1]
  p = special.expit(np.asarray(model(data)["logits"], np.float64))
  share = data["label_share"][:, None]
  one_hot, other_one_hot = np.eye(V)[[data["label"], data["other_label"]]]
  target = np.maximum((share > 0) * one_hot, (share < 1) * other_one_hot)

  def approx_loss_sum(target):
    row_losses = -(target * np.log(p) + (1 - target) * np.log1p(-p)).mean(-1)
    return pytest.approx((row_losses * data["example_weights"]).sum(), rel=1e-5)

  total, sums = Classification(loss="sigmoid", label_smoothing=smoothing)(model, data)
  assert float(sums["loss"]) == approx_loss_sum(target)
  assert float(total) == approx_loss_sum((1 - smoothing) * target + smoothing / V)


@pytest.mark.parametrize(
  ("teacher", "changes", "words"),
  [
    (dict(resolution=4), {}, ("config.teacher", "[4, 4, 1]", "[8, 8, 1]")),
    (dict(labels=3), {}, ("config.teacher", "[3]", "[7]")),
    ({}, {"label": Feature((), "float32")}, ("labels that are classes", "float32")),
  ],
)
def test_teacher_with_other_inputs_or_labels_is_refused(teacher, changes, words):
  model = build_small_model(vit, "image_classification")
  model.reference = build_small_model(vit, "image_classification", **teacher)
  with refuses(*words):
    Objective.check(model, describe(8, 1, False) | changes)


def test_share_above_one_is_refused():
  with refuses("share 2.0", "temperature 3.0"):
    Objective(share=2.0)


def run_training(workdir, folder, *flags) -> int:
  """Train 4 steps on the images that are cached in a folder; return the exit code."""
  steps = ("--config.total_steps=4", "--config.eval_every=4", "--config.checkpoint.every=2")
  start = (f"--config={NANO}", f"--workdir={workdir}", f"--config.task.cache={folder}/cache")
  return train.main([*start, "--config.schedule.total_steps=4", *steps, *flags])


STUDENT = (
  "--config.model.name=deit",
  "--config.model.variant=deit-tiny",
  "--config.model.patch=4",
  "--config.model.resolution=16",
  "--config.model.channels=1",
  '--config.model.head={"name": "distillation", "labels": 10}',
  '--config.objective={"name": "distillation", "kind": "soft"}',
  '--config.evals={"image_classification": {}, "loss": {}}',
)


@pytest.fixture(scope="module")
def folder_with_teacher(tmp_path_factory, compiled):
  """Return a folder with a teacher that was trained for 2 steps."""
  folder = tmp_path_factory.mktemp("distillation")
  assert (
    run_training(folder / "teacher", folder, "--config.total_steps=2", "--config.evals={}") == 0
  )
  return folder


@pytest.fixture(scope="module")
def folder_with_student(folder_with_teacher):
  """Return the folder of the teacher, with a student that was distilled for 4 steps."""
  teacher = f"--config.teacher.workdir={folder_with_teacher}/teacher"
  assert run_training(folder_with_teacher / "student", folder_with_teacher, *STUDENT, teacher) == 0
  return folder_with_teacher


@pytest.mark.more
def test_teacher_weights_keep_every_bit(folder_with_student):
  student = folder_with_student / "student"
  teacher = load_tensors(folder_with_student / "teacher", 2)
  early = load_tensors(student, 2)
  late = load_tensors(student, 4)
  copies = [name for name in late if "reference" in name]
  assert len(copies) == sum(name.startswith("params/") for name in teacher)
  for name in copies:
    original = teacher[name.replace("params/reference/", "params/")].tobytes()
    assert early[name].tobytes() == original, name
    assert late[name].tobytes() == original, name
  encoder = [name for name in late if name.startswith("params/encoder")]
  assert any(early[name].tobytes() != late[name].tobytes() for name in encoder)
  metric_names = {name.split("/")[-1] for name in read_metrics(student)[-1]}
  assert {"top1", "distillation_loss", "agreement", "teacher_correct"} <= metric_names
  assert evaluate.main([f"--workdir={student}", "--evals=loss"]) == 0


@pytest.mark.more
def test_exported_student_has_no_teacher(folder_with_student, tmp_path):
  assert convert_hf.main([f"--input={folder_with_student}/student", f"--output={tmp_path}/hf"]) == 0
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["architectures"] == ["DeiTForImageClassificationWithTeacher"]


TEACHER = "--config.teacher.workdir={folder}/teacher"
TWO_CLASSES = ("--config.task.source=folders:train={folder}/classes", "--config.eval_split=train")
NO_TEACHER = {"workdir": "{folder}/none", "model": {"name": "vit", "variant": "nano"}}


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (STUDENT, "config.teacher.workdir: found None"),
    ((*STUDENT, "--config.teacher.workdir=x"), "config.teacher.workdir: x is neither"),
    (["--config.teacher.workdir=x"], "config.teacher: the objective 'classification' has none"),
    ((*STUDENT, TEACHER, *TWO_CLASSES), "10 classes, 0, 1, 2, 3, …, expected the 2 of the data"),
    ((*STUDENT, TEACHER, "--config.task.mean=[0.4]"), "config.task: found mean [0.4], std [0.5]"),
    (
      (*STUDENT, f"--config.teacher={json.dumps(NO_TEACHER)}", "--config.model.head.labels=1000"),
      "config.teacher.workdir: found no directory {folder}/none",
    ),
  ],
)
def test_unusable_teacher_is_refused(flags, message, folder_with_teacher, tmp_path, capsys):
  for name in "ab":
    (folder_with_teacher / "classes" / name).mkdir(parents=True, exist_ok=True)
    image = folder_with_teacher / "classes" / name / "1.png"
    image.write_bytes(encode(np.zeros((16, 16), np.uint8)))
  folder = str(folder_with_teacher)
  assert run_training(tmp_path, folder, *(flag.replace("{folder}", folder) for flag in flags)) == 2
  error = capsys.readouterr().err.strip()
  assert message.replace("{folder}", folder) in error
  assert "\n" not in error


@pytest.mark.more
def test_imported_teacher_gives_the_same_student_as_its_workdir(folder_with_student, tmp_path):
  folder = folder_with_student
  assert convert_hf.main([f"--input={folder}/teacher", f"--output={tmp_path}/hf"]) == 0
  flags = [f"--config={NANO}", f"--config.task.cache={folder}/cache"]
  assert convert_hf.main([f"--input={tmp_path}/hf", f"--output={tmp_path}/teacher", *flags]) == 0
  teacher = f"--config.teacher.workdir={tmp_path}/teacher"
  assert run_training(tmp_path / "student", folder, *STUDENT, teacher) == 0
  assert_same_bits(tmp_path / "student", folder / "student", 4)


@pytest.mark.more
def test_text_classifier_can_be_distilled(compiled, tmp_path):
  flags = [f"--config.{flag}" for flag in fine_tuning("classification", tmp_path)]
  flags = ["--config=configs/roberta/base.py:debug", "--config.evals={}", *flags]
  assert train.main([*flags, f"--workdir={tmp_path}/teacher"]) == 0
  flags += [
    '--config.objective={"name": "distillation"}',
    f"--config.teacher.workdir={tmp_path}/teacher",
  ]
  assert train.main([*flags, f"--workdir={tmp_path}/student"]) == 0
  assert any("train/distillation_loss" in row for row in read_metrics(tmp_path / "student"))
