"""A file of prices is read as written, and refused in one line where it cannot be meant."""

import pytest

from t5x_like.errors import UserError
from t5x_like.planning import prices

TABLE = 'currency = "USD"\n[per_chip_hour]\nv5e = 1.20\nv6e = 2\n'


def read(tmp_path, text):
  path = tmp_path / "prices.toml"
  path.write_text(text)
  return prices.read_prices(str(path))


def test_prices_are_read_and_multiply_chip_hours(tmp_path):
  table = read(tmp_path, TABLE)
  assert table == prices.Prices("USD", {"v5e": 1.20, "v6e": 2.0})
  bill = prices.bill(table, "v5e", chips=16, steps=7200, seconds_per_step=0.5)
  assert (bill.hours, bill.chip_hours) == (1.0, 16.0)
  assert bill.price == pytest.approx(16 * 1.20)


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
