"""Stands where there is no IPython, for code that imports its display functions.

A real IPython is found first: this folder is the last of the module path.
There is no shell here, so get_ipython returns None, which libraries take for a
plain interpreter.
"""

from . import display

__version__ = '0.0'
version_info = (0, 0, 0)


def get_ipython():
    return None


__all__ = ['display', 'get_ipython']
