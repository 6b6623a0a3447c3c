"""The older place of what IPython.display has."""

from IPython.display import *
