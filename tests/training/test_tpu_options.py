"""The TPU compiler gets the options of its chip that the user does not set and libtpu knows."""

import re
import types

import jax
import pytest

from t5x_like.training import compilation, tpu_options

VMEM = "xla_tpu_scoped_vmem_limit_kib"


class LoweredStep:
  """A stand-in for a lowered step, compiled by a libtpu that knows only some options."""

  def __init__(self, known):
    self.known = known

  def compile(self, options):
    for name in options:
      if name not in self.known:
        raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: No such compile option: '{name}'")
    return dict(options)


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v5", "TPU v5p", "TPU v6 lite"])
def test_every_option_has_a_reason_and_a_measured_effect(kind):
  chosen = tpu_options.options_for_chip(kind, {})
  assert chosen[VMEM] == "98304"
  assert (len(chosen) == 1) == (kind == "TPU v5 lite")
  options = [option for options in tpu_options.OPTIONS.values() for option in options]
  for option in options:
    assert option.reason
    assert re.search(r"[\d.]+ -> [\d.]+ s", option.effect)


def test_chips_without_measurements_have_no_options():
  assert tpu_options.options_for_chip("TPU v3", {}) == {}
  assert tpu_options.options_for_chip("TPU7x", {}) == {}


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_options_that_the_user_sets_are_left_out(variable, monkeypatch):
  options = tpu_options.options_for_chip("TPU v6 lite", {variable: f"--one=1 --{VMEM}=65536"})
  expected = tpu_options.options_for_chip("TPU v6 lite", {})
  del expected[VMEM]
  assert options == expected


def test_options_that_libtpu_does_not_know_are_left_out():
  device = types.SimpleNamespace(platform="tpu", device_kind="TPU v6 lite")
  program, options = compilation.compile_lowered_step(
    LoweredStep({VMEM, "more"}), device, more=True
  )
  assert options == {VMEM: "98304"}
  assert program == options | {"more": True}
  with pytest.raises(jax.errors.JaxRuntimeError, match="'more'"):
    compilation.compile_lowered_step(LoweredStep({VMEM}), device, more=True)


def test_other_platforms_have_no_options():
  lowered = jax.jit(lambda x: x + 1).lower(1.0)
  program, options = compilation.compile_lowered_step(lowered, jax.devices("cpu")[0])
  assert program(1.0) == 2.0
  assert options == {}
