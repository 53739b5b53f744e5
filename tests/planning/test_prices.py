"""A file of prices is read as written, and refused in one line where it cannot be meant."""

import json

import pytest

from t5x_like import plan
from t5x_like.errors import UserError
from t5x_like.planning import child, hardware, prices

TABLE = 'currency = "USD"\n[per_chip_hour]\nv5e = 1.20\nv6e = 2\n'


def read(tmp_path, text):
  path = tmp_path / "prices.toml"
  path.write_text(text)
  return prices.read_prices(str(path))


def test_prices_are_read_and_multiply_chip_hours(tmp_path):
  table = read(tmp_path, TABLE)
  assert table == prices.Prices("USD", {"v5e": 1.20, "v6e": 2.0})
  assert table.price_of("v5e", 16.0) == pytest.approx(16 * 1.20)


def test_a_bill_counts_chips_not_devices_and_whole_steps(tmp_path):
  """A chip of TPU7x is two devices."""
  table = prices.Prices("EUR", {"tpu7x": 10.0})
  topology = hardware.parse("tpu7x:2x2x1")
  plan = {"devices": 8, "tokens": 1000, "total_steps": 7200, "seconds": {"step": 0.5}}
  bill = prices.plan_bill(plan, topology, prices.Quantity(None, None, table))
  assert bill == {
    "steps": 7200,
    "chips": 4,
    "hours": 1.0,
    "chip_hours": 4.0,
    "price": 40.0,
    "currency": "EUR",
  }
  by_tokens = prices.plan_bill(plan, topology, prices.Quantity(None, 1001.0, None))
  assert by_tokens["steps"] == 2
  assert "price" not in by_tokens
  with pytest.raises(UserError, match="total_steps: found None"):
    prices.plan_bill(plan | {"total_steps": None}, topology, prices.Quantity(None, None, None))


@pytest.mark.parametrize(
  "text, words",
  [
    ("currency = \n", "cannot be read"),
    (TABLE.replace("currency", "curency"), "curency: unknown key (did you mean 'currency'?)"),
    (TABLE.partition("\n")[2], "currency: missing"),
    ('currency = "USD"\n', "per_chip_hour: missing"),
    ('currency = "USD"\nper_chip_hour = 3\n', "per_chip_hour: found 3 of type int"),
    ('currency = "USD"\n[per_chip_hour]\n', "per_chip_hour: empty"),
    (TABLE.replace('"USD"', "3"), "currency: found 3"),
    (TABLE.replace("USD", "U\\nD"), "expected a name such as USD"),
    (TABLE.replace("1.20", '"1.20"'), "per_chip_hour.v5e: found '1.20' of type str"),
    (TABLE.replace("1.20", "-1.0"), "per_chip_hour.v5e: found -1.0"),
    (TABLE.replace("1.20", "nan"), "per_chip_hour.v5e: found nan"),
    (TABLE.replace("1.20", "inf"), "per_chip_hour.v5e: found inf"),
    (TABLE.replace("1.20", "true"), "per_chip_hour.v5e: found True"),
  ],
)
def test_a_wrong_file_of_prices_is_refused_in_one_line(tmp_path, text, words):
  with pytest.raises(UserError) as error:
    read(tmp_path, text)
  assert words in str(error.value)
  assert str(error.value).startswith(str(tmp_path / "prices.toml"))
  assert len(str(error.value).splitlines()) == 1


def test_a_chip_without_a_price_is_refused(tmp_path):
  with pytest.raises(UserError, match="per_chip_hour.v5p: missing.*prices of v5e, v6e"):
    read(tmp_path, TABLE).price_of("v5p", 1.0)


def test_a_missing_file_is_refused(tmp_path):
  with pytest.raises(UserError, match="none.toml: prices cannot be read"):
    prices.read_prices(str(tmp_path / "none.toml"))


RECIPE = "--config=tests/recipes/nano.py"


def answer(request, timeout_seconds, report_progress):
  """Return a plan of half a second a step, or of a quarter on v6e."""
  seconds = 0.25 if request.topology.startswith("v6e") else 0.5
  return {
    "step": "train",
    "config": request.config,
    "overrides": [],
    "topology": request.topology,
    "verdict": "fits",
    "fits": not request.topology.endswith("1x1"),
    "memory": {},
    "devices": 16,
    "tokens": 4096,
    "total_steps": 7200,
    "seconds": {"step": seconds},
    "mfu": 0.5,
    "total_gigabytes": 1.0,
  }


def test_topologies_are_compared_by_price(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(child, "plan", answer)
  path = tmp_path / "prices.toml"
  path.write_text(TABLE)
  output = tmp_path / "plans.json"
  flags = ("--topology=v5e:4x4,v6e:4x4", f"--prices={path}", f"--json={output}")
  assert plan.main([RECIPE, *flags]) == 0
  *_, header, v5e, v6e = capsys.readouterr().out.splitlines()
  assert header.split()[:2] == ["topology", "chips"]
  assert v5e.split()[-5:] == ["16", "chip", "hours,", "19.20", "USD"]
  assert v6e.split()[-5:] == ["8", "chip", "hours,", "16.00", "USD"]
  written = json.loads(output.read_text())
  assert [row["bill"]["hours"] for row in written] == [1.0, 0.5]
  assert plan.main([RECIPE, "--topology=v5e:4x4,v5e:1x1"]) == plan.EXIT_DOES_NOT_FIT


def test_a_number_of_tokens_or_steps_replaces_the_recipes(monkeypatch, capsys):
  monkeypatch.setattr(child, "plan", answer)
  for quantity in ("--tokens=8192", "--steps=2"):
    assert plan.main([RECIPE, "--topology=v5e:4x4,v6e:4x4", quantity]) == 0
    assert "0.0002778 h, 0.004444 chip hours" in capsys.readouterr().out


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--topology=v5p:4x4x4", "--prices={path}"), "prices.toml.per_chip_hour.v5p: missing"),
    (("--topology=cpu:8", "--prices={path}"), "a plan for CPUs has no seconds; use local"),
    (("--topology=v5e:4x4", "--tokens=-3"), "--tokens=-3: expected a number above 0"),
    (("--topology=v5e:4x4", "--tokens=nan"), "--tokens=nan: expected a number above 0"),
    (("--topology=v5e:4x4", "--tokens=3", "--steps=3"), "not allowed with argument"),
    (("--topology=v5e:4x4", "--prices={path}", "--step=decode"), "give --steps or --tokens"),
    (("--topology=v5e:4x4", "--prices={path}", "--search"), "--search: prints no hours"),
    (("--topology=v5e:4x4,v6e:4x4", "--search"), "--search takes one topology"),
    (("--topology=v5e:4x4,v6e:4x4", "--hlo=/tmp/program.hlo"), "give one --topology"),
    (("--topology=v5e:4x4,", "--steps=3"), "unknown kind ''"),
    (("--topology=local:2",), "or local without a shape"),
    (("--topology=local", "--slices=2"), "1 for local"),
  ],
)
def test_flags_that_do_not_fit_are_refused_in_one_line(flags, words, tmp_path, capsys):
  path = tmp_path / "prices.toml"
  path.write_text(TABLE)
  assert plan.main([RECIPE, *(flag.format(path=path) for flag in flags)]) == 2
  error = capsys.readouterr().err
  assert words in error
  assert len(error.splitlines()) == 1
