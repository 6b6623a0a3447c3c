import os
import pathlib

import words


def test_shout():
    assert words.shout(os.environ["GREETING"]) == "HELLO FROM THE SHELL!"


def test_build_output():
    output = pathlib.Path(__file__).parent / "build" / "output.txt"
    output.parent.mkdir(exist_ok=True)
    output.write_text(words.shout("built"))
    assert output.read_text() == "BUILT!"
