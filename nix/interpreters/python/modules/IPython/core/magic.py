"""Adds magics of a notebook's own. The classes of magics that extensions have are not here."""

from sandbox_shell import Shell


def register_line_magic(function):
    setattr(Shell, 'line_' + function.__name__, staticmethod(function))
    return function


def register_cell_magic(function):
    setattr(Shell, 'cell_' + function.__name__, staticmethod(function))
    return function


def register_line_cell_magic(function):
    register_line_magic(function)
    return register_cell_magic(function)
