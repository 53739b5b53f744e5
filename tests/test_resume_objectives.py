"""A run killed at random moments ends with the bits of one that was not, for every objective."""

import signal
import time

import pytest

from t5x_like import recipes, slots
from tests import topics
from tests.drills.moments import seeded_random
from tests.fine_tuning import FINE_TUNING, fine_tuning
from tests.runs import Process, assert_same_bits, count_metrics, losses, run, train

STEPS = 12
FLAGS = (
  f"--config.total_steps={STEPS}",
  "--config.eval_every=5",
  "--config.checkpoint.every=2",
  "--config.checkpoint.keep_last=20",
  "--config.peak_flops=1e11",
)
# one of every objective, of every way to make its examples, and of cores and layers that keep a
# state
RECIPES = {
  "configs/bart/base.py": (),
  "configs/bert/base.py": ("--config.phases.short.until=7",),
  "configs/bert/base.py:static,whole_words": (),
  "configs/bert/left_to_right.py": (),
  "configs/bert/spanbert.py": (),
  "configs/deberta/base.py": (),
  "configs/deepseek/v3.py": (),
  "configs/deit/base.py": (),
  "configs/electra/small.py": (),
  "configs/finetune/chat.py:lora": (),
  "configs/finetune/decoder.py": (),
  "configs/gpt/gpt2_124m.py": (),
  "configs/llama/8b.py": (),
  "configs/mt5/base.py": (),
  "configs/qwen/distil.py": (),
  "configs/qwen/distil.py:cached": (),
  "configs/roberta/base.py": (),
  "configs/switch/base.py": (),
  "configs/t5/architectures.py:language_model": (),
  "configs/t5/architectures.py:prefix_lm": (),
  "configs/t5/base.py": (),
  "configs/t5/finetune.py": (),
  "configs/t5/prefix_lm.py": (),
  "configs/t5/prefix_lm.py:encoder_decoder": (),
  "configs/t5/ul2.py": (),
  "configs/vit/base.py": (
    '--config.task.mixing={"mixup": 0.8, "cutmix": 1.0}',
    "--config.model.drop_path=0.2",
  ),
  "configs/vit/mae.py": (),
  "configs/vit/masked_patches.py": (),
  "configs/xlm/tlm.py": (),
  "configs/xlnet/base.py": (),
  "configs/clip/base.py": ("--config.objective.chunks=2",),
  "configs/siglip/base.py": (),
} | topics.cases("RESUMED_RECIPES")
STYLES = ("bert_style", "mass_style", "replace_spans", "drop_tokens", "deshuffling")
ADAMW = (
  "--config.model.dtype=bfloat16",
  '--config.optimizer={"name": "adamw"}',
  "--config.accumulation_steps=2",
  "--config.clip_norm=1.0",
  '--config.schedule={"name": "linear", "learning_rate": 0.001, "warmup_steps": 4}',
)


def cases():
  yield from RECIPES.items()
  yield "configs/t5/base.py", ADAMW
  for style in STYLES:
    yield (
      "configs/t5/base.py",
      (
        "--config.task.name=denoising",
        "--config.task.store=builtin",
        f"--config.task.style={style}",
        "--config.task.inputs_length=64",
      ),
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
  return {"cache": tmp_path_factory.mktemp("compiled")}


def test_every_objective_is_here():
  from t5x_like import objectives

  names = {recipes.load(recipe).objective.name for recipe in RECIPES}
  assert names | set(FINE_TUNING) == set(slots.names(objectives))


@pytest.mark.heavy
@pytest.mark.parametrize(("recipe", "flags"), cases())
def test_a_pretraining_killed_at_random_ends_with_the_same_bits(recipe, flags, quick, tmp_path):
  killed_at_random(f"{recipe}{',' if ':' in recipe else ':'}debug", flags, quick, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("name", FINE_TUNING)
def test_a_fine_tuning_killed_at_random_ends_with_the_same_bits(name, quick, tmp_path):
  flags = [f"--config.{override}" for override in fine_tuning(name, tmp_path)]
  killed_at_random("configs/roberta/base.py:debug", flags, quick, tmp_path)


def killed_at_random(recipe, flags, quick, tmp_path):
  flags = (*FLAGS, *flags)
  code, output = run(train(tmp_path / "whole", *flags, recipe=recipe), **quick)
  assert code == 0, output
  workdir = tmp_path / "killed"
  kills = 0
  code = None
  draw = seeded_random(recipe)
  while code != 0:
    at = count_metrics(workdir) + draw.randint(1, 4)
    with Process(train(workdir, *flags, recipe=recipe), **quick) as process:
      process.until(lambda: kills >= 3 or count_metrics(workdir) >= at)
      if kills < 3:
        time.sleep(draw.uniform(0, 0.05))
        process.send(draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
      code, output = process.end()
    assert code in (0, 75, -signal.SIGKILL), output
    kills += 1
  assert losses(workdir) == losses(tmp_path / "whole")
  assert_same_bits(workdir, tmp_path / "whole", STEPS)
