"""What IPython.display has."""

from IPython.display import *
