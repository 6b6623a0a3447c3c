"""Stands where there is no IPython, for code that imports its display functions.

A real IPython is found first: this folder is the last of the module path.
For libraries get_ipython returns None, which they take for a plain interpreter. The
code itself gets what notebooks call.
"""

import sys

from . import display

__version__ = '0.0'
version_info = (0, 0, 0)


def get_ipython():
    if sys._getframe(1).f_globals.get('__name__') != '__main__':
        return None
    import sandbox_shell
    return sandbox_shell.shell


__all__ = ['display', 'get_ipython']
