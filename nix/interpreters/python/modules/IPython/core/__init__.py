"""Has the module display, which notebooks of an earlier time import from here."""
