"""A program's work is counted exactly, and flagship recipes do no more work than `lowered.json`."""

import json
import pathlib

import pytest

from t5x_like import recipes
from t5x_like.planning import counts, steps
from t5x_like.planning.collectives import collectives
from t5x_like.planning.hlo import Program
from t5x_like.training.build import build_parts

STORED = pathlib.Path(__file__).with_name("lowered.json")
TEXT = """HloModule m

%fused (a: bf16[8,4], b: f32[4,6]) -> f32[8,6] {
  %a = bf16[8,4]{1,0} parameter(0)
  %b = f32[4,6]{1,0} parameter(1)
  %t = f32[4,6]{0,1} copy(%b)
  ROOT %y = f32[8,6]{1,0} dot(%a, %t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: bf16[8,4], w: f32[4,6]) -> f32[8,6] {
  %x = bf16[8,4]{1,0} parameter(0)
  %w = f32[4,6]{1,0} parameter(1)
  %u = bf16[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  %c = f32[4,6]{0,1} copy(%w), metadata={op_name="jit(step)/while/body/closed_call/dear"}, CYCLES
  %s = f32[6,4]{1,0} transpose(%c), dimensions={1,0}
  %z = f32[8,6]{1,0} fusion(%x, %c), kind=kOutput, calls=%fused
  ROOT %r = f32[8,6]{1,0} all-reduce(%z), replica_groups={}, to_apply=%add
}
""".replace("CYCLES", 'backend_config={"estimated_cycles":"500"}')


def test_counts_of_a_small_program_are_exact():
  program = Program(TEXT)
  counted = counts.counts(program, collectives(program, {"data": 2}))
  expected = {
    "flops": 2 * 8 * 6 * 4 + 2 * 4 * 4 * 8,
    "float32_flops": 2 * 8 * 6 * 4,
    "copied": 2 * 4 * 24,  # read and written; a copy within a fusion moves nothing
    "transposed": 2 * 4 * 24,
    "largest": 4 * 48,
    "waited": 4 * 48,
  }
  for name, amount in expected.items():
    assert counted[name] == pytest.approx(amount / 1e9, rel=1e-3), name
  (slowest,) = counts.slowest_operations(program, clock=1000.0)
  assert slowest == {"seconds": 0.5, "times": 1, "name": "dear", "type": "f32[4,6]"}


def test_counts_that_grew_are_listed_and_small_changes_are_not():
  before = {"flops": 100.0, "copied": 0.0, "waited": 5.0}
  assert (
    counts.describe_growth(before, {"flops": 100.9, "copied": 0.0009, "waited": 4.0, "moved": 9.0})
    == []
  )
  assert counts.describe_growth(before, {"flops": 102.0, "copied": 0.1, "waited": 5.0}) == [
    "flops 100.0 -> 102.0",
    "copied 0.0 -> 0.1",
  ]


@pytest.mark.parametrize("recipe", json.loads(STORED.read_text()))
def test_flagship_recipes_do_no_more_work_than_is_stored(recipe):
  """Programs are compared before compilation; `make plans` compares the compiled ones."""
  options = (
    "model.dtype=bfloat16",
    "model.layers=scan",
    "model.remat=minimal",
    "mesh.fsdp=8",
    "mesh.data=1",
  )
  config, task = steps.resolve(recipes.load(f"{recipe}:debug", options), "cpu", None)
  lowered = steps.make("train", config, build_parts(config), task).lower()
  program = Program(lowered.compiler_ir("hlo").get_hlo_module().to_string())
  # Counts are in GFLOP and GB; the file holds MFLOP and MB, because the programs are small.
  counted = {name: 1e3 * value for name, value in counts.counts(program, []).items()}
  stored = json.loads(STORED.read_text())[recipe]
  assert not counts.describe_growth(stored, counted), (
    f"if this growth is intended, store {counted} in {STORED}"
  )
