"""Texts are read from lines or JSON lines, and blank lines keep their place among the answers."""

from t5x_like.inference import texts


def test_texts_are_lines_or_a_field_of_json_lines(tmp_path):
  path = tmp_path / "lines.txt"
  path.write_bytes("\ufeffone\r\n\n two \x0c\u2028three \n".encode())
  assert texts.read_texts(str(path)) == ["one", None, " two \x0c\u2028three "]
  path.write_text('{"text": "", "id": 3}\n\n{"body": "b", "text": "a\\nb"}\n')
  assert texts.read_texts(str(path), "text") == ["", None, "a\nb"]
  assert texts.read_texts(str(path.rename(tmp_path / "lines.jsonl"))) == ["", None, "a\nb"]


def test_each_blank_line_is_answered_by_an_error():
  inputs = [None, "", "a", None]
  answers = [{"input": ""}, {"input": "a"}]
  blank = {"input": "", "error": "blank line"}
  assert texts.insert_blank_errors(inputs, answers) == [blank, *answers, blank]
