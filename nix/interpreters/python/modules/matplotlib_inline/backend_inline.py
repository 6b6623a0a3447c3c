"""The functions that prepare a notebook's figures. A real matplotlib_inline is found first."""

from IPython.display import set_matplotlib_close, set_matplotlib_formats
