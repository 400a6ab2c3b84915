"""The check of links that `make docs` ends with."""

from pathlib import Path

from tests.links import broken, main


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="b.html#there">b</a><img src="p.png"><a href="#here">.</a>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here">a</a><a href="https://example.org/x">out</a>')
    assert broken(tmp_path) == ["a.html: no anchor b.html#there", "a.html: no file p.png"] and main(tmp_path) == 1
    (tmp_path / "p.png").touch()
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    assert broken(tmp_path) == [] and main(tmp_path) == 0
